"""Verification: every program against plain eager torch, for a step, a whole epoch, and evaluation.

Errors are max |difference of gradients| / max |gradient|, and for statistics of their changes. Compilers do
lose gradients silently, so each tensor's gradient is also compared on its own.

In float32 a few activations lie so close to the kink of ReLU or a tie of max pooling that the order of
summation decides them. Then eager torch differs even from itself: with and without oneDNN, one step of
ResNet-8 differed by 1e-6 on most batches and by up to 2e-3 on every third. Hence two rules. A step that
disagrees is undone and retried on another batch, a limited number of times per epoch; a wrong program fails
on nearly all batches. And both sides start each step of an epoch from torch's state, because two free
trajectories of a deep network diverge chaotically.
"""

import copy
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sedge_export.batches import Batch, Samples, draw
from sedge_export.eager import Eager
from sedge_export.network import Network
from sedge_protocol.errors import ExportError
from sedge_protocol.host.onnx_runtime import library, open_session
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Verification

Array: TypeAlias = NDArray[np.generic]
Program: TypeAlias = Callable[[Mapping[str, Array]], dict[str, NDArray[np.float32]]]

Result = TypeVar("Result")

STEPS = 4
# Retries for these steps. A program that agrees on half of all batches, like the worst of the networks
# above, passes in 996 of 1000 cases; one that agrees on every tenth, in 13.
MAX_RETRIES = 16
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
    loaded: Mapping[str, Program], model: nn.Module, network: Network, sources: Sequence[Samples],
    batch_size: int, tolerance: float, rng: torch.Generator, packages: Sequence[str],
) -> Verification:  # fmt: skip
    """The largest errors over all sources of rows. Raises ``ExportError`` when they stay too large."""
    step = whole = 0.0
    for samples in sources:
        epoch = _Epoch(model, network, samples, batch_size, tolerance, rng)
        with _named("program 'gradient' disagrees with torch"):
            errors = epoch.run(loaded["gradient"])
        step, whole = max(step, errors[0]), max(whole, *errors)
        with _named("program 'evaluate' or 'predict' disagrees with torch"):
            epoch.check_evaluation(loaded["evaluate"], loaded["predict"])
    versions = {name: version(name) for name in (*packages, "torch")}
    return Verification(step, whole, tolerance, versions)


@contextmanager
def _named(what: str) -> Generator[None]:
    try:
        yield
    except ExportError as exc:
        raise ExportError(f"{what}: {exc}") from exc


@dataclass(frozen=True)
class _State:
    """Eager torch after some steps, and its theta."""

    eager: Eager
    theta: Theta


