"""A narrower form of a model: the same module with the first channels of every axis (HeteroFL's sub-model).

Its tensors are slices of the whole model's, and it is an ordinary module that trains and exports as any.
"""

import traceback
from pathlib import Path

import torch
from torch import Tensor, nn

from sedge_export.axes import Found, find_axes
from sedge_export.network import Network, copied, squared_error
from sedge_export.resize import resize
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout

_TORCH = str(Path(torch.__file__).parent)
_HINT = "sizes in its forward pass must come from the input: x.flatten(1), not x.view(-1, 1024)"
MAX_REASONS = 3


def narrowed(module: nn.Module, sample: Tensor, dropped: float) -> nn.Module:
    """A copy with ceil((1 - dropped) c) of the c channels of every axis; ``sample`` is (B, ...).

    Raises ``ExportError`` when nothing can be narrowed, when groups of a normalisation would not be
    whole, and when the narrower form does not run, as with sizes written into its forward pass.
    """
    network = Network(module, squared_error, False)
    return cut(module, sample, network.layout, find_axes(network, sample), dropped)


def cut(
    module: nn.Module, sample: Tensor, layout: Layout, found: Found, dropped: float
) -> nn.Module:
    """``narrowed`` for a module whose layout and axes are known."""
    if not 0 <= dropped < 1:
        raise ExportError(f"dropped: {dropped}, expected 0 to below 1")
    made = copied(module)
    if dropped == 0:
        return made
    if not found.axes.channels:
        raise ExportError(f"model: nothing can be narrowed: {_some(found.reasons)}")
    _cut_tensors(made, layout, found.axes, dropped)
    for name, part in made.named_modules():
        resize(name, part)
    _check_runs(module, made, sample, dropped)
    return made


def _some(reasons: tuple[str, ...]) -> str:
    more = len(reasons) - MAX_REASONS
    return "; ".join(reasons[:MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _cut_tensors(model: nn.Module, layout: Layout, axes: Axes, dropped: float) -> None:
    """Replace every tensor by its slice, under each name that it has."""
    narrower = axes.layout(layout, axes.narrowed(dropped))
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    slices: dict[int, Tensor] = {}
    for tensor, dims in zip(narrower.tensors, axes.dims, strict=True):
        whole = held[tensor.name]
        if any(axis != FIXED for axis in dims):
            part = whole.detach()[tuple(slice(extent) for extent in tensor.shape)].clone()
            slices[id(whole)] = (
                nn.Parameter(part, whole.requires_grad) if isinstance(whole, nn.Parameter) else part
            )
    for module in model.modules():
        for name, held_tensor in _own(module):
            if id(held_tensor) in slices:
                setattr(module, name, slices[id(held_tensor)])


def _own(module: nn.Module) -> list[tuple[str, Tensor]]:
    parameters = module.named_parameters(recurse=False, remove_duplicate=False)
    return [*parameters, *module.named_buffers(recurse=False, remove_duplicate=False)]


def _check_runs(whole: nn.Module, made: nn.Module, sample: Tensor, dropped: float) -> None:
    what = f"model: narrower by {dropped:g} it"
    try:
        found = _output_shape(made, sample)
    except Exception as exc:  # the user's own code: anything can come out of it
        reason = f"{type(exc).__name__}: {str(exc).partition(chr(10))[0]}"
        raise ExportError(f"{what} fails{_place(exc)}: {reason}; {_HINT}") from exc
    expected = _output_shape(whole, sample)
    if found != expected:
        raise ExportError(f"{what} gives {found}, expected {expected}; {_HINT}")


def _output_shape(module: nn.Module, sample: Tensor) -> tuple[int, ...]:
    with torch.no_grad():
        output: Tensor = copied(module).eval()(sample)
    return tuple(output.shape)


def _place(exc: Exception) -> str:
    """`` at net.py:31, `x = x.view(-1, 1024)` ``: the innermost line that is not torch's."""
    for frame in reversed(traceback.extract_tb(exc.__traceback__)):
        if not frame.filename.startswith((_TORCH, __file__)):
            return f" at {Path(frame.filename).name}:{frame.lineno}, `{frame.line}`"
    return ""
