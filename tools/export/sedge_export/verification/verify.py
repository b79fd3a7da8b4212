"""The fourth stage: compares every program with eager torch in float64 (``yardstick``), over a few steps.

If a program disagrees on a batch, the batch is replaced only if a kink is proven, at most a few times,
and the manifest lists each kink. Every step starts from the theta of the float64 run, because independent
runs would diverge from each other.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TypeAlias

import numpy as np
import torch

from sedge_edge.training.trainer import Guidance
from sedge_export.lowering.target import TARGETS
from sedge_export.programs import Array, File, Program
from sedge_export.stages import Inspected, Lowered
from sedge_export.subject.batches import PaddedBatch, Samples, draw
from sedge_export.subject.network import copied
from sedge_export.verification.yardstick import Answers, Yardstick, largest
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Verification
from sedge_protocol.wire.objective import CONSTANTS, COUNTS, Guide
from sedge_protocol.wire.programs import GUIDED

Programs: TypeAlias = Mapping[str, Program]

STEPS = 4
# How many batches may be replaced during these steps.
MAX_RETRIES = 8
# The largest change of a parameter in the first step, as a share of the largest parameter: far above
# theta's own rounding (6e-8), and far below where training becomes chaotic.
FIRST_MOVE = 0.02
# The largest change in a row's loss that rounding in float32 explains when the batch size changes. If
# rows affect each other, the change is larger.
MIXED = 1e-4


def verify(inspected: Inspected, lowered: Lowered, tolerance: float, seed: int) -> Verification:
    """Verify all programs. Returns the largest errors over all runtimes and sources of rows.

    All runtimes get the same batches. Raises ``ExportError`` if an error is too large, or if a runtime
    rejects a program.
    """
    loaded = {backend: _loaded(inspected, backend, files) for backend, files in lowered.items()}
    measured = _Measured()
    rng = torch.Generator().manual_seed(seed)
    for samples in inspected.sources:
        epoch = _Epoch(inspected, samples, tolerance, rng)
        theta = epoch.check_gradients(loaded, measured)
        epoch.check_evaluation(loaded, theta)
        if inspected.guide is not None:
            classes, chance = inspected.subject.num_classes, np.random.default_rng(seed)
            given = _given(inspected.guide, theta, classes, chance)
            _Epoch(inspected, samples, tolerance, rng, given).check_gradients(loaded, measured)
    packages = {name for backend in lowered for name in TARGETS[backend].packages}
    return Verification(
        step_error=measured.errors[0],
        epoch_error=max(measured.errors),
        tolerance=tolerance,
        versions={name: version(name) for name in sorted({*packages, "torch"})},
        torch_error=max(measured.torch),
        kinks=tuple(measured.kinks),
    )


def _given(guide: Guide, theta: Theta, classes: int, rng: np.random.Generator) -> Guidance:
    """Return random inputs for the guided loss: models near theta (n,), constants, and counts.

    Constants are from 0.5 to 1.5, and counts may be 0.
    """
    models: dict[str, Theta] = {
        name: theta * rng.uniform(0.9, 1.1, theta.size).astype(np.float32) for name in guide.models
    }
    arrays: dict[str, Theta] = {}
    if guide.constants:
        arrays[CONSTANTS] = rng.uniform(0.5, 1.5, guide.constants).astype(np.float32)
    if guide.counts:
        arrays[COUNTS] = rng.integers(0, 4, classes).astype(np.float32) ** 2
    return Guidance(models, arrays)


def _loaded(inspected: Inspected, backend: str, files: Mapping[str, File]) -> Programs:
    """Load a runtime's programs. Inputs that stay the same in every call are already bound."""

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
    """The gradient errors at each step, for programs and for eager float32, and replaced batches' kinks."""

    errors: list[float] = field(default_factory=list[float])
    torch: list[float] = field(default_factory=list[float])
    kinks: list[str] = field(default_factory=list[str])


