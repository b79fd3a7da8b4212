"""Measures the memory that a runtime takes in a job, in a separate process. Linux only.

    python -m sedge_export.writing.step_memory FOLDER BACKEND PROGRAM

prints the process's peak memory (VmHWM) while it evaluates, trains with the program (gradient or
guided), and evaluates again. The memory used before the programs were opened is subtracted, and so are the
training vectors. What remains is the memory for sessions and for the tensors of a step. The process runs a
device's own trainer on rows on which the programs were verified, because the loss may not be finite on
other rows. Measurements vary by about one per cent.
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
from sedge_edge.backends.trial import sample_guidance
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainRequest
from sedge_export.programs import Program
from sedge_protocol.errors import ExportError
from sedge_protocol.host.memory_limit import unpool_large_arrays
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle, load, save
from sedge_protocol.wire.bundle import Program as ProgramFile
from sedge_protocol.wire.programs import GUIDED, Signature
from sedge_protocol.wire.training import Training

MEASURED = ("gradient", GUIDED)
# The training vectors: the model, the velocity and the gradient.
_VECTORS = 3
# No learning rate that suits the data is known here, so this tiny one hardly moves the model.
_TRAINING = Training(learning_rate=1e-30)
_BUNDLE, _ROWS = "bundle", "rows.npz"
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def with_memory(bundle: Bundle, theta: Theta, examples: Examples) -> Bundle:
    """Add to a bundle how much memory its training programs need. This can be measured only on Linux.

    ``examples`` are two batches on which the model's loss is finite. Raises ``ExportError`` if a program
    cannot be measured.
    """
    if not _STATUS.exists():
        return bundle
    with TemporaryDirectory() as name:
        save(Path(name) / _BUNDLE, bundle, theta)
        np.savez(Path(name) / _ROWS, x=examples.inputs, y=examples.targets)
        programs = tuple(
            msgspec.structs.replace(program, memory_bytes=_measured(Path(name), program))
            if program.name in MEASURED
            else program
            for program in bundle.manifest.programs
        )
    manifest = msgspec.structs.replace(bundle.manifest, programs=programs)
    return msgspec.structs.replace(bundle, manifest=manifest)


def _measured(folder: Path, program: ProgramFile) -> int:
    module, backend = "sedge_export.writing.step_memory", program.backend
    words = [sys.executable, "-m", module, str(folder), backend, program.name]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise ExportError(f"{backend}: the memory of a step cannot be measured: {reason}")
    return int(done.stdout.split()[-1])


def main(folder: str, backend: str, program: str) -> None:
    """Measure one program of the bundle in ``folder``, on the rows stored there, in one runtime."""
    unpool_large_arrays()
    bundle, theta = load(Path(folder) / _BUNDLE)
    if bundle.frozen is not None:
        bundle = msgspec.structs.replace(bundle, frozen=bundle.frozen.copy())
    programs, copies = _programs(bundle, backend)
    with np.load(Path(folder) / _ROWS) as rows:
        x = rows["x"]
        examples = Examples(x, x if bundle.manifest.target is None else rows["y"])
    guidance = None
    if program == GUIDED:  # a distance from theta may have no gradient at theta
        guidance = sample_guidance(bundle.manifest, theta * np.float32(0.95))
    request = TrainRequest(theta, _TRAINING, 0, guidance=guidance)
    with suppress(OSError):
        _RESET.write_text("5")  # resets the peak, which the imports have raised
    before = _kernel("VmRSS")
    trainer = BundleTrainer(bundle, programs)
    trainer.evaluate(theta, examples)
    trainer.train(request, examples, lambda: False)
    trainer.evaluate(theta, examples)
    print(max(1, _kernel("VmHWM") - before - (_VECTORS + copies) * theta.nbytes))


def _programs(bundle: Bundle, backend: str) -> tuple[LoadProgram, int]:
    """Return a loader for the programs, and how many extra copies of the gradient it makes."""
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
    """A ``LoadedProgram`` in the exporter's runtime. As on a device, it is closed after the last run."""

    def __init__(self, opened: Callable[[], Program], outputs: tuple[str, ...]) -> None:
        self._opened, self._outputs = opened, outputs
        self._program: Program | None = None

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        program = self._program or self._opened()
        self._program = None if last else program
        made = program(feeds)
        return [made[name] for name in self._outputs]


def _kernel(field: str) -> int:
    """Return the value of a field in /proc/self/status, in bytes."""
    lines = _STATUS.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
