"""The reference for verification: the user's own model in plain eager torch, in float64 or float32.

It uses autograd and torch.optim.SGD, only on real rows, and shares no code with the tracing. In float64
it gives the correct result; in float32 it shows how accurate float32 is.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from sedge_edge.backends.draws import draws
from sedge_edge.backends.guided import GuideInputs, Pass, features_of
from sedge_edge.backends.rows import Objective
from sedge_edge.training.trainer import Guidance
from sedge_export.subject.batches import PaddedBatch
from sedge_export.subject.network import copied
from sedge_protocol.layout import Layout, Theta

Vector: TypeAlias = NDArray[np.float64]


class Eager:
    """A copy of the model with its optimizer, which computes in the type ``kind``.

    Images and filters are laid out in ``format``. With ``given``, the loss is the guided one.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, objective: Objective,
        kind: torch.dtype = torch.float32,
        format: torch.memory_format = torch.contiguous_format,
        given: Guidance | None = None,
    ) -> None:  # fmt: skip
        self._model = copied(model).to(kind)
        self._layout, self._objective, self._kind = layout, objective, kind
        self._format = format
        for parameter in self._model.parameters():
            parameter.data = self._laid(parameter.data)
        self._tensors = _tensors(self._model, layout)
        self._given, self._references = given, dict[str, nn.Module]()
        for name, theta in {} if given is None else given.models.items():
            self._references[name] = copied(model).to(kind).eval()
            _place(_tensors(self._references[name], layout), layout, theta)
        trainable = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.SGD(trainable, lr=1.0)

    @property
    def theta(self) -> Vector:
        """The model's parameters and statistics (n,)."""
        return _flat([tensor.detach() for tensor in self._tensors])

    @property
    def gradient(self) -> Vector:
        """The last gradient (n,), 0 for tensors without one."""
        return _flat([torch.zeros_like(t) if t.grad is None else t.grad for t in self._tensors])

    def place(self, theta: Theta) -> None:
        """Set the model to theta (n,)."""
        _place(self._tensors, self._layout, theta)

    def descend(self, learning_rate: float) -> None:
        """Take a step along the last gradient."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()

    def differentiate(self, batch: PaddedBatch) -> float:
        """Compute the gradient, and update the statistics. Returns the loss."""
        self._model.train()
        self._model.zero_grad()
        x, y, w = (self._cast(t[: batch.rows]) for t in (batch.x, batch.y, batch.w))
        if self._format == torch.channels_last and x.is_floating_point():
            # A GroupNorm whose input needs no gradient crashes torch 2.13. A clone allows in-place layers.
            x = x.detach().requires_grad_().clone()
        with self._computing():
            with draws(batch.noise), features_of(self._model) as features:
                output = self._model(x)
            losses = self._objective.loss(output, y)
            if self._given is not None:
                losses = self._guided(self._given, losses, Pass(output, features()), x, y)
        loss = (losses * w).sum() / w.sum()
        torch.autograd.backward(loss)
        # An unused layer has no gradient here, but a gradient of 0 in a program.
        for tensor in self._tensors:
            if tensor.requires_grad and tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
        return loss.item()

    def _guided(self, given: Guidance, own: Tensor, now: Pass, x: Tensor, y: Tensor) -> Tensor:
        """Return the guided loss of each row (B,)."""
        passes: dict[str, Pass] = {}
        for name, model in self._references.items():
            with torch.no_grad(), features_of(model) as features:
                passes[name] = Pass(model(x), features())
        arrays = {name: self._cast(torch.from_numpy(a)) for name, a in given.arrays.items()}
        assert self._objective.guided is not None
        return self._objective.guided.rows(own, now, y, GuideInputs(passes, arrays))

    def evaluate(self, batch: PaddedBatch) -> tuple[Tensor, dict[str, float]]:
        """Return all rows' outputs (B, ...), and the sums that the program ``evaluate`` must return."""
        self._model.eval()
        x, y, w = (self._cast(t) for t in (batch.x, batch.y, batch.w))
        with torch.no_grad(), self._computing():
            output: Tensor = self._model(x)
            sums = self._objective.sums(output, y, w)
        names = ("loss_sum", "metric_sum", "weight_sum")
        return output, {name: value.item() for name, value in zip(names, sums, strict=True)}

    def _cast(self, tensor: Tensor) -> Tensor:
        tensor = self._laid(tensor)
        return tensor.to(self._kind) if tensor.is_floating_point() else tensor

    def _laid(self, tensor: Tensor) -> Tensor:
        return tensor.contiguous(memory_format=self._format) if tensor.ndim == 4 else tensor

    @contextmanager
    def _computing(self) -> Generator[None]:
        """In a ``with`` block, make a float64 model create its own values in float64, not in float32."""
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
    """Replaces float32 with float64 in casts, in new tensors and in a model's own constants."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function with float64 versions of its arguments."""
        wide = torch.Tensor.double if func is torch.Tensor.float else func
        arguments, keywords = tree_map(_widened, (args, dict(kwargs or {})))
        return wide(*arguments, **keywords)


def _widened(value: object) -> object:
    if value is torch.float32:
        return torch.float64
    if isinstance(value, Tensor) and value.dtype == torch.float32:
        return value.double()
    return value


def exact(
    model: nn.Module,
    layout: Layout,
    objective: Objective,
    batch: PaddedBatch,
    given: Guidance | None = None,
) -> Eager:
    """Return a reference, differentiated on ``batch``.

    It is in float64, or in float32 if the model fails in float64.
    """
    found = Eager(model, layout, objective, kind=torch.float64, given=given)
    try:
        found.differentiate(batch)
    except RuntimeError:
        found = Eager(model, layout, objective, given=given)
        found.differentiate(batch)
    return found


def _tensors(model: nn.Module, layout: Layout) -> list[Tensor]:
    by_name = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return [by_name[tensor.name] for tensor in layout.tensors]


def _place(tensors: Sequence[Tensor], layout: Layout, theta: Theta) -> None:
    """Write theta (n,) to the tensors of the layout."""
    with torch.no_grad():
        for tensor, spec in zip(tensors, layout.tensors, strict=True):
            tensor.copy_(torch.from_numpy(theta[spec.slice].reshape(spec.shape)))


def shaken(theta: Theta, rng: np.random.Generator) -> Theta:
    """Move every value of theta (n,) to its next float32 neighbour, up or down at random."""
    signs = rng.choice(np.array([-np.inf, np.inf], np.float32), theta.size)
    moved: Theta = np.nextafter(theta, signs)
    return moved


def _flat(tensors: Sequence[Tensor]) -> Vector:
    return np.concatenate([t.reshape(-1).double().numpy() for t in tensors])
