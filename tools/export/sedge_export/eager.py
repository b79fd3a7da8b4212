"""The reference for verification: the user's own model in plain eager torch, in float64 or float32.

It uses autograd and torch.optim.SGD on real rows only, and shares no code with the tracing. In float64 it
says what is right. In float32 it says how exact float32 can be: a program, or a trainer, is right when its
error is within ``FACTOR`` of eager float32's own.
"""

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sedge_export.batches import Batch
from sedge_export.network import RowLoss, copied
from sedge_protocol.layout import Layout, Theta

Vector: TypeAlias = NDArray[np.float64]

# Two right float32 computations of one gradient differ by their order of summation. On the networks of
# tools/bench/zoo, onnxruntime's error was 0.2 to 5 times eager torch's.
FACTOR = 8.0
# No error of float32 excuses more than this share of a change: a lost gradient is off by 1.
MOST = 0.25


def allowance(error: float) -> float:
    """The error that float32 may have where eager float32 has this one; both are shares of a change."""
    return min(FACTOR * error, MOST)


class Eager:
    """A copy of the model with its optimizer, on theta (n,) and velocity (n,) given by ``place``."""

    def __init__(
        self, model: nn.Module, layout: Layout, loss: RowLoss, momentum: float,
        kind: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self._model = copied(model).to(kind)
        self._layout, self._loss, self._kind = layout, loss, kind
        by_name = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        self._tensors = [by_name[tensor.name] for tensor in layout.tensors]
        trainable = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.SGD(trainable, lr=1.0, momentum=momentum)
        self._gradients: list[Tensor | None] = []

    @property
    def theta(self) -> Vector:
        """The model's values, shape (n,)."""
        return _flat([tensor.detach() for tensor in self._tensors])

    @property
    def gradient(self) -> Vector:
        """The last gradient of the loss, shape (n,), 0 for tensors without one."""
        pairs = zip(self._gradients, self._tensors, strict=True)
        return _flat([torch.zeros_like(t) if g is None else g for g, t in pairs])

    @property
    def velocity(self) -> Vector:
        """The optimizer's momentum buffer, shape (n,), 0 for tensors that are not trained."""
        state = self._optimizer.state
        buffers = [state[t].get("momentum_buffer") if t in state else None for t in self._tensors]
        pairs = zip(buffers, self._tensors, strict=True)
        return _flat([torch.zeros_like(t) if v is None else v for v, t in pairs])

    def place(self, theta: Theta, velocity: Theta) -> None:
        """Continue from theta (n,) and velocity (n,)."""
        with torch.no_grad():
            for tensor, value in zip(self._tensors, self._split(theta), strict=True):
                tensor.copy_(value)
        for tensor, moved in zip(self._tensors, self._split(velocity), strict=True):
            if tensor.requires_grad:
                self._optimizer.state[tensor]["momentum_buffer"] = moved

    def _split(self, vector: Theta) -> list[Tensor]:
        parts = [vector[spec.slice].reshape(spec.shape) for spec in self._layout.tensors]
        return [torch.tensor(part, dtype=self._kind) for part in parts]

    def step(
        self, batch: Batch, learning_rate: float, prox: float = 0.0, anchor: Theta | None = None
    ) -> float:
        """One step. Returns the loss."""
        loss = self.differentiate(batch)
        self.descend(learning_rate, prox, anchor)
        return loss

    def differentiate(self, batch: Batch) -> float:
        """Compute the gradient, and move the statistics. Returns the loss."""
        self._model.train()
        self._model.zero_grad()
        x, y, w = (self._cast(t[: batch.rows]) for t in (batch.x, batch.y, batch.w))
        with self._computing():
            losses = self._loss(self._model(x), y)
        loss = (losses * w).sum() / w.sum()
        torch.autograd.backward(loss)
        # An unused layer has no gradient here, and a zero one in a program.
        self._gradients = [
            torch.zeros_like(t) if t.requires_grad and t.grad is None else t.grad
            for t in self._tensors
        ]
        return loss.item()

    def descend(self, learning_rate: float, prox: float = 0.0, anchor: Theta | None = None) -> None:
        """One step of the optimizer along the last gradient, pulled towards an anchor (n,)."""
        targets = self._split(anchor) if anchor is not None else [None] * len(self._tensors)
        for tensor, gradient, target in zip(self._tensors, self._gradients, targets, strict=True):
            if gradient is not None and target is not None:
                gradient = gradient + prox * (tensor.detach() - target)
            tensor.grad = gradient
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def evaluate(self, batch: Batch, classifies: bool) -> tuple[Tensor, dict[str, float]]:
        """Outputs (B, C) of all rows, and the sums that the program ``evaluate`` must return."""
        self._model.eval()
        x, y, w = (self._cast(t) for t in (batch.x, batch.y, batch.w))
        with torch.no_grad(), self._computing():
            output: Tensor = self._model(x)
            losses = self._loss(output, y)
            right = (output.argmax(1) == y) if classifies else torch.zeros(len(w))
        sums = {
            "loss_sum": (losses * w).sum().item(),
            "correct_count": (right * w).sum().item(),
            "weight_sum": w.sum().item(),
        }
        return output, sums

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._kind) if tensor.is_floating_point() else tensor

    @contextmanager
    def _computing(self) -> Generator[None]:
        """Compute in this reference's type, also what the model itself makes in float32."""
        if self._kind != torch.float64:
            yield
            return
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with _InFloat64():
                yield
        finally:
            torch.set_default_dtype(before)


class _InFloat64(TorchFunctionMode):
    """Replaces float32, in casts, in new tensors and in a model's own constants, by float64."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function on what float64 makes of its arguments."""
        wide = torch.Tensor.double if func is torch.Tensor.float else func
        arguments, keywords = tree_map(_widened, (args, dict(kwargs or {})))
        return wide(*arguments, **keywords)


def _widened(value: object) -> object:
    if value is torch.float32:
        return torch.float64
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.double()
    return value


def exact(model: nn.Module, layout: Layout, loss: RowLoss, momentum: float, batch: Batch) -> Eager:
    """A reference in float64, or in float32 for a model that computes in nothing else."""
    found = Eager(model, layout, loss, momentum, torch.float64)
    try:
        copy.deepcopy(found).differentiate(batch)
    except RuntimeError:
        return Eager(model, layout, loss, momentum)
    return found


def shaken(theta: Theta, rng: np.random.Generator) -> Theta:
    """theta (n,) with every value moved to its next neighbour, up or down."""
    signs = rng.choice(np.array([-np.inf, np.inf], np.float32), theta.size)
    moved: Theta = np.nextafter(theta, signs)
    return moved


def _flat(tensors: Sequence[Tensor]) -> Vector:
    return np.concatenate([t.detach().reshape(-1).double().numpy() for t in tensors])
