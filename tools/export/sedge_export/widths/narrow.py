"""Narrows a model: makes the same module with only the first channels of every axis, as in HeteroFL.

Its tensors are slices of the whole model's. It can be trained and exported like any other module.
"""

import torch
from torch import Tensor, nn

from sedge_edge.backends.rows import REGRESSION
from sedge_export.subject.network import Network, copied
from sedge_export.subject.source import place, reason
from sedge_export.widths.axes import FoundAxes, find_axes
from sedge_export.widths.resize import resize
from sedge_protocol.axes import FIXED, Axes
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout

_HINT = "sizes in its forward pass must come from the input: x.flatten(1), not x.view(-1, 1024)"
MAX_REASONS = 3


def narrowed(module: nn.Module, sample: Tensor, dropped: float) -> nn.Module:
    """Copy the module, keeping the first ceil((1 - dropped) c) of the c channels of every axis.

    ``sample`` is an input (B, ...). Raises ``ExportError`` if nothing can be narrowed, if a normalisation
    would be left with an incomplete group, or if the narrower form does not run, for instance because its
    forward pass hard-codes sizes.
    """
    network = Network(module, REGRESSION)
    return cut(module, sample, network.layout, find_axes(network, sample), dropped)


def cut(
    module: nn.Module, sample: Tensor, layout: Layout, found: FoundAxes, dropped: float
) -> nn.Module:
    """Do the same as ``narrowed`` for a module whose layout and axes are already known."""
    if not 0 <= dropped < 1:
        raise ExportError(f"dropped: {dropped}, expected 0 to below 1")
    narrower = copied(module)
    if dropped == 0:
        return narrower
    if not found.axes.channels:
        raise ExportError(f"model: nothing can be narrowed: {_first_reasons(found.reasons)}")
    _cut_tensors(narrower, layout, found.axes, dropped)
    for name, part in narrower.named_modules():
        resize(name, part)
    _check_runs(module, narrower, sample, dropped)
    return narrower


def _first_reasons(reasons: tuple[str, ...]) -> str:
    more = len(reasons) - MAX_REASONS
    return "; ".join(reasons[:MAX_REASONS]) + (f"; and {more} more" if more > 0 else "")


def _cut_tensors(model: nn.Module, layout: Layout, axes: Axes, dropped: float) -> None:
    """Replace every tensor with its slice, under each name that refers to it."""
    narrower = axes.layout(layout, axes.narrowed(dropped))
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    slices: dict[int, Tensor] = {}
    for tensor, dims in zip(narrower.tensors, axes.dims, strict=True):
        whole = tensors[tensor.name]
        if any(axis != FIXED for axis in dims):
            part = whole.detach()[tuple(slice(extent) for extent in tensor.shape)].clone()
            slices[id(whole)] = (
                nn.Parameter(part, whole.requires_grad) if isinstance(whole, nn.Parameter) else part
            )
    for module in model.modules():
        for name, own in _own_tensors(module):
            if id(own) in slices:
                setattr(module, name, slices[id(own)])


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    parameters = module.named_parameters(recurse=False, remove_duplicate=False)
    return [*parameters, *module.named_buffers(recurse=False, remove_duplicate=False)]


def _check_runs(whole: nn.Module, narrower: nn.Module, sample: Tensor, dropped: float) -> None:
    what = f"model: its form narrower by {dropped:g}"
    try:
        found = _output_shape(narrower, sample)
    except Exception as exc:  # the user's code may raise anything
        raise ExportError(f"{what} fails{place(exc)}: {reason(exc)}; {_HINT}") from exc
    expected = _output_shape(whole, sample)
    if found != expected:
        raise ExportError(f"{what} gives {found}, expected {expected}; {_HINT}")


def _output_shape(module: nn.Module, sample: Tensor) -> tuple[int, ...]:
    with torch.no_grad():
        output: Tensor = copied(module).eval()(sample)
    return tuple(output.shape)
