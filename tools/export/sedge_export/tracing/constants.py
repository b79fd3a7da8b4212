"""Computes values that do not depend on the input while tracing: masks, positions, index arithmetic.

The inputs of a trace are fake tensors, which have no data. All other tensors keep their values, so that
``if mask.all():`` can be decided. They become constants of the graph when they are first combined with
an input.
"""

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch._dispatch.python import suspend_functionalization
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_any, tree_map_only

from sedge_export.subject.source import here

aten = torch.ops.aten
# The functionalisation API is missing from torch's type stubs.
_private: Any = torch


# The line of user code that first called each operator, such as ``net.py:31``.
Origins: TypeAlias = dict[OpOverload, str]


class Constants(TorchDispatchMode):
    """Runs operators that have no fake tensor among their arguments, instead of recording them."""

    def __init__(self, origins: Origins) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._origins = origins

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run or record the operator. Its result has values if all its arguments have values."""
        keywords = dict(kwargs or {})
        if func not in self._origins:
            self._origins[func] = here()
        # Without this, operators called by functions such as torch.from_numpy would still run under the
        # modes above.
        with _private._C.DisableTorchFunction():
            if tree_any(_is_fake, (args, keywords)):
                if func in _INDEXED:
                    args = args[0], _places(args[1]), *args[2:]
                return func(*args, **keywords)
            with _disable_current_modes():
                return func(*args, **keywords)


_INDEXED = {aten.index.Tensor, aten.index_put.default}


def _places(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Replace masks whose values are known with the indices of their true elements."""
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype != torch.bool or _is_fake(index):
            found.append(index)
        else:
            with _disable_current_modes():
                found += index.nonzero().unbind(1)
    return found


def _is_fake(value: object) -> bool:
    return isinstance(value, FakeTensor)


@contextmanager
def functionalised(origins: Origins) -> Generator[None]:
    """In a ``with`` block, make in-place operators on ``lifted`` tensors out-of-place, below autograd."""
    _private._enable_functionalization(reapply_views=True)
    try:
        with Constants(origins):
            yield
    finally:
        _private._disable_functionalization()


def lifted(values: Any) -> Any:
    """Wrap each tensor in ``values``, so that in-place writes by the model change a copy of it."""
    return tree_map_only(Tensor, _lifted, values)


def _lifted(tensor: Tensor) -> Tensor:
    if _private._is_functional_tensor(tensor) or _private._C._functorch.is_functorch_wrapped_tensor(
        tensor
    ):
        return tensor
    wrapper: Tensor = _private._to_functional_tensor(tensor)
    return wrapper


def values(tensor: Tensor) -> Tensor:
    """Return the values of a lifted tensor.

    Raises torch's error if the values depend on an input of the trace.
    """
    _private._functionalize_sync(tensor)
    with suspend_functionalization(), _disable_current_modes():
        held: Tensor = _private._from_functional_tensor(tensor).detach()
        if isinstance(held, FakeTensor):
            raise DataDependentOutputException(aten._local_scalar_dense.default)
        return held


def known(tensor: Tensor) -> bool:
    """Return True if a lifted tensor has values."""
    try:
        values(tensor)
    except DataDependentOutputException:
        return False
    return True


def unlifted(tensor: Tensor) -> Tensor:
    """Return the tensor that a lifted tensor holds now."""
    _private._functionalize_sync(tensor)
    held: Tensor = _private._from_functional_tensor(tensor)
    return held.detach()


def compact(module: fx.GraphModule) -> None:
    """Store each constant of a traced graph once.

    If all slices along an axis are equal, store one of them.
    """
    names: dict[tuple[object, ...], str] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        whole: Tensor = getattr(module, str(node.target)).detach()
        if whole.dtype not in (torch.float32, torch.int64, torch.bool):
            continue  # the lowering refuses this type, by name
        first = _without_repeats(whole)
        key = first.dtype, first.shape, first.numpy().tobytes()
        node.target = names.setdefault(key, f"constant_{len(names)}")
        module.register_buffer(node.target, first)
        if first.shape == whole.shape:
            continue
        with module.graph.inserting_after(node):
            if first.numel() == 1:
                size, number = list(whole.shape), first.item()
                made = module.graph.call_function(
                    aten.full.default, (size, number), {"dtype": whole.dtype}
                )
            else:
                made = module.graph.call_function(aten.expand.default, (node, list(whole.shape)))
        made.meta["val"] = whole
        for user in set(node.users) - {made}:
            user.replace_input_with(node, made)


def _without_repeats(tensor: Tensor) -> Tensor:
    for axis, extent in enumerate(tensor.shape):
        first = tensor.narrow(axis, 0, min(extent, 1))
        if extent > 1 and tensor.eq(first).all():
            tensor = first
    # contiguous() would keep stride 0 on an axis of extent 1, which ExecuTorch rejects.
    return tensor.clone(memory_format=torch.contiguous_format)
