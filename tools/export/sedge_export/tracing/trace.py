"""Tracing: from a pure function of tensors to one ATen graph, rewritten where that pays on any runtime."""

import functools
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

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
from sedge_export.tracing.constants import compact, functionalised, lifted, unlifted
from sedge_export.tracing.replaced import Replacing
from sedge_export.tracing.rewrite import pool_before_relu
from sedge_protocol.errors import ExportError

Function: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]


def trace(function: Function, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The ATen graph of function(*inputs), with static shapes and no in-place operators or dead code.

    An operator is decomposed only when the table has no lowering for it. Raises ``ExportError`` when the
    function cannot run on tensors without data, because its path or shapes depend on their values.
    """
    with plain_kernels():
        traced = _traced(function, inputs)
        if any(_writes(node) for node in traced.graph.nodes):
            # Some decompositions write in place after functionalisation; trace once more to remove that.
            traced = _traced(traced, inputs)
    compact(traced)
    pool_before_relu(traced.graph)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced


def multiply_adds(graph: fx.GraphModule) -> int:
    """The multiplications of a traced graph's convolutions and products, each with its sum."""
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
    """Decompose attention into products and softmax, and what is left of LSTM into steps."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            # Setting any of oneDNN's flags sets them all, and one warns about Intel GPUs.
            warnings.filterwarnings("ignore", "TF32 acceleration", UserWarning)
            with torch.backends.mkldnn.flags(enabled=False):
                yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@functools.cache
def _decompositions() -> dict[OpOverload, Function]:
    return {op: how for op, how in decompositions().items() if op not in LOWERINGS}


def _traced(function: Function, inputs: Sequence[Tensor]) -> fx.GraphModule:
    def call(*tensors: Tensor) -> Any:  # make_fx counts a method's self
        with functionalised(), Replacing(), replaced(torch.compiler, "_is_compiling_flag", True):
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
        raise ExportError(
            f"model: cannot be traced{place(exc)}: {_depends(exc)}{reason(exc)}"
        ) from exc


def _depends(exc: Exception) -> str:
    """Whether a tensor's values were asked for, which it does not have while it is traced."""
    if isinstance(exc, GuardOnDataDependentSymNode | DataDependentOutputException) or (
        "data pointer" in str(exc) or "tensor subclasses" in str(exc)
    ):
        return "its path or its shapes depend on the data: "
    return ""


def _writes(node: fx.Node) -> bool:
    return node.op == "call_function" and (
        isinstance(node.target, OpOverload) and node.target._schema.is_mutable
    )
