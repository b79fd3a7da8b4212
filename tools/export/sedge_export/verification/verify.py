"""Verification: every program against eager torch in float64, on the batches of an epoch.

The yardstick is eager torch's own float32: where that is inexact, a right program is as inexact, as the
two differ in no more than their order of summation. So an answer of a program, such as one tensor's
gradient, may be off by a share of its largest value, and by a small multiple of eager float32's own error.

An activation on the kink of ReLU, or a tie of a max pool, is decided by rounding, and eager float32 at the
same values tells nothing about it. So a batch on which a program disagrees is computed again from theta's
float32 neighbours. Another batch is tried only where a kink is proven, a few times, and the manifest names
each. Every step of the epoch starts from float64's theta, because two free trajectories diverge.
"""

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from sedge_edge.backends.rows import accuracy, label_accuracy
from sedge_export.lowering.target import TARGETS
from sedge_export.programs import Array, File, Program
from sedge_export.stages import Inspected, Lowered
from sedge_export.subject.batches import Batch, Samples, draw
from sedge_export.verification import kinks
from sedge_export.verification.eager import Eager, Vector, exact, shaken
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Verification

Answers: TypeAlias = dict[str, Vector]
Programs: TypeAlias = Mapping[str, Program]

STEPS = 4
# Measured on 282 batches of 23 networks of tools/bench/zoo (three seeds, 16,566 answers) in onnxruntime:
# beyond the two floors, an answer's error was at most 2.2 times the largest error of eager torch's float32,
# except on two batches of MobileNetV2, each with a proven kink, where it was 65 to 510 times that.
FACTOR = 4.0
# The share of the largest of all gradients, or statistics, that any of them may be off by: two right
# computations of what is 0, such as the gradient of a bias in front of a normalisation, share no digit.
FLOOR = 1e-7
# How often eager torch computes a batch again on which a program disagrees, from neighbours of theta. The
# fewer, the more batches are replaced: with three, every sixth of MobileNetV2's was.
SHAKEN = 16
# Batches that may be replaced in these steps.
MAX_RETRIES = 8
# The steepest parameter's first move, as a share of the largest value: far above the rounding of theta
# itself (6e-8), far below where training becomes chaotic.
FIRST_MOVE = 0.02
GRADIENT, STATISTIC = "gradient of", "statistic"


def verify(inspected: Inspected, lowered: Lowered, tolerance: float, seed: int) -> Verification:
    """The largest errors over all runtimes and sources of rows. All runtimes meet the same batches.

    Raises ``ExportError`` when one is too large, or when a runtime refuses a program.
    """
    loaded = {backend: _loaded(inspected, backend, files) for backend, files in lowered.items()}
    measured = _Measured()
    rng = torch.Generator().manual_seed(seed)
    for samples in inspected.sources:
        epoch = _Epoch(inspected, samples, tolerance, rng)
        theta = epoch.check_gradients(loaded, measured)
        epoch.check_evaluation(loaded, theta)
    packages = {name for backend in lowered for name in TARGETS[backend].packages}
    return Verification(
        step_error=measured.errors[0],
        epoch_error=max(measured.errors),
        tolerance=tolerance,
        versions={name: version(name) for name in sorted({*packages, "torch"})},
        torch_error=max(measured.torch),
        kinks=tuple(measured.kinks),
    )


def _loaded(inspected: Inspected, backend: str, files: Mapping[str, File]) -> Programs:
    """A runtime's programs, with the inputs that are the same in every run."""

    def fed(name: str, file: File) -> Program:
        program = TARGETS[backend].load(file.data, inspected.signatures[name])
        return lambda feed: program({**feed, **inspected.constant})

    with _naming(backend):
        return {name: fed(name, file) for name, file in files.items()}


@contextmanager
def _naming(what: str) -> Generator[None]:
    try:
        yield
    except ExportError as exc:
        raise ExportError(f"{what}: {exc}") from exc


@dataclass
class _Measured:
    """The error of each step's gradient, eager float32's, and the kinks for which a batch was replaced."""

    errors: list[float] = field(default_factory=list[float])
    torch: list[float] = field(default_factory=list[float])
    kinks: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class _Truth:
    """The answers of eager torch in float64, and those that it gives in float32."""

    right: Answers
    rounded: list[Answers]

    def error(self, name: str) -> float:
        """How far the worst of float32's answers is from the right one."""
        return max(_largest(one[name] - self.right[name]) for one in self.rounded)


