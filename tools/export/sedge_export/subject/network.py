"""Turns a model into pure functions of one flat vector: its gradient, evaluation and prediction.

theta (n,) holds in model order every parameter that requires a gradient, and every running statistic
that training updates. All other tensors are ``frozen`` (m,): parameters that require no gradient, and
statistics of a BatchNorm that is in evaluation mode even after ``model.train()``. The gradient is the
gradient of sum(w row_loss) / sum(w). The optimizer is part of the device
(``sedge_edge.training.optimizers``). Statistics have gradient 0; their new values after a training step
are a separate output. This module knows nothing about ONNX.
"""

import copy
from collections.abc import Callable, Generator, Set
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value
from torch.nn import functional
from torch.nn.parameter import is_lazy

from sedge_edge.backends.draws import draws
from sedge_edge.backends.guided import GuideInputs, Pass, features_of
from sedge_edge.backends.replaced import replaced
from sedge_edge.backends.rows import Objective
from sedge_export.subject.refusals import require_exportable
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.layout import Tensor as LayoutTensor

Sums: TypeAlias = tuple[Tensor, Tensor, Tensor]
PassRows: TypeAlias = Callable[[Pass, Tensor], Tensor]
T = TypeVar("T", Tensor, Pass)

# Prevents 0 / 0 if all rows of a batch are padding. Any real sum of weights is far larger.
MIN_WEIGHT_SUM = 1e-12
NO_GRADIENT = (
    "does not depend on the model's parameters: something detaches it, runs under torch.no_grad, or returns"
    " whole numbers (argmax, round)"
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class Network:
    """A private copy of a model, in training mode, and its layout.

    ``frozen`` is the layout of the tensors that are not in theta, or None. The methods take values for
    these tensors as ``frozen`` (m,); if it is None, they use the model's own. Raises ``ExportError`` if
    theta cannot hold the model.
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        self.model = copied(model).train()
        for name, module in self.model.named_modules():
            if isinstance(module, BATCH_NORMS) and module.track_running_stats:
                _make_functional(name, module)
        self.objective = objective
        self._tensors = _tensors(self.model)
        moving = {name for name, (t, _) in self._tensors.items() if t.requires_grad}
        if not moving:
            raise ExportError("model: no parameter requires a gradient")
        moving |= _moving_statistics(self.model)
        self.layout = self._layout(moving)
        held = self._tensors.keys() - moving
        self.frozen = self._layout(held) if held else None

    def _layout(self, names: Set[str]) -> Layout:
        return Layout.of(
            (name, tuple(tensor.shape), role)
            for name, (tensor, role) in self._tensors.items()
            if name in names
        )

    @property
    def theta(self) -> Theta:
        """The model's current parameters and statistics (n,)."""
        return self._values(self.layout)

    @property
    def frozen_values(self) -> Theta | None:
        """The values (m,) of the tensors that are not in theta; None if there are none."""
        return None if self.frozen is None else self._values(self.frozen)

    @property
    def tensors(self) -> dict[str, LayoutTensor]:
        """Every tensor by name, those in theta first."""
        frozen = {} if self.frozen is None else self.frozen.by_name
        return {**self.layout.by_name, **frozen}

    def _values(self, layout: Layout) -> Theta:
        return layout.flatten({name: t.detach().numpy() for name, (t, _) in self._tensors.items()})

    @property
    def uses_batch_statistics(self) -> bool:
        """True if a row's result in training depends on the other rows of its batch."""
        untracked = (
            isinstance(module, BATCH_NORMS) and not module.track_running_stats
            for module in self.model.modules()
        )
        return bool(self.layout.statistics) or any(untracked)

    @contextmanager
    def unchanged(self) -> Generator[None]:
        """After a ``with`` block, restore all attributes and dictionaries that a forward pass changed.

        A trace may leave tensors without values in buffers, hooks or a cache.
        """
        held = [
            (module, dict(vars(module)), [(each, dict(each)) for each in _dictionaries(module)])
            for module in self.model.modules()
        ]
        try:
            yield
        finally:
            for module, attributes, dictionaries in held:
                vars(module).clear()
                vars(module).update(attributes)
                for each, items in dictionaries:
                    _restore(each, items)

    def gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor,
        noise: Tensor | None = None, frozen: Tensor | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the gradient (n,) of a batch's mean loss, the loss, and the new statistics (s,), if any.

        ``noise`` (K,) holds the random numbers of the forward pass.
        """
        return self._flat_gradient(self.split(theta, frozen), x, y, w, noise)

    def guided(
        self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor, noise: Tensor | None = None,
        frozen: Tensor | None = None, **given: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        """Return the same as ``gradient``, for the guided loss.

        ``given`` are the inputs in its ``Guide``.
        """
        loss = self.objective.guided
        assert loss is not None
        seen = GuideInputs(
            {n: self._reference(given[n], frozen, x) for n in loss.guide.models}, given
        )

        def guided(now: Pass, y: Tensor) -> Tensor:
            return loss.rows(self._rows(self.objective.loss, now.outputs, y), now, y, seen)

        return self._flat_gradient(self.split(theta, frozen), x, y, w, noise, guided)

    def _reference(self, theta: Tensor, frozen: Tensor | None, x: Tensor) -> Pass:
        """Run a reference model (n,) in evaluation mode. Returns its outputs and features."""
        self.model.eval()
        with features_of(self.model) as features:
            outputs = self.predict(theta, x, frozen)
            seen = Pass(outputs, features())
        self.model.train()
        return seen

    def _flat_gradient(
        self, values: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor, noise: Tensor | None,
        guided: PassRows | None = None,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        with nullcontext() if noise is None else draws(noise):
            found, statistics, loss = self._gradient(values, x, y, w, guided)
        flat = torch.cat([found[t.name].reshape(-1) for t in self.layout.tensors])
        if not statistics:
            return flat, loss
        return flat, loss, torch.cat([value.reshape(-1) for value in statistics.values()])

    def evaluate(
        self, theta: Tensor, x: Tensor, y: Tensor, w: Tensor, frozen: Tensor | None = None
    ) -> Sums:
        """Return the sums of loss, metric and weights over a batch (see ``Objective.sums``)."""
        output = self.predict(theta, x, frozen)
        loss, metric = self.objective[:2]
        checked = Objective(partial(self._rows, loss), partial(self._rows, metric))
        return checked.sums(output, y, w)

    def predict(self, theta: Tensor, x: Tensor, frozen: Tensor | None = None) -> Tensor:
        """Return the model's outputs (B, ...)."""
        return self.output(self.split(theta, frozen), x)[0]

    def split(self, theta: Tensor, frozen: Tensor | None = None) -> dict[str, Tensor]:
        """Return views of theta (n,) and, if given, of ``frozen`` (m,) as tensors by name."""
        values = _views(self.layout, theta)
        if self.frozen is not None and frozen is not None:
            values |= _views(self.frozen, frozen)
        return values

    def output(self, values: dict[str, Tensor], x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the model's output, and its statistics after the forward pass."""
        updated = dict(values)
        output = functional_call(self.model, updated, (x,))
        return output, {name: updated[name] for name in self.layout.statistics}

    def _rows(self, function: Callable[[T, Tensor], Tensor], output: T, y: Tensor) -> Tensor:
        rows, count = function(output, y), len(y)
        if rows.shape != (count,):
            raise ExportError(
                f"loss: returns shape {tuple(rows.shape)}, expected one number per row, ({count},)"
            )
        return rows

    def _gradient(
        self, values: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor, guided: PassRows | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor]:
        """Return each tensor's gradient (0 for statistics), the new statistics, and the loss."""

        def mean_loss(trainable: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            if guided is None:
                output, statistics = self.output({**values, **trainable}, x)
                rows = self._rows(self.objective.loss, output, y)
            else:
                with features_of(self.model) as features:
                    output, statistics = self.output({**values, **trainable}, x)
                    rows = self._rows(guided, Pass(output, features()), y)
            total = (w * rows).sum()
            return total / w.sum().clamp_min(MIN_WEIGHT_SUM), statistics

        statistics = set(self.layout.statistics)
        trainable = {n: values[n] for n in self.layout.by_name if n not in statistics}
        gradient, (loss, updated) = _differentiate(mean_loss, trainable)
        zeros = {name: torch.zeros_like(values[name]) for name in self.layout.statistics}
        return {**gradient, **zeros}, updated, loss


def _dictionaries(module: nn.Module) -> list[dict[Any, Any]]:
    return [value for value in vars(module).values() if isinstance(value, dict)]


def _restore(dictionary: dict[Any, Any], items: dict[Any, Any]) -> None:
    same = dictionary.keys() == items.keys()
    if not same or any(dictionary[key] is not value for key, value in items.items()):
        dictionary.clear()
        dictionary.update(items)


Aux: TypeAlias = tuple[Tensor, dict[str, Tensor]]


def _differentiate(
    function: Callable[[dict[str, Tensor]], Aux], of: dict[str, Tensor]
) -> tuple[dict[str, Tensor], Aux]:
    """Return the gradient of a function's first result, and all results of the function.

    autograd runs a user's own ``Function`` unchanged. Under vmap, torch.func is used, because nothing
    else works there.
    """
    if torch._C._are_functorch_transforms_active():
        return grad_and_value(function, has_aux=True)(of)
    leaves = {name: values.detach().requires_grad_() for name, values in of.items()}
    results = function(leaves)
    if not results[0].requires_grad:
        raise ExportError(f"loss: {NO_GRADIENT}")
    torch.autograd.backward(results[0])
    gradient = {
        name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        for name, leaf in leaves.items()
    }
    return gradient, results


def random_numbers(model: nn.Module, x: Tensor) -> int:
    """Count the random numbers that the model draws for a batch x (B, ...) in training.

    Returns 0 for a model that fails on x, which is reported elsewhere.
    """
    with draws(None) as source, torch.no_grad(), suppress(Exception):
        copied(model).train()(x)
        return source.count
    return 0


def copied(model: nn.Module) -> nn.Module:
    """Copy the model to the CPU, sharing nothing. Raises ``ExportError`` if copying fails."""
    require_exportable(model)
    try:
        return copy.deepcopy(model).cpu()
    except (TypeError, RuntimeError) as exc:
        raise ExportError(f"model: cannot be copied: {exc}") from exc


def _make_functional(name: str, norm: nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d) -> None:
    """Make a batch-normalisation module return its new statistics instead of overwriting the old ones.

    aten.native_batch_norm changes its arguments but does not declare that in its schema, so a trace loses
    the change. The functional operator uses the same kernel and returns the statistics.
    """
    if norm.momentum is None:
        raise ExportError(
            f"module {name!r}: BatchNorm with momentum=None, expected a fixed momentum such as 0.1"
        )
    momentum = norm.momentum

    def batch_norm(x: Tensor, *_arguments: object, **_options: object) -> Tensor:
        mean, variance = norm.running_mean, norm.running_var
        result = torch.ops.aten._native_batch_norm_legit_functional(
            x, norm.weight, norm.bias, mean, variance, norm.training, momentum, norm.eps
        )
        if norm.training:
            norm.running_mean, norm.running_var = result[3], result[4]
        output: Tensor = result[0]
        return output

    own: Callable[..., Tensor] = type(norm).forward

    def forward(*inputs: Tensor) -> Tensor:
        """Run the module's own forward pass with the functional operator."""
        with replaced(functional, "batch_norm", batch_norm):
            return own(norm, *inputs)

    # The batch counter is needed only for a changing momentum, and a forward pass would change it in
    # place.
    norm.num_batches_tracked = None
    vars(norm)["forward"] = forward


def _views(layout: Layout, vector: Tensor) -> dict[str, Tensor]:
    parts = vector.split_with_sizes([t.size for t in layout.tensors])
    return {t.name: p.view(t.shape) for t, p in zip(layout.tensors, parts, strict=True)}


def _moving_statistics(model: nn.Module) -> set[str]:
    """Return the names of the running statistics that a forward pass of the unmodified model changes."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        if isinstance(module, BATCH_NORMS) and module.training
        for name in ("running_mean", "running_var")
    }


def _tensors(model: nn.Module) -> dict[str, tuple[Tensor, Role]]:
    """Return each parameter and running statistic once, by name, in model order."""
    tensors: dict[str, tuple[Tensor, Role]] = {}
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if is_lazy(parameter):
                raise ExportError(
                    f"parameter {name!r}: has no shape yet, expected a model that has run once"
                )
            if id(parameter) not in seen:  # a tied parameter appears once, under its first name
                seen.add(id(parameter))
                tensors[name] = parameter, Role.PARAMETER
        if isinstance(module, BATCH_NORMS):
            for name, buffer in module.named_buffers(prefix, recurse=False):
                if not name.endswith("num_batches_tracked"):
                    tensors[name] = buffer, Role.STATISTIC
    return tensors
