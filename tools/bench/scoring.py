"""The coordinator's cost of selecting one device's personal parameters.

Times FedOBP's importance and select, in turn with the same work by torch.quantile, with one thread each on
the same model, and checks that both select the same elements. Times are in milliseconds, minimum and
median. The ratio is torch's median over ours.
"""

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray
from tools.bench.harness import Figure, Result, bench

from sedge_protocol.importance import importance, select
from sedge_protocol.layout import Layout, Role, Theta


def seconds(work: Callable[[], object]) -> float:
    """The duration of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def models(size: int, seed: int) -> tuple[Theta, Theta]:
    """A global model (n,) and a device's, with normally distributed changes as after a few local epochs."""
    rng = np.random.default_rng(seed)
    shared = rng.normal(scale=0.05, size=size).astype(np.float32)
    return shared, shared + rng.normal(scale=0.001, size=size).astype(np.float32)


def figures(row: Result) -> list[Figure]:
    """Selecting a device's personal parameters."""
    what = (
        f"scoring a device and choosing {row['personal']} of {row['size']:,} parameters, "
        "against torch.quantile"
    )
    return [Figure(what, f"{row['score_select_ms'][1]:.2f} ms, {row['ratio']:.0f} times as fast")]


@bench("Personal parameters", figures)
def measure(size: int = 582_026, quantile: float = 0.99993, repeats: int = 50) -> Result:
    """Measure both ways in turn, so that a slow spell of the machine affects both."""
    torch.set_num_threads(1)
    tensors = Layout.of([("theta", (size,), Role.PARAMETER)]).tensors
    shared, own = models(size, seed=0)
    shared_torch, own_torch = torch.from_numpy(shared), torch.from_numpy(own)
    scores = importance(own, shared, tensors, "squared")

    def ours() -> NDArray[np.uint32]:
        return select(importance(own, shared, tensors, "squared"), quantile)

    def by_torch() -> torch.Tensor:
        score = (own_torch - shared_torch) ** 2
        return torch.nonzero(score > torch.quantile(score, quantile)).flatten()

    if not np.array_equal(ours(), by_torch().numpy()):
        raise SystemExit("the two ways choose different elements")
    times: dict[str, list[float]] = {"score": [], "select": [], "score_select": [], "torch": []}
    for _ in range(repeats):
        times["score"].append(seconds(lambda: importance(own, shared, tensors, "squared")))
        times["select"].append(seconds(lambda: select(scores, quantile)))
        times["score_select"].append(seconds(ours))
        times["torch"].append(seconds(by_torch))
    row: Result = {"size": size, "quantile": quantile, "personal": ours().size}
    for name, values in times.items():
        row[f"{name}_ms"] = [round(min(values) * 1e3, 3), round(median(values) * 1e3, 3)]
    row["ratio"] = round(median(times["torch"]) / median(times["score_select"]), 1)
    return row
