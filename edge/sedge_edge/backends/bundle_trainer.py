"""A ``Trainer`` that runs a model's programs. It contains everything that does not depend on the runtime.

A runtime turns each program into a callable from named arrays to arrays. Names and shapes are those of
``sedge_protocol.wire.programs``. n is the number of parameters.
"""

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.batches import Batch, batches, evaluation_batches, step_count
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.loop import train
from sedge_edge.training.noise import noise
from sedge_edge.training.steppers.model import Differentiated
from sedge_edge.training.steppers.stepper import stepper_of
from sedge_edge.training.trainer import (
    Predictor,
    Trained,
    TrainingState,
    TrainRequest,
    evaluation,
)
from sedge_protocol.errors import CodecError, ConfigError, LocalError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.programs import FROZEN, GUIDED, Signature
from sedge_protocol.wire.update import Metrics

Arrays: TypeAlias = dict[str, NDArray[np.float32 | np.int64]]


class LoadedProgram(Protocol):
    """A program that has been loaded into a runtime. Thread-safe."""

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """Run the program. Returns its outputs in order, in arrays that belong to the caller.

        ``last`` says that the next run may be a long time coming, so unused memory should be freed. The
        caller turns any exception into a ``CodecError`` that names the program.
        """
        ...


# Loads the program with a given signature. Raises ImportError for a missing or broken runtime, ConfigError
# if the runtime cannot work as configured, CodecError for a program that is missing or damaged.
LoadProgram: TypeAlias = Callable[[Signature], LoadedProgram]
# Loads "predict" with theta (n,) built in, so that it maps x to logits. Raises the same errors as
# LoadProgram.
BindPredict: TypeAlias = Callable[[Theta], LoadedProgram]


def bundled(
    bundle: Bundle,
    backend: str,
    load: Callable[[bytes, Signature, int], LoadedProgram],
    threads: int,
) -> LoadProgram:
    """Return a function that loads the programs that the bundle has for a backend.

    ``load`` takes a program's bytes, its signature and the number of threads. It raises ``ImportError`` and
    ``ConfigError`` like a ``LoadProgram``, and any other exception if the bytes are not a valid program.
    Frozen values are passed to every run without copying.
    """

    def loaded(signature: Signature) -> LoadedProgram:
        data = bundle.program(signature.program, backend)
        with loading(bundle, signature.program):
            if bundle.manifest.frozen is None:
                return load(data, signature, threads)
            if bundle.frozen is None:
                raise LocalError("the bundle was opened without its frozen data")
            return _FedProgram(load(data, signature, threads), {FROZEN: bundle.frozen})

    return loaded


@contextmanager
def loading(bundle: Bundle, program: str) -> Generator[None]:
    """Turn any error that a runtime raises for a program into a ``CodecError`` that names the program."""
    try:
        yield
    except (ImportError, ConfigError, LocalError):
        raise
    except Exception as exc:
        raise CodecError(f"{_where(bundle, program)} cannot be loaded: {exc}") from exc


class _FedProgram:
    """A program some of whose inputs are the same in every run."""

    def __init__(self, program: LoadedProgram, constant: Arrays) -> None:
        self._program, self._constant = program, constant

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """Run the program with the constant inputs added. Returns its outputs."""
        return self._program.run({**feeds, **self._constant}, last)


def _where(bundle: Bundle, program: str) -> str:
    return f"bundle {bundle.manifest.name!r}: program {program!r}"


