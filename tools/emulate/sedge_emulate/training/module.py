"""Any model, trained by autograd; its tensors are views of one flat vector in channels-last order.

A step is ``differentiate`` and then ``step``. Channels-last makes a step of the reference CNN, and of
ResNet-8, 1.2 times as fast.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sedge_edge.training.steppers import tensor_slices
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.storage import Order, Storage
from sedge_emulate.training.tasks import Precision
from sedge_export.network import copied
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training


@dataclass(frozen=True)
class _Learning:
    """One parameter, where its prox pulls, and its velocity; all in the model's shape."""

    value: Tensor
    anchor: Tensor
    velocity: Tensor


class Module:
    """One model on any torch device, and the state of the training under way."""

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
        self._anchor = torch.zeros(layout.size, device=device)
        self._velocity = torch.zeros(layout.size, device=device)
        for name, stored in self._named(self._values).items():
            held[name].data = stored
        self._statistics = {name: held[name] for name in layout.statistics}
        names = [t.name for t in layout.tensors if held[t.name].requires_grad]
        anchors, velocities = self._named(self._anchor), self._named(self._velocity)
        self._trainable = {
            name: _Learning(held[name], anchors[name], velocities[name]) for name in names
        }
        self._learning: dict[str, _Learning] = {}  # those that are not frozen
        self._still: list[tuple[Tensor, Tensor]] = []  # frozen statistics, and what they stay at
        self._training = Training()

    @property
    def values(self) -> Tensor:
        """The present values (n,), as they are stored."""
        return self._values

    def start(self, theta: Theta, training: Training, anchor: Theta | None = None) -> None:
        """Begin a training at theta (n,), pulled towards anchor (n,) or theta.

        Raises ``CodecError`` for a frozen tensor that the model does not have.
        """
        tensor_slices(self._layout, training.freeze)  # refuses names of no tensor
        self.storage.write(theta, self._values)
        self._training = training
        self._velocity.zero_()
        if anchor is None:
            self._anchor.copy_(self._values)
        else:
            self.storage.write(anchor, self._anchor)
        self._learning = {n: t for n, t in self._trainable.items() if n not in training.freeze}
        for name, tensor in self._trainable.items():
            tensor.value.requires_grad_(name in self._learning)
        still = [t for name, t in self._statistics.items() if name in training.freeze]
        self._still = [(statistic, statistic.clone()) for statistic in still]

    def place(self, values: Tensor) -> None:
        """Go on from values (n,), stored as ``values`` are; the velocity stays."""
        self._values.copy_(values)

    def differentiate(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of x (B, ...), y (B,); leaves its gradient, and the statistics moved."""
        self._model.train()
        for tensor in self._learning.values():
            tensor.value.grad = None
        with torch.enable_grad(), self._device:
            loss = self._loss(self._outputs(x), y).mean()
            if loss.requires_grad:  # not where all that it depends on is frozen
                torch.autograd.backward(loss)
        for statistic, kept in self._still:
            statistic.copy_(kept)
        return loss.detach()

    def gradient(self) -> Tensor:
        """The last batch's gradient (n,), 0 where frozen, as ``values`` are stored, until ``step``."""
        gradient = torch.zeros_like(self._values)
        views = self._named(gradient)
        for name, tensor in self._learning.items():
            if tensor.value.grad is not None:
                views[name].copy_(tensor.value.grad)
        return gradient

    def step(self) -> None:
        """The step of SGD along the last batch's gradient."""
        training = self._training
        for tensor in self._learning.values():
            change = tensor.value.grad
            if change is None:  # a parameter that this step did not use
                change = torch.zeros_like(tensor.value)
            if training.prox:
                change = change + training.prox * (tensor.value - tensor.anchor)
            if training.momentum:
                change = tensor.velocity.mul_(training.momentum).add_(change)
            tensor.value.add_(change, alpha=-training.learning_rate)

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
