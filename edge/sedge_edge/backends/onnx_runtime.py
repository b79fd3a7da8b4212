"""Training, evaluation and prediction with the stock onnxruntime package.

The programs are ordinary ONNX graphs with inputs and outputs by these names:

    gradient    theta, x, y, w  -> gradient, loss, and statistics where the layout has any
    evaluate    theta, x, y, w  -> loss_sum, correct_count, weight_sum
    predict     theta, x        -> logits

Why these settings: the peak memory of a whole round (4-layer CNN, 582,026 parameters, batch 32, 1 thread,
onnxruntime 1.31, x86) is 111 MiB with onnxruntime's defaults. It is 102 MiB, at the same speed, without
memory patterns and with one arena for all sessions that grows by what is requested instead of doubling.
Without any arena the steps of a small model (MLP, 159,010 parameters) take 1.2 times as long. Binding the
gradient to a buffer (IOBinding) gains nothing: a copy of 2.3 MB is cheap compared with a step.
"""

import math
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import groupby
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends import INSTALL
from sedge_edge.memory_limit import memory_mb
from sedge_edge.training.batches import Batch, batches, evaluation_batches
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.steppers import (
    Arrays,
    Differentiated,
    MixtureStepper,
    Model,
    PlainStepper,
    Stepper,
)
from sedge_edge.training.trainer import Mixed, Trained, TrainingDiverged, TrainingStopped
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.host.onnx_runtime import library, open_session
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle
from sedge_protocol.wire.messages import Training
from sedge_protocol.wire.update import Metrics

_BATCH = ["theta", "x", "y", "w"]
_SIGNATURES = {
    "gradient": (_BATCH, ["gradient", "loss"]),
    "evaluate": (_BATCH, ["loss_sum", "correct_count", "weight_sum"]),
    "predict": (["theta", "x"], ["logits"]),
}


class _Named(Protocol):
    name: str


