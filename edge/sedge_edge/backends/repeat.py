"""The same bits on every run on a GPU. On a CPU every kernel used here is reproducible anyway."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable(device: torch.device, tf32: bool = False) -> Generator[None]:
    """Makes runs on a GPU bit-reproducible: deterministic kernels, chosen without benchmarks.

    ``tf32`` lets float32 products round their factors to 10 bits.
    """
    if device.type != "cuda":
        yield
        return
    # cuBLAS reads it when its first handle is made; later changes have no effect and do no harm.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    matmul, memory = torch.backends.cuda.matmul, torch.utils.deterministic
    settings: list[tuple[object, str, bool]] = [
        (matmul, "allow_tf32", tf32),
        (matmul, "allow_bf16_reduced_precision_reduction", False),  # sums stay float32
        (memory, "fill_uninitialized_memory", False),  # a pass over all memory, needed by nothing
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        # Without ``enabled`` torch switches cuDNN off here, and convolutions take many times longer.
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32
        ):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        for owner, name, value in before:
            setattr(owner, name, value)
