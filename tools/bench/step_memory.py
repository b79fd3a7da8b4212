"""The memory of a bundle's gradient step in onnxruntime, in a process of its own.

    python tools/bench/step_memory.py BUNDLE

Prints the bytes by which the process's peak (VmHWM) after two steps exceeds what it held before the program
was opened: the session, its planned memory, and theta with its gradient. Linux only.
"""

import sys
from pathlib import Path

import numpy as np

from sedge_protocol.host.onnx_runtime import library, open_session
from sedge_protocol.wire.bundle import FROZEN, ONNXRUNTIME, TensorSpec, load


def main(folder: str) -> None:
    """Measure one bundle."""
    bundle, theta = load(Path(folder))
    manifest = bundle.manifest
    options = library().SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    before = kernel("VmRSS")
    session = open_session(bundle.program("gradient", ONNXRUNTIME), options)
    feed = {
        "theta": theta,
        "x": zeros(manifest.batch_size, manifest.input),
        "y": zeros(manifest.batch_size, manifest.target),
        "w": np.ones(manifest.batch_size, np.float32),
    }
    if bundle.frozen is not None:
        feed[FROZEN] = bundle.frozen
    for _ in range(2):
        session.run(None, feed)
    print(kernel("VmHWM") - before)


def zeros(batch_size: int, row: TensorSpec) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
    """A batch of zeros."""
    return np.zeros((batch_size, *row.shape), np.dtype(row.dtype))


def kernel(field: str) -> int:
    """A field of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{field}:")]
    return 1024 * int(line.split()[1])


if __name__ == "__main__":
    main(sys.argv[1])
