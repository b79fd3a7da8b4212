"""The memory of a gradient step, measured in a process of its own, in each runtime. Linux only.

    python -m sedge_export.writing.step_memory BUNDLE BACKEND

prints the bytes by which the process's peak (VmHWM) after two steps exceeds what it held before the program
was opened: the session, the step's tensors, and theta with its gradient. The figure varies by a per cent.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, TensorSpec, load, save
from sedge_protocol.wire.programs import FROZEN

GRADIENT = "gradient"
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
    from sedge_export.lowering.target import TARGETS

    bundle, theta = load(Path(folder))
    manifest, runtime = bundle.manifest, TARGETS[backend]
    runtime.check_installed()
    signature = manifest.signatures[GRADIENT]
    data = bundle.program(GRADIENT, backend)
    feed = {
        "theta": theta,
        "x": _zeros(manifest.batch_size, manifest.input),
        "y": _zeros(manifest.batch_size, manifest.row_target),
        "w": np.ones(manifest.batch_size, np.float32),
        "noise": np.full(manifest.noise, 0.5, np.float32),
        **({} if bundle.frozen is None else {FROZEN: bundle.frozen}),
    }
    given = {name: feed[name] for name in signature.inputs}
    with suppress(OSError):
        _RESET.write_text("5")  # the peak of the imports is not the step's
    before = _kernel("VmRSS")
    program = runtime.load(data, signature)
    for _ in range(2):
        program(given)
    print(_kernel("VmHWM") - before)


def _zeros(batch_size: int, row: TensorSpec) -> NDArray[np.generic]:
    return np.zeros((batch_size, *row.shape), np.dtype(row.dtype))


def _kernel(field: str) -> int:
    """A field of this process's status, in bytes."""
    lines = _STATUS.read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main(*sys.argv[1:])
