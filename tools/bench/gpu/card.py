"""Describes the GPU and measures its limits: the rate of one large matrix product and of one large copy.

In the other stages, shares of "peak" refer to these rates, which are measured in the same run, and not to a
data sheet.
"""

import os
import platform
import shutil
import subprocess
from functools import partial
from pathlib import Path

import torch
from tools.bench.gpu.cells import Cell, Figures, Settings, Unusable
from tools.bench.gpu.rate import rate
from tools.bench.gpu.shares import CARD, COPY, PRODUCT
from tools.bench.gpu.sizes import SIZES
from tools.bench.machine import processor

# A float32 product without TF32, as the trainers compute it; the same with TF32; and bfloat16.
PRECISIONS = ("fp32", "tf32", "bf16")
# The largest product, the copy and CUDA itself need this much free memory.
LEAST_BYTES = 6 * 2**30


def cells(settings: Settings) -> list[Cell]:
    """Return the cells: the GPU's name, then its limits. Raises ``Unusable`` if nothing can be trained."""
    size = SIZES[settings.size]
    usable(settings.device)
    setting: dict[str, str | int] = {"what": CARD, **described(settings.device)}
    found = [Cell(setting, partial(memory, settings.device))]
    precisions = PRECISIONS if settings.device == "cuda" else ("fp32", "bf16")
    for precision in precisions:
        measure = partial(product, settings.device, size.matrix, precision, size.seconds)
        found.append(Cell({"what": PRODUCT, "precision": precision}, measure))
    measure = partial(copied, settings.device, size.copied_bytes, size.seconds)
    return [*found, Cell({"what": COPY}, measure)]


def usable(device: str) -> None:
    """Raise ``Unusable`` unless this torch can compute on the device and enough memory is free."""
    if device == "cpu":
        return
    try:
        ones = torch.ones(32, 32, device=device)
        works = bool((ones @ ones == 32).all())
        free, _ = torch.cuda.mem_get_info()
    except (AssertionError, RuntimeError) as exc:  # torch built without CUDA raises AssertionError
        first = str(exc).splitlines()[0]
        raise Unusable(
            f"--device cuda: expected a GPU that torch {torch.__version__} can use,"
            f" or --device cpu: {first}"
        ) from exc
    if not works:
        raise Unusable("--device cuda: the card computes a wrong product of two matrices of ones")
    if free < LEAST_BYTES:
        raise Unusable(
            f"--device cuda: {free / 2**30:.1f} GiB of the card's memory is free,"
            f" expected {LEAST_BYTES / 2**30:.0f} GiB; does another process use it?"
        )


def described(device: str) -> dict[str, str]:
    """Return the device's name and the versions of its driver and the libraries."""
    found = {"torch": str(torch.__version__), "python": platform.python_version()}
    cpuinfo = Path("/proc/cpuinfo")
    name = processor(cpuinfo.read_text()) if cpuinfo.exists() else "unknown"
    found["processor"] = f"{name}, {os.cpu_count()} cores"
    if device == "cpu":
        return {"name": found["processor"], **found}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "driver": driver(),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),  # type: ignore[no-untyped-call]
        **found,
    }


def driver() -> str:
    """Return the driver's version as nvidia-smi reports it, or "unknown"."""
    if (program := shutil.which("nvidia-smi")) is None:
        return "unknown"
    words = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.split("\n")[0].strip()


def memory(device: str) -> Figures:
    """Return the GPU's total and free memory in bytes, or {} for a CPU."""
    if device == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info()
    return {"memory_bytes": total, "free_bytes": free}


def product(device: str, n: int, precision: str, seconds: float) -> Figures:
    """Measure how many floating-point operations per second a product of two (n, n) matrices reaches."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)
    matmul = torch.backends.cuda.matmul
    before, matmul.allow_tf32 = matmul.allow_tf32, precision == "tf32"
    try:
        found = rate(lambda: torch.mm(left, right, out=out), 2 * n**3, seconds, device)
    finally:
        matmul.allow_tf32 = before
    return {"flops_s": found}


def copied(device: str, count: int, seconds: float) -> Figures:
    """Measure the memory bandwidth: bytes read and written per second while copying ``count`` bytes."""
    source = torch.ones(count // 4, device=device)
    target = torch.empty_like(source)
    return {"bytes_s": rate(lambda: target.copy_(source), 2 * count, seconds, device)}
