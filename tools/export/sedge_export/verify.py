"""Verification: every program against plain eager torch, for a step, a whole epoch, and evaluation.

What is right is the user's model in float64. How exact float32 can be, eager torch itself shows: a program
passes when its error is at most the tolerance plus ``FACTOR`` times eager float32's own. Errors are
max |difference of theta| / max |change of theta|. Compilers do lose gradients silently, so each tensor's
gradient is also compared on its own.

A few activations lie so close to the kink of ReLU, or a tie of max pooling, that rounding decides them, and
then neither side is right. Such a batch is replaced by another, a limited number of times, only after
float64 has proven the kink (``kinks``), and the manifest says how often. Both sides start each step of an
epoch from torch's state, while the differences are summed up, because two free trajectories of a deep
network diverge chaotically.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sedge_export import kinks
from sedge_export.batches import Batch, Samples, draw
from sedge_export.eager import FACTOR, MOST, Eager, Vector, allowance, exact, shaken
from sedge_export.network import Network
from sedge_protocol.errors import ExportError
from sedge_protocol.host.onnx_runtime import library, open_session
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Verification

Array: TypeAlias = NDArray[np.generic]
Program: TypeAlias = Callable[[Mapping[str, Array]], dict[str, NDArray[np.float32]]]

STEPS = 4
# The train programs, with the strength of their pull to an anchor.
TRAINS = {"train": 0.0, "train_prox": 0.1}
# Batches in one source of rows that a proven kink may cost.
MAX_RETRIES = 16
# Eager float32 steps again from neighbouring values, this often, before a disagreement counts: one step
# alone may happen to put every value on the right side of every kink.
SHAKEN = 3
MOMENTUM = 0.9
# The steepest parameter's first move, as a share of the largest value: far above the rounding of theta
# itself (6e-8), far below where training becomes chaotic.
FIRST_MOVE = 0.02
# The error allowed in each tensor's gradient, in tolerances of its largest element: small gradients carry
# more rounding, while a lost one is off by 100 %. Below the floor everything is rounding, such as the
# gradient of a bias in front of a normalisation.
TENSOR_GRADIENT_FACTOR = 100
GRADIENT_FLOOR = 1e-5


def load_program(name: str, data: bytes) -> Program:
    """A program in onnxruntime on one thread, as a function from named arrays to named arrays.

    Raises ``ExportError`` for a program that onnxruntime refuses.
    """
    options = library().SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = open_session(data, options)
    except Exception as exc:  # onnxruntime's exceptions have no common base
        raise ExportError(f"program {name!r} cannot be loaded: {exc}") from exc
    names = [output.name for output in session.get_outputs()]

    def run(feed: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        try:
            outputs = session.run(names, dict(feed))
            return dict(zip(names, cast(list[NDArray[np.float32]], outputs), strict=True))
        except Exception as exc:
            raise ExportError(f"program {name!r}: onnxruntime cannot run it: {exc}") from exc

    return run


def verify(
    programs: Mapping[str, bytes], model: nn.Module, network: Network, sources: Sequence[Samples],
    batch_size: int, tolerance: float, rng: torch.Generator,
) -> Verification:  # fmt: skip
    """The largest errors over all sources of rows. Raises ``ExportError`` when they stay too large."""
    loaded = {name: load_program(name, data) for name, data in programs.items()}
    found: list[_Found] = []
    for samples in sources:
        epoch = _Epoch(model, network, samples, batch_size, tolerance, rng)
        found.append(epoch.run({name: loaded[name] for name in TRAINS}))
        with _named("program 'evaluate' or 'predict' disagrees with torch"):
            epoch.check_evaluation(loaded["evaluate"], loaded["predict"])
    return Verification(
        max(one.step for one in found),
        max(one.epoch for one in found),
        tolerance,
        {name: version(name) for name in ("onnx", "onnxruntime", "torch")},
        max(one.torch for one in found),
        tuple(kink for one in found for kink in one.kinks),
    )


@contextmanager
def _named(what: str) -> Generator[None]:
    try:
        yield
    except ExportError as exc:
        raise ExportError(f"{what}: {exc}") from exc


@dataclass(frozen=True)
class _Found:
    """Errors after one step and after an epoch, eager float32's own, and the kinks that cost a batch."""

    step: float
    epoch: float
    torch: float
    kinks: Sequence[str]


@dataclass(frozen=True)
class _Moved:
    """One step of one side: where it ends, each vector (n,)."""

    theta: Vector
    velocity: Vector
    loss: float


@dataclass(frozen=True)
class _Start:
    """Where a step starts, and its batch."""

    theta: Theta
    velocity: Theta
    batch: Batch


