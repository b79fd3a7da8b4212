"""The memory that bundles claim for a job, compared with that of an agent's process.

Ten models, each exported for both runtimes, in orders of one epoch with SGD and with Adam. A process with
the agent's imports (elsewhere/job.py, without torch) does the job on one thread; its peak is the kernel's
VmHWM, without the data. ExecuTorch's libraries are those of ``edge/native/build.py``. Linux only.
"""

import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import msgspec
import torch
from tools.bench.elsewhere.job import Rows
from tools.bench.harness import Figure, Result, at_least, at_most, bench, chosen
from tools.bench.zoo import CASES, rows
from tools.bench.zoo.case import Case
from torch import nn

from sedge_export import export
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, load, pack
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import Codec, Work

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "edge" / "native" / "build.py"
BATCH_SIZE = 16
TRAININGS = {"sgd": Training(), "adam": Training(optimizer="adam", learning_rate=1e-3)}


def wide() -> nn.Module:
    """4.9 million parameters, which take more memory than the tensors of a step."""
    return nn.Sequential(nn.Flatten(), rows.mlp(784, 2048, 1600, 10))


MODELS: dict[str, Case] = {
    "wide MLP": Case("vision", wide, (1, 28, 28)),
    **{
        name: CASES[name]
        for name in (
            "MLP", "AvgCNN", "ResNet-8", "ResNet-8, GroupNorm", "GRU", "GPT", "LeNet-5",
            "MobileNetV2, half width", "ResNet-18",
        )
    },
}  # fmt: skip


def figures(found: Result) -> list[Figure]:
    """Each job's claimed memory against its peak."""
    written: list[Figure] = []
    for row in found["job_memory"]:
        ratio = row["claimed_mb"] / row["peak_mb"]
        what = f"a job of {row['model']} with {row['optimizer']} in {row['backend']}"
        measured = f"{row['claimed_mb']} MB claimed, {row['peak_mb']:.1f} MB used, {ratio:.2f}"
        written.append(Figure(what, measured, (at_least(1.0, ratio), at_most(1.1, ratio))))
    return written


@bench("The memory of a job", figures)
def measure(*models: str) -> Result:
    """A row for each model, runtime and optimizer."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        libraries = native(Path(name))
        found = [row for model in chosen(models, MODELS) for row in jobs(model, libraries)]
    return {"machine": platform.machine(), "job_memory": found}


def native(folder: Path) -> Path:
    """ExecuTorch's libraries, as a device has them, unpacked in the folder."""
    words = [sys.executable, str(NATIVE), "--machine", platform.machine(), "--out", str(folder)]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def jobs(model: str, libraries: Path) -> list[Result]:
    """Export a model, and do a job with it in each runtime with each optimizer."""
    case, found = MODELS[model], list[Result]()
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest = export(
            case.build(), case.sample(BATCH_SIZE), batch_size=BATCH_SIZE, name="model",
            num_classes=case.classes, loss=case.loss, target=case.target, folder=folder / "bundle",
            backends=(ONNXRUNTIME, EXECUTORCH), measure=True,
        )  # fmt: skip
        for backend in (ONNXRUNTIME, EXECUTORCH):
            for optimizer, training in TRAININGS.items():
                state = folder / f"{backend}-{optimizer}"
                write_order(folder / "bundle", state, training)
                row = {"model": model, "backend": backend, "optimizer": optimizer}
                claimed = manifest.memory_mb([backend], Work().vectors(training))
                peak = done(state, backend, libraries) / 1e6
                found.append({**row, "claimed_mb": claimed, "peak_mb": round(peak, 1)})
                print(found[-1], flush=True)
    return found


def write_order(bundle: Path, state: Path, training: Training) -> None:
    """Write everything that the process needs, as an agent has it when the job begins."""
    made, theta = load(bundle)
    manifest, packed = made.manifest, pack(made)
    model = encode(SparseVector(theta.size, None, theta), ValueCoding.FP32)
    blobs = BlobFolder(state, 0, durable=False)
    blobs.write(packed)
    blobs.write(model)
    order = Order(
        run="run", round=1, task="train", bundle=describe(packed), model=describe(model),
        model_hash=hashlib.sha256(theta.data).digest(), work=Work(training=training),
        codec=Codec(ValueCoding.BF16, 0.01),
    )  # fmt: skip
    (state / "order").write_bytes(msgspec.msgpack.encode(order))
    like = Rows(manifest.batch_size, manifest.input, manifest.target, manifest.num_classes)
    (state / "rows.json").write_bytes(msgspec.json.encode(like))


def done(state: Path, backend: str, libraries: Path) -> int:
    """Do the job in a process. Returns its peak in bytes."""
    words = [sys.executable, str(HERE / "elsewhere" / "job.py"), str(state), backend]
    paths = os.pathsep.join([str(libraries), *sys.path])
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": paths}
    ended = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return int(ended.stdout)