class _Epoch:
    """Runs a program side by side with eager torch, on batches of one source of rows."""

    def __init__(
        self, model: nn.Module, network: Network, samples: Samples, batch_size: int,
        tolerance: float, rng: torch.Generator,
    ) -> None:  # fmt: skip
        self._eager = Eager(model, network.layout, network.loss, MOMENTUM)
        self._start, self._layout = network.theta, network.layout
        self._classifies = network.classifies
        self._samples, self._batch_size, self._rng = samples, batch_size, rng
        # Padded rows would enter batch statistics, so models that have these never get any.
        self._pads = not network.uses_batch_statistics and batch_size > 1
        self._tolerance = tolerance
        self._rate = self._learning_rate()
        self._retries = 0

    def run(self, program: Program) -> list[float]:
        """The error of each step; the last batch is padded if the model allows it."""
        state = _State(self._eager, self._start)
        self._retries = MAX_RETRIES
        errors: list[float] = []
        for index in range(STEPS):
            padded = self._pads and index == STEPS - 1
            state, error = self._retried(partial(self._advance, state, program, padded))
            errors.append(error)
        return errors

    def check_evaluation(self, evaluate: Program, predict: Program) -> None:
        """Compare ``evaluate`` and ``predict`` at a theta that is not the initial one."""
        eager = copy.deepcopy(self._eager)
        eager.step(self._draw(False), self._rate)
        for padded in (False, self._pads):
            self._check_evaluated(eager, self._draw(padded), evaluate, predict)

    def _retried(self, attempt: Callable[[], Result]) -> Result:
        """The first attempt that agrees. Raises ``ExportError`` when no retry is left."""
        while True:
            try:
                return attempt()
            except ExportError:  # perhaps an activation on a kink: see the module docstring
                if self._retries == 0:
                    raise
                self._retries -= 1

    def _draw(self, padded: bool) -> Batch:
        return draw(self._samples, self._batch_size, padded, self._rng)

    def _learning_rate(self) -> float:
        trial = copy.deepcopy(self._eager)
        trial.step(self._draw(False), 0.0)
        steepest = float(np.abs(trial.gradient).max())
        if not 0.0 < steepest < math.inf:
            raise ExportError(f"model: torch's largest gradient on a sample batch is {steepest}")
        return FIRST_MOVE * max(float(np.abs(self._start).max()), 1e-3) / steepest

    def _advance(self, state: _State, program: Program, padded: bool) -> tuple[_State, float]:
        """One step of torch, and the program's error at its start."""
        batch, eager = self._draw(padded), copy.deepcopy(state.eager)
        result = program({"theta": state.theta, **_arrays(batch)})
        loss = eager.step(batch, self._rate)
        _check_close("loss", float(result["loss"]), loss, self._tolerance)
        expected = eager.gradient
        self._check_gradients(result["gradient"], expected)
        error = self._error("gradient", result["gradient"] - expected, expected)
        after = _State(eager, eager.theta)
        if self._layout.statistics:
            wanted = self._statistics(after.theta)
            moved = np.abs(wanted - self._statistics(state.theta)).max()
            off = float(np.abs(result["statistics"] - wanted).max() / moved)
            _check_close("error of statistics", off, 0.0, self._tolerance)
            error = max(error, off)
        return after, error

    def _statistics(self, theta: Theta) -> Theta:
        """The statistics (s,) of theta (n,), one after the other."""
        tensors = [t for t in self._layout.tensors if t.name in self._layout.statistics]
        return np.concatenate([theta[tensor.slice] for tensor in tensors])

    def _error(self, what: str, difference: Theta, scale: Theta) -> float:
        """The largest difference, as a share of the largest of scale. Raises ``ExportError``."""
        error = float(np.abs(difference).max() / np.abs(scale).max())
        if not error <= self._tolerance:  # so that NaN counts as a disagreement
            index = int(np.abs(difference).argmax())
            worst = next(t.name for t in self._layout.tensors if index < t.offset + t.size)
            raise ExportError(
                f"error of {what} {error:.1e}, largest in {worst!r}, expected at most {self._tolerance:.1e}"
            )
        return error

    def _check_gradients(self, found: Theta, expected: Theta) -> None:
        floor = GRADIENT_FLOOR * np.abs(expected).max()
        for tensor in self._layout.tensors:
            mine, theirs = found[tensor.slice], expected[tensor.slice]
            limit = TENSOR_GRADIENT_FACTOR * self._tolerance * np.abs(theirs).max() + floor
            if not np.abs(mine - theirs).max() <= limit:
                how = "wrong" if mine.any() else "zero"
                raise ExportError(f"the gradient of {tensor.name!r} is {how}")

    def _check_evaluated(
        self, eager: Eager, batch: Batch, evaluate: Program, predict: Program
    ) -> None:
        output, sums = eager.evaluate(batch, self._classifies)
        feed = {"theta": eager.theta, **_arrays(batch)}
        found = evaluate(feed)
        for name, expected in sums.items():
            _check_close(name, float(found[name]), expected, self._tolerance)
        logits = predict({"theta": feed["theta"], "x": feed["x"]})["logits"]
        difference = float(np.abs(logits - output.numpy()).max())
        scale = max(1.0, float(output.abs().max()))
        _check_close("largest difference of logits", difference / scale, 0.0, self._tolerance)


def _check_close(what: str, found: float, expected: float, tolerance: float) -> None:
    if not abs(found - expected) <= tolerance * max(1.0, abs(expected)):
        raise ExportError(f"{what} {found:.6g}, expected {expected:.6g}")


def _arrays(batch: Batch) -> dict[str, Array]:
    return {"x": batch.x.numpy(), "y": batch.y.numpy(), "w": batch.w.numpy()}