class _Epoch:
    """Runs programs side by side with eager torch, on batches of one source of rows."""

    def __init__(
        self, model: nn.Module, network: Network, samples: Samples, batch_size: int,
        tolerance: float, rng: torch.Generator,
    ) -> None:  # fmt: skip
        self._samples, self._batch_size, self._rng = samples, batch_size, rng
        shared = model, network.layout, network.loss, MOMENTUM
        self._exact = exact(*shared, self._draw(False))
        self._plain = Eager(*shared)
        self._layout, self._classifies = network.layout, network.classifies
        self._theta = network.theta
        self._trainable = np.concatenate(
            [np.full(t.size, t.name in network.trainable) for t in network.layout.tensors]
        )
        # Padded rows would enter batch statistics, so models that have these never get any.
        self._pads = not network.uses_batch_statistics and batch_size > 1
        self._tolerance = tolerance
        self._rate = self._learning_rate()

    def run(self, programs: Mapping[str, Program]) -> _Found:
        """The errors of all steps; the last batch is padded if the model allows it."""
        state = self._theta, np.zeros_like(self._theta)
        lags = {name: np.zeros(self._theta.size) for name in (*programs, "torch")}
        errors: list[float] = []
        met: list[str] = []
        while len(errors) < STEPS:
            padded = self._pads and len(errors) == STEPS - 1
            start = _Start(*state, self._draw(padded))
            try:
                after, differences = self._advance(start, programs, not errors)
            except ExportError:
                if (kink := self._kink(start)) is None or len(met) == MAX_RETRIES:
                    raise
                met.append(kink)
                continue
            for name, difference in differences.items():
                lags[name] += difference
            state = after.theta.astype(np.float32), after.velocity.astype(np.float32)
            moved = np.abs(after.theta - self._theta).max()
            shares = {name: float(np.abs(lag).max() / moved) for name, lag in lags.items()}
            own = shares.pop("torch")
            errors.append(max(shares.values()))
        if not errors[-1] <= self._tolerance + allowance(own):
            raise ExportError(f"error after an epoch {self._against(errors[-1], own)}")
        return _Found(errors[0], errors[-1], own, met)

    def check_evaluation(self, evaluate: Program, predict: Program) -> None:
        """Compare ``evaluate`` and ``predict`` at a theta that is not the initial one."""
        zero = np.zeros_like(self._theta)
        moved = self._moved(self._exact, _Start(self._theta, zero, self._draw(False)))
        theta = moved.theta.astype(np.float32)
        for eager in (self._exact, self._plain):
            eager.place(theta, zero)
        for padded in (False, self._pads):
            self._check_evaluated(theta, self._draw(padded), evaluate, predict)

    def _draw(self, padded: bool) -> Batch:
        return draw(self._samples, self._batch_size, padded, self._rng)

    def _learning_rate(self) -> float:
        self._exact.place(self._theta, np.zeros_like(self._theta))
        self._exact.differentiate(self._draw(False))
        steepest = float(np.abs(self._exact.gradient).max())
        if not 0.0 < steepest < math.inf:
            raise ExportError(f"model: torch's largest gradient on a sample batch is {steepest}")
        return FIRST_MOVE * max(float(np.abs(self._theta).max()), 1e-3) / steepest

    def _moved(self, eager: Eager, start: _Start) -> _Moved:
        eager.place(start.theta, start.velocity)
        loss = eager.step(start.batch, self._rate)
        return _Moved(eager.theta, eager.velocity, loss)

    def _pulled(self, moved: _Moved, start: _Start, prox: float) -> _Moved:
        """The same step with prox (theta - anchor) in the gradient of what is trained."""
        pull = prox * self._trainable * (start.theta.astype(np.float64) - self._anchor)
        return _Moved(moved.theta - self._rate * pull, moved.velocity + pull, moved.loss)

    @property
    def _anchor(self) -> Theta:
        return np.float32(1.01) * self._theta

    def _advance(
        self, start: _Start, programs: Mapping[str, Program], first: bool
    ) -> tuple[_Moved, dict[str, Vector]]:
        """One step of all. Returns torch's end, and the difference of each theta from it."""
        right = self._moved(self._exact, start)
        own = [self._moved(self._plain, start)]
        differences: dict[str, Vector] = {}
        for name, prox in TRAINS.items():
            found = self._run(programs[name], start, prox)
            wanted = self._pulled(right, start, prox)
            with _named(f"program {name!r} disagrees with torch"):
                try:
                    self._compare(found, wanted, right, own, start, first)
                except ExportError:
                    if len(own) == 1:
                        own += self._shaken(start, right)
                    self._compare(found, wanted, right, own, start, first)
            differences[name] = found.theta - wanted.theta
        off = [end.theta - right.theta for end in own]
        differences["torch"] = max(off, key=lambda difference: float(np.abs(difference).max()))
        return right, differences

    def _shaken(self, start: _Start, right: _Moved) -> list[_Moved]:
        """Eager float32's ends from neighbouring values, each with only the difference of its step."""
        rng = np.random.default_rng(0)
        ends: list[_Moved] = []
        for _ in range(SHAKEN):
            theta = shaken(start.theta, rng)
            end = self._moved(self._plain, _Start(theta, start.velocity, start.batch))
            moved = (theta - start.theta.astype(np.float64)) * self._trainable
            ends.append(_Moved(end.theta - moved, end.velocity, end.loss))
        return ends

    def _run(self, program: Program, start: _Start, prox: float) -> _Moved:
        feed = {"theta": start.theta, "velocity": start.velocity, **_arrays(start.batch)}
        scalars = {"learning_rate": self._rate, "momentum": MOMENTUM}
        if prox:
            scalars["prox"], feed["anchor"] = prox, self._anchor
        feed |= {name: np.array(value, np.float32) for name, value in scalars.items()}
        result = program(feed)
        return _Moved(
            result["theta_next"].astype(np.float64),
            result["velocity_next"].astype(np.float64),
            float(result["loss"]),
        )

    def _compare(
        self, found: _Moved, wanted: _Moved, right: _Moved, own: Sequence[_Moved], start: _Start,
        first: bool,
    ) -> None:  # fmt: skip
        """Raise ``ExportError`` when a program's step is further from torch's than float32 explains."""
        noise = max(abs(end.loss - right.loss) for end in own)
        _check_close("loss", found.loss, wanted.loss, self._allowed(wanted.loss, noise))
        if first:  # the first velocity is the gradient itself, without theta's rounding
            noises = np.max([np.abs(end.velocity - right.velocity) for end in own], axis=0)
            self._check_gradients(found.velocity, wanted.velocity, noises)
        noise = max(float(np.abs(end.velocity - right.velocity).max()) for end in own)
        difference = found.velocity - wanted.velocity
        self._check("velocity", difference, np.abs(wanted.velocity).max(), noise)
        noise = max(float(np.abs(end.theta - right.theta).max()) for end in own)
        scale = np.abs(wanted.theta - start.theta).max()
        self._check("theta", found.theta - wanted.theta, scale, noise)

    def _check(self, what: str, difference: Vector, scale: float, noise: float) -> None:
        error, own = float(np.abs(difference).max() / scale), noise / scale
        if not error <= self._tolerance + allowance(own):  # so that NaN counts as a disagreement
            index = int(np.abs(difference).argmax())
            worst = next(t.name for t in self._layout.tensors if index < t.offset + t.size)
            raise ExportError(
                f"error of {what} after one step, largest in {worst!r}, {self._against(error, own)}"
            )

    def _against(self, error: float, own: float) -> str:
        return (
            f"{error:.1e}, expected at most {self._tolerance:.1e} and {FACTOR:g} times torch's own"
            f" {own:.1e}"
        )

    def _check_gradients(self, found: Vector, expected: Vector, noise: Vector) -> None:
        floor = GRADIENT_FLOOR * np.abs(expected).max()
        for tensor in self._layout.tensors:
            mine, theirs = found[tensor.slice], expected[tensor.slice]
            scale = np.abs(theirs).max()
            share = TENSOR_GRADIENT_FACTOR * self._tolerance
            allowed = min(FACTOR * noise[tensor.slice].max(), MOST * scale)
            if not np.abs(mine - theirs).max() <= share * scale + allowed + floor:
                how = "wrong" if mine.any() else "zero"
                raise ExportError(f"the gradient of {tensor.name!r} is {how}")

    def _kink(self, start: _Start) -> str | None:
        """The operator with a kink within rounding of the batch, which proves that it says nothing."""
        for eager in (self._exact, self._plain):
            eager.place(start.theta, start.velocity)
        return kinks.found(self._exact, self._plain, start.batch)

    def _check_evaluated(
        self, theta: Theta, batch: Batch, evaluate: Program, predict: Program
    ) -> None:
        output, sums = self._exact.evaluate(batch, self._classifies)
        plain, own = self._plain.evaluate(batch, self._classifies)
        feed = {"theta": theta, **_arrays(batch)}
        logits = predict({"theta": theta, "x": feed["x"]})["logits"]
        error = float(np.abs(logits - output.double().numpy()).max())
        noise = float((plain.double() - output.double()).abs().max())
        allowed = self._allowed(float(output.abs().max()), noise)
        _check_close("largest difference of logits", error, 0.0, allowed)
        found = evaluate(feed)
        for name, expected in sums.items():
            spare = self._allowed(expected, own[name] - expected)
            if name == "correct_count" and output.shape[1] > 1:  # near ties may go the other way
                first, second = output.topk(2).values.unbind(1)
                spare += float(((first - second <= 2 * allowed) * batch.w).sum())
            _check_close(name, float(found[name]), expected, spare)

    def _allowed(self, expected: float, noise: float) -> float:
        """The error that a number may have, of which eager float32 has some noise itself."""
        scale = max(1.0, abs(expected))
        return scale * (self._tolerance + allowance(abs(noise) / scale))


def _check_close(what: str, found: float, expected: float, allowed: float) -> None:
    if not abs(found - expected) <= allowed:
        raise ExportError(f"{what} {found:.6g}, expected {expected:.6g}")


def _arrays(batch: Batch) -> dict[str, Array]:
    return {"x": batch.x.numpy(), "y": batch.y.numpy(), "w": batch.w.numpy()}
