"""Training, evaluation and prediction with the stock onnxruntime package.

The programs are ordinary ONNX graphs with inputs and outputs by these names:

    train       theta, velocity, x, y, w, learning_rate, momentum   -> theta_next, velocity_next, loss
    train_prox  the same and prox, anchor                           -> the same
    evaluate    theta, x, y, w                                      -> loss_sum, correct_count, weight_sum
    predict     theta, x                                            -> logits

Settings as measured on the 4-layer CNN (582,026 parameters, batch 32, 1 thread, onnxruntime 1.31, x86),
peak of a whole round: 111 MiB as onnxruntime comes; 102 with one arena for all sessions that grows by
what is asked for instead of doubling, and without memory patterns; the steps take no longer. No arena
at all makes the steps of a small model (MLP, 159,010 parameters) 1.2 times as long. Binding theta and
velocity to two alternating buffers (IOBinding) gains nothing: two copies of 2.3 MB are small beside a
step.
"""

import math
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import INSTALL
from sedge_edge.memory_limit import memory_mb
from sedge_edge.training.batches import Batch, batches, evaluation_batches
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.steppers import Arrays, Stepper, MixtureStepper, PlainStepper
from sedge_edge.training.trainer import Mixed, Trained, TrainingDiverged, TrainingStopped
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.host.onnx_runtime import library, open_session
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics

_STEP_INPUTS = ["theta", "velocity", "x", "y", "w", "learning_rate", "momentum"]
_STEP_OUTPUTS = ["theta_next", "velocity_next", "loss"]
_SIGNATURES = {
    "train": (_STEP_INPUTS, _STEP_OUTPUTS),
    "train_prox": ([*_STEP_INPUTS, "prox", "anchor"], _STEP_OUTPUTS),
    "evaluate": (["theta", "x", "y", "w"], ["loss_sum", "correct_count", "weight_sum"]),
    "predict": (["theta", "x"], ["logits"]),
}


class _Named(Protocol):
    name: str