class BundleTrainer:
    """A ``Trainer`` that runs the programs of a bundle's model.

    Each program is loaded when it is first needed.

    ``bind`` is for runtimes that predict faster if theta is built into the program. Threads share the
    programs, while everything else belongs to a single call.
    """

    def __init__(self, bundle: Bundle, load: LoadProgram, bind: BindPredict | None = None) -> None:
        self._bundle = bundle
        self._load_program = load
        self._bind = bind
        self._programs: dict[str, LoadedProgram] = {}
        self._lock = threading.Lock()
        self._program("gradient")  # fails here if the library is missing or broken

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        """Train on the examples; see ``Trainer.train``."""
        manifest, training = self._bundle.manifest, request.training
        for vector in request.vectors:
            manifest.layout.check(vector)
        differentiate = partial(self._differentiate, request)
        stepper = stepper_of(request, manifest.layout, differentiate)
        buffers = _Buffers(examples, manifest.batch_size)

        def feed(step: int, batch: Batch) -> Arrays:
            feeds = buffers.fill(batch)
            if manifest.noise:
                feeds["noise"] = noise(request.seed, step, manifest.noise)
            return feeds

        count = (
            len(examples.targets),
            manifest.batch_size,
            training.local_epochs,
            training.last_batch,
        )
        found = batches(*count, request.seed, manifest.padding_is_safe)
        return train(stepper, training, found, step_count(*count), feed, stopped, resume)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Return the mean loss and metric of theta (n,); see ``Trainer.evaluate``."""
        manifest = self._bundle.manifest
        manifest.layout.check(theta)
        buffers = _Buffers(examples, manifest.batch_size)
        # The sums of the losses, metrics and weights, in float64 so that adding up many batches loses no
        # precision.
        sums = np.zeros(3)
        for batch, last in _with_last(
            evaluation_batches(len(examples.targets), manifest.batch_size)
        ):
            sums += self._run("evaluate", {"theta": theta, **buffers.fill(batch)}, last)
        return evaluation(sums.tolist(), len(examples.targets), manifest.metric.reported)

    def predictor(self, theta: Theta) -> Predictor:
        """Return a function that predicts with theta (n,); see ``Trainer.predictor``."""
        self._bundle.manifest.layout.check(theta)
        if self._bind is not None:
            program = self._bind(theta)
        else:
            program = _FedProgram(self._program("predict"), {"theta": theta})
        return partial(self._predict, program)

    def _predict(self, program: LoadedProgram, inputs: Inputs) -> NDArray[np.float32]:
        outputs: list[NDArray[np.float32]] = []
        batch_size = self._bundle.manifest.batch_size
        for batch, last in _with_last(evaluation_batches(len(inputs), batch_size)):
            (logits,) = self._call("predict", program, {"x": inputs[batch.indices]}, last)
            outputs.append(logits[: np.count_nonzero(batch.weights)])
        return np.concatenate(outputs)

    def _differentiate(
        self, request: TrainRequest, theta: Theta, batch: Arrays, last: bool
    ) -> Differentiated:
        feeds: Arrays = {"theta": theta, **batch}
        if request.guidance is None:
            return Differentiated(*self._run("gradient", feeds, last))
        return Differentiated(*self._run(GUIDED, {**feeds, **request.guidance.inputs}, last))

    def _run(self, name: str, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        return self._call(name, self._program(name), feeds, last)

    def _call(
        self, name: str, program: LoadedProgram, feeds: Arrays, last: bool
    ) -> list[NDArray[np.float32]]:
        try:
            return program.run(feeds, last)
        except Exception as exc:  # runtimes' errors share no more specific base class
            raise CodecError(f"{_where(self._bundle, name)} failed: {exc}") from exc

    def _program(self, name: str) -> LoadedProgram:
        with self._lock:
            if name not in self._programs:
                self._programs[name] = self._load_program(self._bundle.manifest.signatures[name])
            return self._programs[name]


class _Buffers:
    """Gathers the batches of one call, reusing the same memory. Without separate targets, x is also y."""

    def __init__(self, examples: Examples, batch_size: int) -> None:
        self._examples = examples
        self._x: Inputs = np.empty((batch_size, *examples.inputs.shape[1:]), examples.inputs.dtype)
        targets, self._y = examples.targets, self._x
        if targets is not examples.inputs:
            self._y = np.empty((batch_size, *targets.shape[1:]), targets.dtype)

    def fill(self, batch: Batch) -> Arrays:
        """Return a program's x, y and w for a batch. They are valid until the next ``fill``."""
        # All indices are in range. "clip" only stops numpy from making a copy first.
        self._examples.inputs.take(batch.indices, axis=0, out=self._x, mode="clip")
        if self._y is not self._x:
            self._examples.targets.take(batch.indices, axis=0, out=self._y, mode="clip")
        return {"x": self._x, "y": self._y, "w": batch.weights}


def _with_last(source: Iterator[Batch]) -> Iterator[tuple[Batch, bool]]:
    """Yield each batch, and whether it is the last one."""
    batch = next(source)
    for following in source:
        yield batch, False
        batch = following
    yield batch, True
