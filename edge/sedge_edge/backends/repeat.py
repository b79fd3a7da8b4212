"""Makes runs on a GPU bit-identical. On a CPU, all kernels used here are reproducible anyway."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable(device: torch.device, tf32: bool = False) -> Generator[None]:
    """Make runs on a GPU bit-identical within this context, by using deterministic kernels.

    ``tf32`` allows float32 products to round their factors to 10 bits of mantissa.
    """
    if device.type != "cuda":
        yield
        return
    # cuBLAS reads this when its first handle is created. Later changes have no effect.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    matmul, memory = torch.backends.cuda.matmul, torch.utils.deterministic
    settings: list[tuple[object, str, bool]] = [
        (matmul, "allow_tf32", tf32),
        (matmul, "allow_bf16_reduced_precision_reduction", False),  # sums stay in float32
        # Filling all new memory would take time, and no result depends on it.
        (memory, "fill_uninitialized_memory", False),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in settings]
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        for owner, name, value in settings:
            setattr(owner, name, value)
        # Without ``enabled``, torch would switch cuDNN off here, which makes convolutions many times
        # slower.
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32
        ):
            yield
    finally:
        torch.use_deterministic_algorithms(deterministic)
        for owner, name, value in before:
            setattr(owner, name, value)
