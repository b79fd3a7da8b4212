"""Refuses models before anything runs, because of their kind or of tensors that no program can contain."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrizations
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from sedge_protocol.errors import ExportError

_private: Any = parametrizations  # its classes are missing from torch's type stubs
# Both versions of spectral_norm keep vectors that a forward pass in training changes.
_HOOKS: dict[type, str] = {WeightNorm: "weight_norm", SpectralNorm: "spectral_norm"}
_PARAMETRIZATIONS: dict[type, str] = {
    _private._Orthogonal: "orthogonal",
    _private._SpectralNorm: "spectral_norm",
}
_WRAPPERS = (nn.DataParallel, nn.parallel.DistributedDataParallel)


def require_exportable(model: nn.Module) -> None:
    """Raise ``ExportError`` naming the module or tensor and a fix if a model cannot be exported."""
    for name, module in model.named_modules():
        if (found := _wrong_module(module)) is not None:
            raise ExportError(f"{f'module {name!r}' if name else 'model'}: {found}")
    for kind, tensors in (
        ("parameter", model.named_parameters()),
        ("buffer", model.named_buffers()),
    ):
        for name, tensor in tensors:
            if not is_lazy(tensor) and (found := next(_faults(kind, tensor), None)) is not None:
                raise ExportError(f"{kind} {name!r}: {found}")


def _wrong_module(module: nn.Module) -> str | None:
    if isinstance(module, _WRAPPERS):
        return f"a {type(module).__name__}, expected the module that it wraps: pass its .module"
    if isinstance(module, torch.jit.ScriptModule):
        return "a torch.jit.ScriptModule, expected the module that it was made from"
    for hook in module._forward_pre_hooks.values():
        for kind, name in _HOOKS.items():
            if isinstance(hook, kind):
                return f"torch.nn.utils.{name}, expected plain weights: remove_{name}(module)"
    for kind, name in _PARAMETRIZATIONS.items():
        if isinstance(module, kind):
            return (
                f"torch.nn.utils.parametrizations.{name}, expected plain weights:"
                " torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')"
            )
    return None


def _faults(kind: str, tensor: Tensor) -> Iterator[str]:
    if tensor.is_meta:
        yield "on the meta device, expected values: make the model without torch.device('meta')"
    if tensor.layout != torch.strided:
        yield f"{tensor.layout}, expected a dense tensor: .to_dense()"
    if kind == "buffer":
        return
    if tensor.dtype.is_complex:
        yield f"{tensor.dtype}, expected torch.float32: torch.view_as_real gives its two parts"
    if tensor.dtype != torch.float32:
        yield f"{tensor.dtype}, expected torch.float32: model.float()"
    if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
        yield "a hook on its gradient, which devices would not run; expected none"
    if tensor.requires_grad and not bool(tensor.isfinite().all()):
        yield "holds NaN or inf, expected finite numbers"
