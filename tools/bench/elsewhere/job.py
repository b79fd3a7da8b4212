"""One job as an agent does it, in a process with the agent's imports; job_memory.py runs this.

    python tools/bench/elsewhere/job.py STATE BACKEND

The bundle and its model are packed in the folder STATE, and ``order`` there is the job's. Prints the
process's peak memory in bytes (VmHWM), without the data. Linux only.
"""

import importlib
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np

from sedge_edge.jobs.job import Job
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.runtime import OpenBundles
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import WorkerContext, run_job
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.memory_limit import unpool_large_arrays
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.messages import Order

FORBIDDEN = ("torch", "executorch", "onnx", "PIL", "scipy")


class Rows(msgspec.Struct):
    """The shape of the examples: ``classes`` is 0 where targets are numbers like the inputs."""

    batch_size: int
    input: TensorSpec
    target: TensorSpec | None
    classes: int


def examples(rows: Rows) -> Examples:
    """Four batches."""
    rng = np.random.default_rng(0)

    def drawn(spec: TensorSpec, below: int) -> np.ndarray:
        shape = (4 * rows.batch_size, *spec.shape)
        if spec.dtype == "int64":
            return rng.integers(0, below, shape)
        return rng.standard_normal(shape, np.float32)

    x = drawn(rows.input, 2)
    return Examples(x, x if rows.target is None else drawn(rows.target, rows.classes or 2))


def main(state: Path, backend: str) -> None:
    """Do the job, and print its memory."""
    unpool_large_arrays()
    importlib.import_module("sedge_edge.__main__")  # everything that the agent's process loads
    order = msgspec.msgpack.decode((state / "order").read_bytes(), type=Order)
    data = examples(msgspec.json.decode((state / "rows.json").read_bytes(), type=Rows))
    blobs = BlobFolder(state, 0, durable=False)
    programs = OpenBundles(backend, 1, state_dir=state)
    context = WorkerContext(
        blobs, FolderVectors(blobs), data, data, lambda sha256: programs.open(blobs, sha256),
        lambda: False, time.monotonic,
    )  # fmt: skip
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run_job, Job(order), context).result()
    if loaded := [name for name in FORBIDDEN if name in sys.modules]:
        raise SystemExit(f"the agent loaded {', '.join(loaded)}")
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")]
    print(peak - data.inputs.nbytes - data.targets.nbytes)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
