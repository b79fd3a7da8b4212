"""Judges computations of a model's gradient or evaluation against eager torch in float64.

Eager torch's own float32 error determines how far an answer, such as one tensor's gradient, may be off.
If that error is large, a correct program's error is as large, because the two differ only in their
order of summation. So an answer may be off by a share of its largest value plus a small multiple of
eager float32's error.

Rounding decides on which side of ReLU's kink an activation lies, and which of two tied elements wins in
a max pool. Eager float32 at the same values does not reveal that. So if an answer is off, the batch is
computed again from float32 neighbours of theta. If that does not explain the error, ``kink`` proves
whether the batch is inconclusive.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sedge_edge.backends.rows import Objective, accuracy, classes_first, label_accuracy
from sedge_edge.training.trainer import Guidance
from sedge_export.subject.batches import PaddedBatch
from sedge_export.verification import kinks
from sedge_export.verification.eager import Eager, Vector, exact, shaken
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout, Theta

Answers: TypeAlias = Mapping[str, Vector]

# Measured on 282 batches of 23 networks of tools/bench/zoo (three seeds, 16,566 answers) in
# onnxruntime: minus the other two allowances, an answer's error was at most 2.2 times eager torch's
# largest float32 error. The exceptions were two batches of MobileNetV2, each with a proven kink, where
# the factor was 65 to 510.
FACTOR = 4.0
# An extra allowance, as a share of the largest gradient or statistic of all. It is for values that
# should be 0, such as the gradient of a bias before a normalisation: two correct results for them share
# no digit.
FLOOR = 1e-7
# If an answer is off, eager torch computes the batch again at this many neighbours of theta. With fewer
# neighbours, more batches are replaced: with three, one in six of MobileNetV2's batches was.
SHAKEN = 16
GRADIENT, STATISTIC = "gradient of", "statistic"


@dataclass
class Truth:
    """The answers of eager torch in float64 (``right``) and in float32 (``rounded``).

    ``spare`` is how much further off each answer may be. ``more`` computes further float32 answers if
    the first ones do not explain an error.
    """

    right: Answers
    rounded: list[Answers]
    spare: dict[str, float] = field(default_factory=dict[str, float])
    more: Callable[[], Sequence[Answers]] | None = None

    def error(self, name: str) -> float:
        """Return the largest error of an answer among the float32 results."""
        return max(largest(one[name] - self.right[name]) for one in self.rounded)

    def allowed(self, name: str, tolerance: float) -> float:
        """Return how far an answer may be off."""
        share = tolerance * largest(self.right[name])
        return share + FACTOR * self.error(name) + self.spare.get(name, 0.0)

    def check(self, found: Answers, tolerance: float) -> None:
        """Raise ``ExportError`` if an answer is off by more than is allowed."""
        try:
            self._check(found, tolerance)
        except ExportError:
            if self.more is not None:
                self.rounded.extend(self.more())
                self.more = None
            self._check(found, tolerance)

    def _check(self, found: Answers, tolerance: float) -> None:
        for name, right in self.right.items():
            error, allowed = largest(found[name] - right), self.allowed(name, tolerance)
            if not error <= allowed:  # NaN is an error, too
                how = "wrong" if found[name].any() else "zero"
                raise ExportError(
                    f"the {name} is {how}: off by {error:.2g} of {largest(right):.2g}, expected at most"
                    f" {allowed:.2g}; eager torch in float32 is off by {self.error(name):.2g}"
                )

    @property
    def steepest(self) -> float:
        """The largest absolute value of any gradient."""
        return max(
            largest(right) for name, right in self.right.items() if name.startswith(GRADIENT)
        )

    def sparing(self, kind: str, more: float) -> "Truth":
        """Return a copy that allows an extra error of ``more`` for all answers of a kind."""
        names = [name for name in self.right if name.startswith(kind)]
        spare = {name: self.spare.get(name, 0.0) + more for name in names}
        return replace(self, spare={**self.spare, **spare})

    def of(self, *names: str) -> "Truth":
        """Return a copy with only the named answers."""
        return replace(self, right={name: self.right[name] for name in names})

    def gradient_error(self, answers: Sequence[Answers]) -> float:
        """Return the largest error of any gradient, as a share of the largest gradient."""
        names = [name for name in self.right if name.startswith(GRADIENT)]
        return (
            max(largest(one[n] - self.right[n]) for one in answers for n in names) / self.steepest
        )


class Yardstick:
    """A model in eager torch: in float64, and in float32 in each of several memory formats.

    The last format should be the least accurate: it is used for neighbours of theta and for the search for
    kinks.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, objective: Objective, first: PaddedBatch,
        formats: Sequence[torch.memory_format] = (torch.contiguous_format,),
        given: Guidance | None = None,
    ) -> None:  # fmt: skip
        self._layout, self._metric = layout, objective.metric
        self._exact = exact(model, layout, objective, first, given)
        self._plain = [
            Eager(model, layout, objective, format=each, given=given) for each in formats
        ]
        _require_finite({"gradient": self._exact.gradient})
        self.steepest = largest(self._exact.gradient)
        if not self.steepest:
            raise ExportError("model: torch's gradient on a sample batch is 0")

    def gradient(self, theta: Theta, batch: PaddedBatch) -> Truth:
        """Return the gradients of a batch at theta (n,), its loss, and the new statistics."""

        def more() -> list[Answers]:
            rng = np.random.default_rng(0)
            thetas = [shaken(theta, rng) for _ in range(SHAKEN)]
            return [self._differentiated(self._plain[-1], each, batch) for each in thetas]

        right = self._differentiated(self._exact, theta, batch)
        _require_finite(right)
        rounded = [self._differentiated(eager, theta, batch) for eager in self._plain]
        spare: dict[str, float] = {}
        for kind in (GRADIENT, STATISTIC):
            names = [name for name in right if name.startswith(kind)]
            most = max((largest(right[name]) for name in names), default=0.0)
            spare |= dict.fromkeys(names, FLOOR * most)
        return Truth(right, rounded, spare, more)

    def descend(self, rate: float) -> Theta:
        """Take a float64 step along the last gradient. Returns theta (n,) after the step."""
        self._exact.descend(rate)
        return self._exact.theta.astype(np.float32)

    def answers(self, gradient: NDArray[Any], loss: float, statistics: NDArray[Any]) -> Answers:
        """Split a gradient (n,) and statistics (s,) by tensor, and name each answer."""
        answers = {"loss": np.array([loss])}
        offset = 0
        for tensor in self._layout.tensors:
            answers[f"{GRADIENT} {tensor.name!r}"] = gradient[tensor.slice].astype(np.float64)
            if tensor.name in self._layout.statistics:
                values = statistics[offset : offset + tensor.size].astype(np.float64)
                answers[f"{STATISTIC} {tensor.name!r}"] = values
                offset += tensor.size
        return answers

    def statistics(self, theta: NDArray[Any]) -> NDArray[Any]:
        """Return the statistics (s,) of theta (n,), concatenated."""
        tensors = [t for t in self._layout.tensors if t.name in self._layout.statistics]
        return np.concatenate([np.zeros(0), *(theta[tensor.slice] for tensor in tensors)])

    def _differentiated(self, eager: Eager, theta: Theta, batch: PaddedBatch) -> Answers:
        eager.place(theta)
        loss = eager.differentiate(batch)
        return self.answers(eager.gradient, loss, self.statistics(eager.theta))

    def kink(self, theta: Theta, batch: PaddedBatch) -> str | None:
        """Return the name of an operator with a kink within rounding of the batch's values, or None.

        With a kink, the batch is inconclusive.
        """
        for eager in (self._exact, self._plain[-1]):
            eager.place(theta)
        return kinks.found(self._exact, self._plain[-1], batch)

    def evaluation(self, theta: Theta, batch: PaddedBatch, tolerance: float) -> Truth:
        """Return a batch's outputs at theta (n,), and the sums that ``evaluate`` must return."""
        right, *rounded = (
            self._evaluated(eager, theta, batch) for eager in (self._exact, *self._plain)
        )
        _require_finite(right)
        truth = Truth(right, rounded)
        gap = 2 * truth.allowed("logits", tolerance)
        truth.spare["metric_sum"] = self._undecided(right["logits"], batch, gap)
        return truth

    def _evaluated(self, eager: Eager, theta: Theta, batch: PaddedBatch) -> Answers:
        eager.place(theta)
        output, sums = eager.evaluate(batch)
        named = {name: np.array([value]) for name, value in sums.items()}
        return {"logits": output.double().numpy(), **named}

    def _undecided(self, logits: Vector, batch: PaddedBatch, gap: float) -> float:
        """Return the weight of rows whose class float32 may change: their logits are within ``gap``."""
        w = batch.w.numpy()
        if self._metric is label_accuracy:
            near = np.abs(logits) <= gap
            return float(w @ near.reshape(len(near), -1).mean(1))
        if self._metric is not accuracy or logits.shape[1] < 2:
            return 0.0
        first_axis = classes_first(torch.from_numpy(logits), batch.y).numpy()
        second, first = np.moveaxis(np.sort(first_axis, 1)[:, -2:], 1, 0)
        near = (first - second <= gap).reshape(len(w), -1)
        return float(w @ near.sum(1))


def _require_finite(answers: Answers) -> None:
    """Raise ``ExportError`` if torch itself gives NaN or inf in float64, which no program can match."""
    for name, values in answers.items():
        if not np.isfinite(values).all():
            raise ExportError(
                f"model: the {name} holds NaN or inf in torch itself, expected finite numbers; look for"
                " attention in which every key is masked, 0 / 0 and log(0)"
            )


def largest(values: NDArray[Any]) -> float:
    """Return the largest absolute value."""
    return float(np.abs(values).max(initial=0.0))
