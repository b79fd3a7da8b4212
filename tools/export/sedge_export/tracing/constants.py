"""Computes values that do not depend on the input at once: masks, positions, index arithmetic.

The inputs of a trace are fake tensors, which have no data. Everything else keeps its values, so that ``if
mask.all():`` has an answer, and enters the graph as a constant when an input first meets it.
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
# Its functionalisation is not part of torch's typed interface.
_private: Any = torch


# The user's line that first called an operator, such as ``net.py:31``.
Origins: TypeAlias = dict[OpOverload, str]


class Constants(TorchDispatchMode):
    """Runs an operator that has no fake tensor among its arguments, instead of recording it."""

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
        """The operator's result: values if all arguments have them."""
        keywords = dict(kwargs or {})
        if func not in self._origins:
            self._origins[func] = here()
        # Operators that torch.from_numpy and the like call come here with the modes above still active.
        with _private._C.DisableTorchFunction():
            if tree_any(_is_fake, (args, keywords)):
                if func in _INDEXED:
                    args = args[0], _places(args[1]), *args[2:]
                return func(*args, **keywords)
            with _disable_current_modes():
                return func(*args, **keywords)


_INDEXED = {aten.index.Tensor, aten.index_put.default}


def _places(indices: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Indices with masks of known values replaced by the places where they hold."""
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
    """Turns operators that write in place into others. It works below autograd, on ``lifted`` tensors."""
    _private._enable_functionalization(reapply_views=True)
    try:
        with Constants(origins):
            yield
    finally:
        _private._disable_functionalization()


def lifted(values: Any) -> Any:
    """The value, with each tensor in the wrapper that lets the model write into a copy of it."""
    return tree_map_only(Tensor, _lifted, values)


def _lifted(tensor: Tensor) -> Tensor:
    if _private._is_functional_tensor(tensor) or _private._C._functorch.is_functorch_wrapped_tensor(
        tensor
    ):
        return tensor
    wrapper: Tensor = _private._to_functional_tensor(tensor)
    return wrapper


def values(tensor: Tensor) -> Tensor:
    """The values of a lifted tensor. Raises torch's error if they depend on a fake one."""
    _private._functionalize_sync(tensor)
    with suspend_functionalization(), _disable_current_modes():
        held: Tensor = _private._from_functional_tensor(tensor).detach()
        if isinstance(held, FakeTensor):
            raise DataDependentOutputException(aten._local_scalar_dense.default)
        return held


def known(tensor: Tensor) -> bool:
    """Whether a lifted tensor has values."""
    try:
        values(tensor)
    except DataDependentOutputException:
        return False
    return True


def unlifted(tensor: Tensor) -> Tensor:
    """The tensor that the wrapper holds now."""
    _private._functionalize_sync(tensor)
    held: Tensor = _private._from_functional_tensor(tensor)
    return held.detach()


def compact(module: fx.GraphModule) -> None:
    """Store each constant of a traced graph once; if it repeats along an axis, only the first part."""
    names: dict[tuple[object, ...], str] = {}
    for node in module.graph.find_nodes(op="get_attr"):
        whole: Tensor = getattr(module, str(node.target)).detach()
        if whole.dtype not in (torch.float32, torch.int64, torch.bool):
            continue  # refused by name when it is lowered
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
    # contiguous() would keep a stride of 0 on an axis of extent 1, which ExecuTorch refuses.
    return tensor.clone(memory_format=torch.contiguous_format)
