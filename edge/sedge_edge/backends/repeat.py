"""The same bits on every run of a GPU. On a CPU every kernel used here repeats as it is."""

import os
from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def repeatable(device: torch.device, tf32: bool = False) -> Generator[None]:
    """The same bits on every run of a GPU: deterministic kernels, chosen without timing them.

    ``tf32`` lets its products of float32 round their factors to 10 bits.
    """
    if device.type != "cuda":
        yield
        return
    # cuBLAS reads it when its first handle is made; later changes have no effect and do no harm.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    matmul = torch.backends.cuda.matmul
    before = torch.are_deterministic_algorithms_enabled(), matmul.allow_tf32
    torch.use_deterministic_algorithms(True)
    matmul.allow_tf32 = tf32
    try:
        # Without ``enabled`` torch switches cuDNN off here, and convolutions run many times as long.
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32
        ):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        matmul.allow_tf32 = before[1]
