"""Traces a pure function of tensors to one ATen graph, with rewrites that help on every runtime."""

import functools
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from sedge_edge.backends.replaced import replaced
from sedge_export.lowering.onnx.table import LOWERINGS
from sedge_export.lowering.rules.table import decompositions
from sedge_export.subject.source import place, reason
from sedge_export.tracing.constants import Origins, compact, functionalised, lifted, unlifted
from sedge_export.tracing.replaced import Replacing
from sedge_export.tracing.rewrite import pool_before_relu
from sedge_protocol.errors import ExportError

aten = torch.ops.aten

Function: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]


def trace(
    function: Function, inputs: Sequence[Tensor], origins: Origins | None = None
) -> fx.GraphModule:
    """Trace function(*inputs) to an ATen graph with static shapes, no in-place operators and no dead code.

    The line of user code that first called each operator is added to ``origins``. An operator is
    decomposed only if the table has no lowering for it. Raises ``ExportError`` if the function cannot
    run on tensors without data, because its control flow or shapes depend on their values.
    """
    with plain_kernels():
        traced = _traced(function, inputs, {} if origins is None else origins)
        if any(_writes(node) for node in traced.graph.nodes):
            # Some decompositions write in place after functionalisation. A second trace removes that.
            traced = _traced(traced, inputs, {})
    compact(traced)
    pool_before_relu(traced.graph)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def multiply_adds(graph: fx.GraphModule) -> int:
    """Return the number of multiply-adds in a traced graph's convolutions and matrix products."""
    operations = 0
    for node in graph.graph.nodes:
        count = flop_registry.get(getattr(node.target, "overloadpacket", None))
        if count is not None:
            args, named = tree_map_only(fx.Node, _traced_value, (node.args, node.kwargs))
            operations += count(*args, **named, out_val=_traced_value(node))
    return operations // 2


def _traced_value(node: fx.Node) -> object:
    return node.meta["val"]


@contextmanager
def plain_kernels() -> Generator[None]:
    """In a ``with`` block, decompose attention into products and softmax, and any LSTM into steps."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            # Setting one of oneDNN's flags sets all of them, and one of them warns about Intel GPUs.
            warnings.filterwarnings("ignore", "TF32 acceleration", UserWarning)
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@functools.cache
def _decompositions() -> dict[OpOverload, Function]:
    table = {op: how for op, how in decompositions().items() if op not in LOWERINGS}
    return {**table, aten.index_put.default: _put_where}


def _put_where(
    x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False
) -> Tensor:
    """Lower the write of a number through a mask to ``where``.

    ``masks`` does not see such a write if it happens in a user's ``backward``.
    """
    *before, mask = indices
    plain = not accumulate and values.numel() == 1 and all(each is None for each in before)
    if mask is None or mask.dtype != torch.bool or not plain:
        return cast(Tensor, NotImplemented)
    after = x.ndim - len(before) - mask.ndim
    return torch.where(mask.view(*mask.shape, *[1] * after), values.view(()), x)


def _traced(function: Function, inputs: Sequence[Tensor], origins: Origins) -> fx.GraphModule:
    def call(*tensors: Tensor) -> Any:  # not a method: make_fx would count self as an input
        with (
            functionalised(origins),
            Replacing(),
            replaced(torch.compiler, "_is_compiling_flag", True),
        ):
            results = function(*lifted(tensors))
        return tree_map_only(Tensor, unlifted, results)

    tracer = make_fx(
        call,
        decomposition_table=_decompositions(),
        tracing_mode="fake",
        _allow_non_fake_inputs=True,
    )
    try:
        return tracer(*inputs)
    except ExportError:
        raise
    except Exception as exc:  # the user's code may raise anything
        why = _DEPENDS if _depends(exc) else reason(exc)
        raise ExportError(f"model: cannot be traced{place(exc)}: {why}") from exc


_DEPENDS = (
    "its path or its shapes depend on the data, but a program has one path: write"
    " torch.where(condition, a, b) for an if, and a mask for a selection"
)


def _depends(exc: Exception) -> bool:
    """Return True if the error is about the values of a tensor, which has none while it is traced."""
    known = isinstance(exc, GuardOnDataDependentSymNode | DataDependentOutputException)
    return known or "data pointer" in str(exc) or "tensor subclasses" in str(exc)


def _writes(node: fx.Node) -> bool:
    return node.op == "call_function" and (
        isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    )