class _Session(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that is used; the package has no types."""

    def run(
        self, outputs: list[str], feeds: Arrays, options: object
    ) -> list[NDArray[np.float32]]: ...
    def get_inputs(self) -> list[_Named]: ...
    def get_outputs(self) -> list[_Named]: ...


class OnnxTrainer:
    """A bundle's programs in onnxruntime (``Trainer``); each is loaded when it is first needed.

    Threads share the sessions, whose ``run`` is thread-safe; everything else belongs to one call.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._bundle = bundle
        self._threads = threads
        self._programs: dict[str, _Program] = {}
        self._lock = threading.Lock()
        self._program("train")  # so that a missing or broken library is found here

    def train(
        self,
        theta: Theta,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
        *,
        anchor: Theta | None = None,
        gradient: bool = False,
        correction: Theta | None = None,
    ) -> Trained:
        """Train from theta (n,); see ``Trainer.train``."""
        layout = self._bundle.manifest.layout
        for given in (theta, anchor, correction):
            if given is not None:
                layout.check(given)
        plain = PlainStepper(self._run, layout, theta, training, anchor, gradient, correction)
        loss, steps = self._descend(plain, examples, training, seed, stopped)
        return Trained(plain.theta, loss, steps, plain.gradient)

    def train_mixed(
        self,
        sent: Theta,
        own: Theta,
        mix: float,
        adaptive: bool,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
    ) -> Mixed:
        """Train sent (n,) and own (n,) side by side; see ``Trainer.train_mixed``."""
        layout = self._bundle.manifest.layout
        layout.check(sent)
        layout.check(own)
        both = MixtureStepper(self._run, layout, sent, own, mix, adaptive, training)
        loss, steps = self._descend(both, examples, training, seed, stopped)
        return Mixed(Trained(both.sent.theta, loss, steps), both.own, both.mix)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Mean loss and accuracy of theta (n,); see ``Trainer.evaluate``."""
        manifest = self._bundle.manifest
        manifest.layout.check(theta)
        buffers = _Buffers(examples, manifest.batch_size)
        sums = np.zeros(3)  # loss, correct, weight; in float64, over any number of batches
        for batch, last in _with_last(
            evaluation_batches(len(examples.targets), manifest.batch_size)
        ):
            sums += self._run("evaluate", {"theta": theta, **buffers.fill(batch)}, last)
        loss, accuracy = float(sums[0] / sums[2]), float(sums[1] / sums[2])
        if not math.isfinite(loss):
            raise TrainingDiverged(f"evaluation: the mean loss is {loss}")
        return Metrics(loss, accuracy, len(examples.targets))

    def predict(self, theta: Theta, inputs: Inputs) -> NDArray[np.float32]:
        """The model's outputs (N, C) for inputs (N, ...)."""
        manifest = self._bundle.manifest
        manifest.layout.check(theta)
        found: list[NDArray[np.float32]] = []
        for batch, last in _with_last(evaluation_batches(len(inputs), manifest.batch_size)):
            (logits,) = self._run("predict", {"theta": theta, "x": inputs[batch.indices]}, last)
            found.append(logits[: np.count_nonzero(batch.weights)])
        return np.concatenate(found)

    def _descend(
        self,
        descent: Stepper,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
    ) -> tuple[float, int]:
        """Follow a descent to its end: the mean loss over the last epoch, and the number of steps."""
        buffers = _Buffers(examples, self._bundle.manifest.batch_size)
        steps, loss = 0, math.nan
        found = _with_last(self._batches(examples, training, seed))
        for epoch, group in groupby(found, lambda pair: pair[0].epoch):
            place = f"epoch {epoch + 1} of {training.local_epochs}, step"
            losses: list[float] = []
            weights: list[float] = []
            for batch, last in group:
                if stopped():
                    raise TrainingStopped(f"{place} {steps + 1}: stopped")
                step_losses = descent.step(buffers.fill(batch), last)
                steps += 1
                losses.append(step_losses[0])
                weights.append(float(batch.weights.sum()))
                if bad := [loss for loss in step_losses if not math.isfinite(loss)]:
                    raise TrainingDiverged(f"{place} {steps}: the loss is {bad[0]}")
            for theta in descent.models():
                if not np.isfinite(theta).all():
                    count = np.count_nonzero(~np.isfinite(theta))
                    raise TrainingDiverged(f"{place} {steps}: {count} parameters are not finite")
            loss = float(np.average(losses, weights=weights))
        return loss, steps

    def _batches(self, examples: Examples, training: Training, seed: int) -> Iterator[Batch]:
        manifest = self._bundle.manifest
        return batches(
            len(examples.targets),
            manifest.batch_size,
            training.local_epochs,
            training.last_batch,
            seed,
            padding_is_safe=not manifest.uses_batch_statistics,
        )

    def _run(self, name: str, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        program = self._program(name)
        try:
            return program.run(feeds, last)
        except Exception as exc:  # onnxruntime's errors have no common base but this
            raise CodecError(f"{self._where(name)} failed: {exc}") from exc

    def _program(self, name: str) -> "_Program":
        with self._lock:
            if name not in self._programs:
                self._programs[name] = self._load(name)
            return self._programs[name]

    def _load(self, name: str) -> "_Program":
        data = self._bundle.program(name, ONNXRUNTIME)
        inputs, outputs = _SIGNATURES[name]
        try:
            program = _Program(data, outputs, self._threads)
        except ImportError as exc:
            expected = f"a working onnxruntime ({INSTALL[ONNXRUNTIME]})"
            raise ConfigError("backend.name", ONNXRUNTIME, expected) from exc
        except Exception as exc:
            raise CodecError(f"{self._where(name)} cannot be loaded: {exc}") from exc
        if set(program.takes) != set(inputs) or not set(outputs) <= set(program.gives):
            found = f"takes {', '.join(program.takes)} and gives {', '.join(program.gives)}"
            expected = f"{', '.join(inputs)} and {', '.join(outputs)}"
            raise CodecError(f"{self._where(name)} {found}, expected {expected}")
        return program

    def _where(self, program: str) -> str:
        return f"bundle {self._bundle.manifest.name!r}: program {program!r}"


class _Buffers:
    """Where one call gathers its batches, always in the same memory."""

    def __init__(self, examples: Examples, batch_size: int) -> None:
        self._examples = examples
        self._x: Inputs = np.empty((batch_size, *examples.inputs.shape[1:]), examples.inputs.dtype)
        self._y = np.empty(batch_size, np.int64)

    def fill(self, batch: Batch) -> Arrays:
        """The program's x, y and w for a batch; valid until the next fill."""
        # The indices are in range; "clip" only keeps numpy from gathering into a copy first.
        self._examples.inputs.take(batch.indices, axis=0, out=self._x, mode="clip")
        self._examples.targets.take(batch.indices, out=self._y, mode="clip")
        return {"x": self._x, "y": self._y, "w": batch.weights}


def _with_last(found: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last."""
    batch = next(found)
    for following in found:
        yield batch, False
        batch = following
    yield batch, True


@lru_cache(maxsize=1)
def _share_arena() -> None:
    """One memory arena for all sessions of the process, which grows by no more than is asked for.

    It ends below the device's memory: a program that wants more fails, instead of the device.
    """
    ort = library()
    where = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    same_as_requested = 1
    growth = {
        "max_mem": memory_mb() * 10**6 * 3 // 4,  # 0: none known, no limit
        "arena_extend_strategy": same_as_requested,
        "initial_chunk_size_bytes": 2**20,
        "max_dead_bytes_per_chunk": 2**20,
    }
    ort.create_and_register_allocator(where, ort.OrtArenaCfg(growth))


class _Program:
    """One session. Raises ``ImportError`` when there is no onnxruntime, else whatever that raises."""

    def __init__(self, data: bytes, outputs: list[str], threads: int) -> None:
        onnxruntime = library()
        options = onnxruntime.SessionOptions()
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; a warning is nothing a device could act on
        options.enable_mem_pattern = False
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # What is computed while loading is not in the arena, so nothing large may be.
        options.add_session_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes", str(2**24)
        )
        # A thread that spins while it waits takes time and battery from the device's own work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: _Session = open_session(data, options)
        self._outputs = outputs
        self._run_options = onnxruntime.RunOptions()
        self._last_run_options = onnxruntime.RunOptions()
        self._last_run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.takes = [node.name for node in self._session.get_inputs()]
        self.gives = [node.name for node in self._session.get_outputs()]

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """The outputs in order; after the ``last`` run of a call unused memory is given back."""
        options = self._last_run_options if last else self._run_options
        return self._session.run(self._outputs, feeds, options)