class _Epoch:
    """Compares programs with eager torch on batches from one source of rows.

    With ``given``, the guided program is compared instead of ``gradient``.
    """

    def __init__(
        self, inspected: Inspected, samples: Samples, tolerance: float, rng: torch.Generator,
        given: Guidance | None = None,
    ) -> None:  # fmt: skip
        subject = inspected.subject
        self._model, self._objective = subject.model, subject.choice.rows
        self._theta, self._noise = subject.network.theta, inspected.noise
        self._samples, self._batch_size = samples, len(subject.x)
        self._rng, self._tolerance = rng, tolerance
        # Devices do not pad batches if the model has batch statistics or random numbers.
        fixed = subject.network.uses_batch_statistics or self._noise or self._batch_size == 1
        self._pads = not fixed
        self._yardstick = Yardstick(
            self._model, subject.network.layout, self._objective, self._draw(False), given=given
        )
        self._program, self._held = "gradient", dict[str, Array]()
        if given is not None:
            self._program, self._held = GUIDED, {**given.inputs}
        self._rate = FIRST_MOVE * max(largest(self._theta), 1e-3) / self._yardstick.steepest

    def _draw(self, padded: bool) -> PaddedBatch:
        return draw(self._samples, self._batch_size, padded, self._noise, self._rng)

    def check_gradients(self, loaded: Mapping[str, Programs], measured: _Measured) -> Theta:
        """Compare the gradient on each batch. The last batch is padded if the model allows it.

        Returns theta after as many steps of the float64 run.
        """
        theta, retries = self._theta, MAX_RETRIES
        for index in range(STEPS):
            padded = self._pads and index == STEPS - 1
            while True:
                batch = self._draw(padded)
                try:
                    self._check_gradient(loaded, theta, batch, measured)
                    break
                except ExportError:
                    if padded:
                        self._require_separate_rows(batch)
                    kink = self._yardstick.kink(theta, batch) if retries else None
                    if kink is None:
                        raise
                    retries -= 1
                    measured.kinks.append(kink)
            theta = self._yardstick.descend(self._rate)
        return theta

    def _require_separate_rows(self, batch: PaddedBatch) -> None:
        """Raise ``ExportError`` if the padding of a batch changes the losses of its real rows."""
        model, objective = copied(self._model).train(), self._objective
        with torch.no_grad():
            whole = objective.loss(model(batch.x), batch.y)[: batch.rows]
            alone = objective.loss(model(batch.x[: batch.rows]), batch.y[: batch.rows])
        if not torch.allclose(whole, alone, rtol=MIXED, atol=MIXED):
            raise ExportError(
                "model or loss: a row's loss depends on the other rows of its batch, as with x.mean() or"
                " x.sum(0); expected rows that do not depend on each other, because devices fill up batches"
                " with padding: leave out axis 0, as in x.mean(1). Only BatchNorm may mix rows"
            )

    def _check_gradient(
        self, loaded: Mapping[str, Programs], theta: Theta, batch: PaddedBatch, measured: _Measured
    ) -> None:
        feed = {"theta": theta, **_arrays(batch), **self._held}
        if self._noise:
            feed["noise"] = batch.noise.numpy()
        truth = self._yardstick.gradient(theta, batch)
        answers: list[Answers] = []
        for backend, programs in loaded.items():
            with _naming(f"{backend}: program {self._program!r} disagrees with torch"):
                result = programs[self._program](feed)
                left = result.get("statistics", np.empty(0, np.float32))
                found = self._yardstick.answers(result["gradient"], float(result["loss"]), left)
                truth.check(found, self._tolerance)
                answers.append(found)
        measured.errors.append(truth.gradient_error(answers))
        measured.torch.append(truth.gradient_error(truth.rounded))

    def check_evaluation(self, loaded: Mapping[str, Programs], theta: Theta) -> None:
        """Compare ``evaluate`` and ``predict`` at ``theta``, which should not be the initial theta."""
        for padded in (False, self._pads):
            batch = self._draw(padded)
            truth = self._yardstick.evaluation(theta, batch, self._tolerance)
            for backend, programs in loaded.items():
                with _naming(f"{backend}: program 'evaluate' or 'predict' disagrees with torch"):
                    truth.check(_outputs(programs, theta, batch), self._tolerance)


def _outputs(programs: Programs, theta: Theta, batch: PaddedBatch) -> Answers:
    """Run ``evaluate`` and ``predict``. Returns their results by name."""
    feed = {"theta": theta, **_arrays(batch)}
    sums = programs["evaluate"](feed)
    logits = programs["predict"]({"theta": theta, "x": feed["x"]})["logits"]
    named = {name: value.reshape(1).astype(np.float64) for name, value in sums.items()}
    return {"logits": logits.astype(np.float64), **named}


def _arrays(batch: PaddedBatch) -> dict[str, Array]:
    return {"x": batch.x.numpy(), "y": batch.y.numpy(), "w": batch.w.numpy()}