class _Epoch:
    """Runs programs beside eager torch, on batches of one source of rows."""

    def __init__(
        self, inspected: Inspected, samples: Samples, tolerance: float, rng: torch.Generator
    ) -> None:
        subject = inspected.subject
        self._network, self._layout = subject.network, subject.network.layout
        self._noise, self._batch_size = inspected.noise, len(subject.x)
        self._samples, self._rng, self._tolerance = samples, rng, tolerance
        # Devices never pad the batches of a model with batch statistics or random numbers.
        self._pads = not (
            self._network.uses_batch_statistics or self._noise or self._batch_size == 1
        )
        objective = self._network.objective
        self._exact = exact(subject.model, self._layout, objective, self._draw(False))
        self._plain = Eager(subject.model, self._layout, objective)
        self._rate = self._learning_rate()

    def _draw(self, padded: bool) -> Batch:
        return draw(self._samples, self._batch_size, padded, self._noise, self._rng)

    def _learning_rate(self) -> float:
        steepest = _largest(self._exact.gradient)
        if not 0.0 < steepest < math.inf:
            raise ExportError(f"model: torch's largest gradient on a sample batch is {steepest}")
        return FIRST_MOVE * max(_largest(self._network.theta), 1e-3) / steepest

    def check_gradients(self, loaded: Mapping[str, Programs], measured: _Measured) -> Theta:
        """Compare ``gradient`` on each batch; the last is padded if the model allows it.

        Returns theta after as many steps of float64.
        """
        theta, retries = self._network.theta, MAX_RETRIES
        for index in range(STEPS):
            padded = self._pads and index == STEPS - 1
            while True:
                batch = self._draw(padded)
                try:
                    self._check_gradient(loaded, theta, batch, measured)
                    break
                except ExportError:
                    kink = self._kink(theta, batch) if retries else None
                    if kink is None:
                        raise
                    retries -= 1
                    measured.kinks.append(kink)
            self._exact.descend(self._rate)
            theta = self._exact.theta.astype(np.float32)
        return theta

    def _check_gradient(
        self, loaded: Mapping[str, Programs], theta: Theta, batch: Batch, measured: _Measured
    ) -> None:
        feed = {"theta": theta, **_arrays(batch)}
        if self._noise:
            feed["noise"] = batch.noise.numpy()
        right = self._differentiated(self._exact, theta, batch)
        truth = _Truth(right, [self._differentiated(self._plain, theta, batch)])
        gradients = [name for name in right if name.startswith(GRADIENT)]
        steepest = max(_largest(right[name]) for name in gradients)
        spare = dict.fromkeys(gradients, FLOOR * steepest)
        statistics = [name for name in right if name.startswith(STATISTIC)]
        most = max((_largest(right[name]) for name in statistics), default=0.0)
        spare |= dict.fromkeys(statistics, FLOOR * most)
        answers: list[Answers] = []
        for backend, programs in loaded.items():
            with _naming(f"{backend}: program 'gradient' disagrees with torch"):
                result = programs["gradient"](feed)
                found = self._answers(
                    result["gradient"], float(result["loss"]), result.get("statistics")
                )
                self._check_shaken(found, truth, spare, theta, batch)
                answers.append(found)
        for errors, given in ((measured.errors, answers), (measured.torch, truth.rounded)):
            errors.append(
                max(_largest(one[name] - right[name]) for one in given for name in gradients)
                / steepest
            )

    def _check_shaken(
        self, found: Answers, truth: _Truth, spare: Mapping[str, float], theta: Theta, batch: Batch
    ) -> None:
        """Check an answer, if need be once more beside what float32 gives for theta's neighbours."""
        try:
            self._check(found, truth, spare)
        except ExportError:
            if len(truth.rounded) == 1:
                rng = np.random.default_rng(0)
                truth.rounded.extend(
                    self._differentiated(self._plain, shaken(theta, rng), batch)
                    for _ in range(SHAKEN)
                )
            self._check(found, truth, spare)

    def _differentiated(self, eager: Eager, theta: Theta, batch: Batch) -> Answers:
        eager.place(theta)
        loss = eager.differentiate(batch)
        return self._answers(eager.gradient, loss, self._statistics(eager.theta))

    def _answers(
        self, gradient: NDArray[Any], loss: float, statistics: NDArray[Any] | None
    ) -> Answers:
        """What ``gradient`` returns, by what it is."""
        answers = {"loss": np.array([loss])}
        offset = 0
        for tensor in self._layout.tensors:
            answers[f"{GRADIENT} {tensor.name!r}"] = gradient[tensor.slice].astype(np.float64)
            if statistics is not None and tensor.name in self._layout.statistics:
                values = statistics[offset : offset + tensor.size].astype(np.float64)
                answers[f"{STATISTIC} {tensor.name!r}"] = values
                offset += tensor.size
        return answers

    def _statistics(self, theta: Vector) -> Vector:
        """The statistics (s,) of theta (n,), one after the other."""
        tensors = [t for t in self._layout.tensors if t.name in self._layout.statistics]
        return np.concatenate([np.zeros(0), *(theta[tensor.slice] for tensor in tensors)])

    def _allowed(self, name: str, truth: _Truth) -> float:
        return self._tolerance * _largest(truth.right[name]) + FACTOR * truth.error(name)

    def _check(self, found: Answers, truth: _Truth, spare: Mapping[str, float]) -> None:
        """Raise ``ExportError`` for an answer that is further off than float32 explains."""
        for name, right in truth.right.items():
            error = _largest(found[name] - right)
            allowed = self._allowed(name, truth) + spare.get(name, 0.0)
            if not error <= allowed:  # NaN is an error too
                how = "wrong" if found[name].any() else "zero"
                raise ExportError(
                    f"the {name} is {how}: off by {error:.2g} of {_largest(right):.2g}, expected at most"
                    f" {allowed:.2g}; eager torch in float32 is off by {truth.error(name):.2g}"
                )

    def _kink(self, theta: Theta, batch: Batch) -> str | None:
        """The operator with a kink within rounding of the batch, which proves that it says nothing."""
        for eager in (self._exact, self._plain):
            eager.place(theta)
        return kinks.found(self._exact, self._plain, batch)

    def check_evaluation(self, loaded: Mapping[str, Programs], theta: Theta) -> None:
        """Compare ``evaluate`` and ``predict`` at a theta that is not the initial one."""
        for eager in (self._exact, self._plain):
            eager.place(theta)
        for padded in (False, self._pads):
            batch = self._draw(padded)
            right, rounded = (self._evaluated(eager, batch) for eager in (self._exact, self._plain))
            truth = _Truth(right, [rounded])
            gap = 2 * self._allowed("logits", truth)
            spare = {"metric_sum": self._undecided(right["logits"], batch, gap)}
            for backend, programs in loaded.items():
                with _naming(f"{backend}: program 'evaluate' or 'predict' disagrees with torch"):
                    self._check(_outputs(programs, theta, batch), truth, spare)

    def _evaluated(self, eager: Eager, batch: Batch) -> Answers:
        output, sums = eager.evaluate(batch)
        named = {name: np.array([value]) for name, value in sums.items()}
        return {"logits": output.double().numpy(), **named}

    def _undecided(self, logits: Vector, batch: Batch, gap: float) -> float:
        """The weight of what is counted by logits (B, ...) so near that float32 may exchange them."""
        metric, w = self._network.objective.metric, batch.w.numpy()
        if metric is label_accuracy:
            near = np.abs(logits) <= gap
            return float(w @ near.reshape(len(near), -1).mean(1))
        if metric is not accuracy or logits.shape[1] < 2:
            return 0.0
        second, first = np.sort(logits, 1)[:, -2:].T
        return float(w[first - second <= gap].sum())


def _largest(values: NDArray[Any]) -> float:
    return float(np.abs(values).max(initial=0.0))


def _arrays(batch: Batch) -> dict[str, Array]:
    return {"x": batch.x.numpy(), "y": batch.y.numpy(), "w": batch.w.numpy()}


def _outputs(programs: Programs, theta: Theta, batch: Batch) -> Answers:
    """What ``evaluate`` and ``predict`` return."""
    feed = {"theta": theta, **_arrays(batch)}
    sums = programs["evaluate"](feed)
    logits = programs["predict"]({"theta": theta, "x": feed["x"]})["logits"]
    named = {name: value.reshape(1).astype(np.float64) for name, value in sums.items()}
    return {"logits": logits.astype(np.float64), **named}
