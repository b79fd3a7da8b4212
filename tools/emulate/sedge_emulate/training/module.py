"""Any model, trained by autograd; its tensors are views of one flat vector in channels-last order.

Channels-last makes a step of the reference CNN, and of ResNet-8, 1.2 times as fast.
"""

from collections.abc import Collection
from typing import cast

import torch
from torch import Tensor, nn

from sedge_edge.training.steppers import Differentiated, tensor_slices
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.storage import Order, Storage
from sedge_emulate.training.tasks import Precision
from sedge_export.network import copied
from sedge_protocol.layout import Theta


class Module:
    """One model on any torch device, and its values."""

    def __init__(self, problem: Problem, precision: Precision, device: torch.device) -> None:
        layout = problem.network.layout
        self._model = copied(problem.module).to(device)
        for module in self._model.modules():
            if isinstance(module, nn.GroupNorm):
                module.register_forward_pre_hook(_with_gradient)
        self._loss, self._device = problem.loss, device
        self._half = precision == "bf16"
        self._layout = layout
        held: dict[str, Tensor] = {
            **dict(self._model.named_parameters()), **dict(self._model.named_buffers()),
        }  # fmt: skip
        # (O, C, H, W) filters as (O, H, W, C), which is how channels-last kernels want them.
        orders = {t.name: Order(t.shape, (0, 2, 3, 1)) for t in layout.tensors if len(t.shape) == 4}
        self.storage = Storage(layout, orders)
        self._values = torch.zeros(layout.size, device=device)
        for name, stored in self._named(self._values).items():
            held[name].data = stored
        self._trainable = {n: held[n] for n in layout.by_name if held[n].requires_grad}
        self._statistics = [held[name] for name in layout.statistics]

    def place(self, values: Tensor) -> None:
        """Take over values (n,), stored as ``storage`` says."""
        self._values.copy_(values)

    def freeze(self, names: Collection[str]) -> None:
        """Compute no gradient of these tensors from now on; all others have one again.

        Raises ``CodecError`` for a tensor that the model does not have.
        """
        tensor_slices(self._layout, names)
        for name, tensor in self._trainable.items():
            tensor.requires_grad_(name not in names)

    def differentiate(self, values: Tensor, x: Tensor, y: Tensor) -> Differentiated:
        """Gradient (n,) of the mean loss of x (B, ...), y (B,) at values (n,), as these are stored."""
        self.place(values)
        self._model.train()
        for tensor in self._trainable.values():
            tensor.grad = None
        with torch.enable_grad(), self._device:
            loss = self._loss(self._outputs(x), y).mean()
            if loss.requires_grad:  # not where all that it depends on is frozen
                torch.autograd.backward(loss)
        gradient = torch.zeros_like(self._values)
        views = self._named(gradient)
        for name, tensor in self._trainable.items():
            if tensor.grad is not None:
                views[name].copy_(tensor.grad)
        statistics = None
        if self._statistics:
            statistics = torch.cat([tensor.flatten() for tensor in self._statistics])
        return Differentiated(cast(Theta, gradient), loss.detach(), cast(Theta, statistics))

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs (B, C) in float32, running statistics as they are."""
        self._model.eval()
        return self._outputs(x)

    def _outputs(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._half):
            output: Tensor = self._model(x)
        return output.float()

    def _named(self, vector: Tensor) -> dict[str, Tensor]:
        """The tensors of a stored vector (n,) by name, in the model's shapes."""
        views = self.storage.views(vector)
        return {n: v.permute(0, 3, 1, 2) if v.ndim == 4 else v for n, v in views.items()}


def _with_gradient(norm: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
    """Let a GroupNorm's input need a gradient, as it does not behind frozen layers.

    torch's channels-last kernel on the CPU (2.13) crashes the process where it is not asked for one.
    """
    if not torch.is_grad_enabled() or any(x.requires_grad for x in inputs):
        return None
    return tuple(x.detach().requires_grad_() for x in inputs)