class _Session(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that we use; the package has no types."""

    def run(
        self, outputs: list[str], feeds: Arrays, options: object
    ) -> list[NDArray[np.float32]]: ...
    def get_inputs(self) -> list[_Named]: ...
    def get_outputs(self) -> list[_Named]: ...


class OnnxTrainer:
    """``Trainer`` over a bundle's onnxruntime programs; each is loaded when first needed.

    Threads share the sessions, whose ``run`` is thread-safe; everything else belongs to one call.
    """

    def __init__(self, bundle: Bundle, threads: int) -> None:
        self._bundle = bundle
        self._threads = threads
        self._programs: dict[str, _Program] = {}
        self._lock = threading.Lock()
        self._program("gradient")  # to find a missing or broken library here

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
        for vector in (theta, anchor, correction):
            if vector is not None:
                layout.check(vector)
        model = Model(layout, theta, self._recipe(training), anchor, correction)
        stepper = PlainStepper(self._differentiate, model, gradient)
        loss, steps = self._train(stepper, examples, training, seed, stopped)
        return Trained(model.theta, loss, steps, stepper.gradient)

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
        recipe = self._recipe(training)
        both = MixtureStepper(self._differentiate, layout, sent, own, mix, adaptive, recipe)
        loss, steps = self._train(both, examples, training, seed, stopped)
        return Mixed(Trained(both.sent.theta, loss, steps), both.own.theta, both.mix)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Mean loss and accuracy of theta (n,); see ``Trainer.evaluate``."""
        manifest = self._bundle.manifest
        manifest.layout.check(theta)
        buffers = _Buffers(examples, manifest.batch_size)
        sums = np.zeros(3)  # loss, correct, weight; float64, so that many batches add up exactly
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
        outputs: list[NDArray[np.float32]] = []
        for batch, last in _with_last(evaluation_batches(len(inputs), manifest.batch_size)):
            (logits,) = self._run("predict", {"theta": theta, "x": inputs[batch.indices]}, last)
            outputs.append(logits[: np.count_nonzero(batch.weights)])
        return np.concatenate(outputs)

    def _train(
        self,
        stepper: Stepper,
        examples: Examples,
        training: Training,
        seed: int,
        stopped: Callable[[], bool],
    ) -> tuple[float, int]:
        """Make all steps of a training. Returns the mean loss over the last epoch and the step count."""
        buffers = _Buffers(examples, self._bundle.manifest.batch_size)
        steps, loss = 0, math.nan
        pairs = _with_last(self._batches(examples, training, seed))
        for epoch, group in groupby(pairs, lambda pair: pair[0].epoch):
            where = f"epoch {epoch + 1} of {training.local_epochs}, step"
            losses: list[float] = []
            weights: list[float] = []
            for batch, last in group:
                if stopped():
                    raise TrainingStopped(f"{where} {steps + 1}: stopped")
                with np.errstate(over="ignore", invalid="ignore"):  # what diverges is found below
                    step_losses = [float(loss) for loss in stepper.step(buffers.fill(batch), last)]
                steps += 1
                losses.append(step_losses[0])
                weights.append(float(batch.weights.sum()))
                if bad := [loss for loss in step_losses if not math.isfinite(loss)]:
                    raise TrainingDiverged(f"{where} {steps}: the loss is {bad[0]}")
            for theta in stepper.models():
                if not np.isfinite(theta).all():
                    count = np.count_nonzero(~np.isfinite(theta))
                    raise TrainingDiverged(f"{where} {steps}: {count} parameters are not finite")
            loss = float(np.average(losses, weights=weights))
        return loss, steps

    def _recipe(self, training: Training) -> Training:
        """The training, with the parameters that the model itself keeps frozen."""
        freeze = (*training.freeze, *self._bundle.manifest.frozen)
        return msgspec.structs.replace(training, freeze=freeze)

    def _differentiate(self, theta: Theta, batch: Arrays, last: bool) -> Differentiated:
        outputs = self._run("gradient", {"theta": theta, **batch}, last)
        return Differentiated(*outputs)

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
        except Exception as exc:  # onnxruntime's errors have no other common base
            raise CodecError(f"{self._where(name)} failed: {exc}") from exc

    def _program(self, name: str) -> "_Program":
        with self._lock:
            if name not in self._programs:
                self._programs[name] = self._load(name)
            return self._programs[name]

    def _load(self, name: str) -> "_Program":
        data = self._bundle.program(name, ONNXRUNTIME)
        inputs, outputs = _SIGNATURES[name]
        if name == "gradient" and self._bundle.manifest.layout.statistics:
            outputs = [*outputs, "statistics"]
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
    """Gathers the batches of one call, always in the same memory."""

    def __init__(self, examples: Examples, batch_size: int) -> None:
        self._examples = examples
        self._x: Inputs = np.empty((batch_size, *examples.inputs.shape[1:]), examples.inputs.dtype)
        self._y = np.empty(batch_size, np.int64)

    def fill(self, batch: Batch) -> Arrays:
        """The program's x, y and w for a batch, valid until the next ``fill``."""
        # All indices are in range: "clip" only stops numpy from gathering into a copy first.
        self._examples.inputs.take(batch.indices, axis=0, out=self._x, mode="clip")
        self._examples.targets.take(batch.indices, out=self._y, mode="clip")
        return {"x": self._x, "y": self._y, "w": batch.weights}


def _with_last(source: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Each batch, and whether it is the last."""
    batch = next(source)
    for following in source:
        yield batch, False
        batch = following
    yield batch, True


@lru_cache(maxsize=1)
def _share_arena() -> None:
    """Create one memory arena for all sessions of the process, which grows by what is requested.

    It is limited to less than the device's memory, so that a program that wants more fails alone.
    """
    ort = library()
    where = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    same_as_requested = 1
    growth = {
        "max_mem": memory_mb() * 10**6 * 3 // 4,  # 0, when unknown, means no limit
        "arena_extend_strategy": same_as_requested,
        "initial_chunk_size_bytes": 2**20,
        "max_dead_bytes_per_chunk": 2**20,
    }
    ort.create_and_register_allocator(where, ort.OrtArenaCfg(growth))


class _Program:
    """One session. Raises ``ImportError`` without onnxruntime, otherwise whatever onnxruntime raises."""

    def __init__(self, data: bytes, outputs: list[str], threads: int) -> None:
        onnxruntime = library()
        options = onnxruntime.SessionOptions()
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors only: nobody on a device could act on a warning
        options.enable_mem_pattern = False
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # Constants folded while loading lie outside the arena, so keep them small.
        options.add_session_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes", str(2**24)
        )
        # A spinning thread takes time and battery from the device's own work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: _Session = open_session(data, options)
        self._outputs = outputs
        self._run_options = onnxruntime.RunOptions()
        self._last_run_options = onnxruntime.RunOptions()
        self._last_run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        self.takes = [node.name for node in self._session.get_inputs()]
        self.gives = [node.name for node in self._session.get_outputs()]

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """The outputs in order. The ``last`` run of a call returns unused memory to the system."""
        options = self._last_run_options if last else self._run_options
        return self._session.run(self._outputs, feeds, options)
