"""Measures how fast work is done on a device."""

import statistics
import time
from collections.abc import Callable

import torch

# The minimum number of repeats, needed because a GPU's clock rate varies, and by how many seconds the
# repeats may run over.
_LEAST, _LONGER_S = 3, 2.0


def finished(device: str) -> None:
    """Wait until all work that was started on the device is done."""
    if device == "cuda":
        torch.cuda.synchronize()


def rate(work: Callable[[], object], amount: float, seconds: float, device: str) -> float:
    """Repeat ``work`` for ``seconds`` after a warm-up. Returns ``amount`` divided by the median time."""
    work()
    finished(device)
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end or len(took) < _LEAST:
        if took and start > end + _LONGER_S:
            break
        work()
        finished(device)
        took.append(time.perf_counter() - start)
    return amount / statistics.median(took)
