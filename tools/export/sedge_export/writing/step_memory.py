"""The memory that a runtime takes in a job, measured in a process of its own. Linux only.

    python -m sedge_export.writing.step_memory BUNDLE BACKEND

prints the bytes by which the process's peak (VmHWM) in a training between two evaluations exceeds what it
held before the programs were opened, without the vectors that the training itself holds: sessions, and the
tensors within a step. What runs is the device's own trainer. The figure varies by a per cent.
"""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends.bundle_trainer import (
    Arrays,
    BundleTrainer,
    LoadedProgram,
    LoadProgram,
    bundled,
)
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.trainer import TrainRequest
from sedge_export.programs import Program
from sedge_protocol.errors import ExportError
from sedge_protocol.host.memory_limit import unpool_large_arrays
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle, TensorSpec, load, save
from sedge_protocol.wire.programs import Signature
from sedge_protocol.wire.training import Training

GRADIENT = "gradient"
# The training's own: the model that moves, the velocity and the gradient.
_VECTORS = 3
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def with_memory(bundle: Bundle, theta: Theta) -> Bundle:
    """The bundle, whose gradient programs say what memory they take; as it is on another system.

    Raises ``ExportError`` when a program cannot be measured.
    """
    if not _STATUS.exists():
        return bundle
    with TemporaryDirectory() as name:
        save(Path(name), bundle, theta)
        programs = tuple(
            msgspec.structs.replace(program, memory_bytes=_measured(Path(name), program.backend))
            if program.name == GRADIENT
            else program
            for program in bundle.manifest.programs
        )
    manifest = msgspec.structs.replace(bundle.manifest, programs=programs)
    return msgspec.structs.replace(bundle, manifest=manifest)


def _measured(folder: Path, backend: str) -> int:
    words = [sys.executable, "-m", "sedge_export.writing.step_memory", str(folder), backend]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise ExportError(f"{backend}: the memory of a step cannot be measured: {reason}")
    return int(done.stdout.split()[-1])


def main(folder: str, backend: str) -> None:
    """Measure one bundle in one runtime."""
    unpool_large_arrays()
    bundle, theta = load(Path(folder))
    if bundle.frozen is not None:
        bundle = msgspec.structs.replace(bundle, frozen=bundle.frozen.copy())
    programs, copies = _programs(bundle, backend)
    examples = _examples(bundle)
    with suppress(OSError):
        _RESET.write_text("5")  # the peak of the imports is not the job's
    before = _kernel("VmRSS")
    trainer = BundleTrainer(bundle, programs)
    trainer.evaluate(theta, examples)
    trainer.train(TrainRequest(theta, Training(), 0), examples, lambda: False)
    trainer.evaluate(theta, examples)
    print(max(1, _kernel("VmHWM") - before - (_VECTORS + copies) * theta.nbytes))


def _programs(bundle: Bundle, backend: str) -> tuple[LoadProgram, int]:
    """What loads the programs, and how many copies of the gradient it takes that a device does not."""
    if backend == ONNXRUNTIME:
        from sedge_edge.backends.onnx_runtime import OnnxProgram
        from sedge_protocol.host.onnx_runtime import library

        library()
        return bundled(bundle, backend, OnnxProgram, 1), 0
    from sedge_export.lowering.target import TARGETS

    target = TARGETS[backend]
    target.check_installed()

    def load_program(data: bytes, signature: Signature, threads: int) -> LoadedProgram:
        return _Program(partial(target.load, data, signature), signature.outputs)

    return bundled(bundle, backend, load_program, 1), 1


class _Program:
    """``LoadedProgram`` in the exporter's runtime, which is closed after the last run, as a device's is."""

    def __init__(self, opened: Callable[[], Program], outputs: tuple[str, ...]) -> None:
        self._opened, self._outputs = opened, outputs
        self._program: Program | None = None

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        program = self._program or self._opened()
        self._program = None if last else program
        made = program(feeds)
        return [made[name] for name in self._outputs]


def _examples(bundle: Bundle) -> Examples:
    """Two batches of zeros."""
    manifest = bundle.manifest
    inputs = _zeros(2 * manifest.batch_size, manifest.input)
    if manifest.target is None:
        return Examples(inputs, inputs)
    return Examples(inputs, _zeros(len(inputs), manifest.target))


def _zeros(count: int, row: TensorSpec) -> Inputs:
    return np.zeros((count, *row.shape), np.dtype(row.dtype))


def _kernel(field: str) -> int:
    """A field of this process's status, in bytes."""
    lines = _STATUS.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
