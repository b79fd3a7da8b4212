"""The fastest backend that computes what torch computes; the choice is remembered.

Candidates are timed in turn on the machine that will train. In a fixed order, one takes over only when
it is more than a tenth faster than the best before it, so that noise rarely decides. The winner must then
pass its checks, or is out. As a run must repeat byte for byte, the choice is kept in a file under
everything that it depends on; of several processes that choose at once, the first one's counts. Precision
is never chosen: it changes results.
"""

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import nn

from sedge_edge.data import Examples
from sedge_edge.training.batches import Permutations, permutations
from sedge_emulate.training.checks import Twins, Wrong, check, drawn, twins
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.programs import OnnxFleet
from sedge_emulate.training.sequential import open_sequential
from sedge_emulate.training.stacked import StackedTrainer
from sedge_emulate.training.tasks import FleetTrainer, Precision, Task, Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_export.network import RowLoss
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import make_folder, translated
from sedge_protocol.wire.bundle import Bundle, TensorSpec
from sedge_protocol.wire.messages import Training

log = logging.getLogger("sedge.emulate")

AUTO = "auto"
# In the order of preference: of two equally fast ones the plainer.
NAMES = ("sequential", "winograd", "stacked", "vectorised", "autograd", "onnx")
# How much faster than the best before it a candidate must be.
MARGIN = 1.1
# Time for measuring all candidates, in turn; each is measured once at least.
_SECONDS = 2.0
# A candidate this much slower than the best so far is not measured twice.
_HOPELESS = 4.0
_TIMED_STEPS = 4


@dataclass(frozen=True)
class _Site:
    """What trainers are opened with."""

    problem: Problem
    precision: Precision
    device: torch.device
    bundle: Bundle | None


def open_trainer(
    module: nn.Module,
    loss: RowLoss,
    classifies: bool,
    batch_size: int,
    input: TensorSpec,
    *,
    name: str = AUTO,
    precision: Precision = "fp32",
    device: str = "cpu",
    cache: Path | None = None,
    bundle: Bundle | None = None,
    shuffles: Permutations = permutations,
) -> FleetTrainer:
    """A trainer that has passed its checks: the named one, or the fastest.

    ``input`` is a row's type and shape; ``cache`` a folder where choices are kept; ``bundle`` the model's
    programs, for "onnx". The number of threads is torch's present one; several processes of one thread
    are faster than one process of several. Raises ``ConfigError`` for a name that is none or cannot
    train this model, ``Wrong`` when the named one fails its checks, ``ExportError`` for a model that no
    device can train, ``StorageError`` for the folder.
    """
    problem = Problem(module, loss, classifies, batch_size, input, shuffles)
    site = _Site(problem, precision, _device(device), bundle)
    if name == AUTO:
        return _chosen(site, cache)
    if name not in NAMES:
        raise ConfigError("trainer", name, f"one of {AUTO}, {', '.join(NAMES)}")
    try:
        trainer = _open(name, site, None)
    except Unsupported as exc:
        raise ConfigError("trainer", name, f"a backend for this model: {exc}") from exc
    check(trainer, problem, precision, twins(problem))
    return trainer


def fastest(rates: dict[str, float]) -> str:
    """The name of the winner among rates in the order of preference."""
    best = next(iter(rates))
    for name, rate in rates.items():
        if rate > MARGIN * rates[best]:
            best = name
    return best


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as exc:  # torch built without CUDA asserts
        raise ConfigError("device", name, f"a device of this torch: {exc}") from exc
    return device


def _open(name: str, site: _Site, width: int | None) -> FleetTrainer:
    match name:
        case "stacked":
            return StackedTrainer(site.problem, site.precision, site.device)
        case "vectorised":
            return VectorisedTrainer(site.problem, site.precision, site.device, width)
        case "onnx":
            return OnnxFleet(site.problem, site.precision, site.bundle)
        case _:
            return open_sequential(name, site.problem, site.precision, site.device)


def _chosen(site: _Site, cache: Path | None) -> FleetTrainer:
    wanted = twins(site.problem)
    key = _key(site)
    path = None
    if cache is not None:
        digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
        path = cache / f"trainer-{digest[:16]}.json"
        if (kept := _read(path)) is not None:
            trainer = _open(kept[0], site, kept[1])
            check(trainer, site.problem, site.precision, wanted)
            return trainer
    candidates = _candidates(site)
    rates = measure(list(candidates.values()), site.problem, site.device.type == "cpu")
    name = _best_right_one(site, candidates, rates, wanted)
    trainer = candidates[name]
    log.info("training with %s: %s", name, {n: f"{r:.0f}/s" for n, r in rates.items()})
    if path is None:
        return trainer
    kept_name, kept_width = _keep(path, trainer, key, rates)
    if (kept_name, kept_width) == (trainer.name, trainer.width):
        return trainer
    trainer = _open(kept_name, site, kept_width)
    check(trainer, site.problem, site.precision, wanted)
    return trainer


def _best_right_one(
    site: _Site, candidates: dict[str, FleetTrainer], rates: dict[str, float], wanted: Twins
) -> str:
    """The name of the fastest that passes its checks; takes the others out of the rates."""
    reason = Wrong(f"no backend trains this model on {site.device}")
    while rates:
        name = fastest(rates)
        try:
            check(candidates[name], site.problem, site.precision, wanted)
            return name
        except Wrong as exc:
            log.error("backend %s is out: %s", name, exc)
            reason = exc
            del rates[name]
    raise reason


def _candidates(site: _Site) -> dict[str, FleetTrainer]:
    found: dict[str, FleetTrainer] = {}
    for name in NAMES:
        try:
            found[name] = _open(name, site, None)
        except Unsupported as exc:
            log.debug("backend %s is no candidate: %s", name, exc)
    return found


def measure(
    trainers: Sequence[FleetTrainer], problem: Problem, on_cpu: bool = True
) -> dict[str, float]:
    """Each trainer's best rate in examples a second, all measured in turn.

    One thread is measured by its processor time, in which neighbours on the machine count for little.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 and on_cpu else time.perf_counter
    rng = np.random.default_rng(1)
    count = _TIMED_STEPS * problem.batch_size
    examples = Examples(drawn(problem, count, rng), np.zeros(count, np.int64))
    task = Task(problem.network.theta, examples, Training(), 0)
    rates: dict[str, float] = {}
    end = time.monotonic() + _SECONDS
    racing = list(trainers)
    rounds = 0
    while racing and (rounds < 1 or time.monotonic() < end):
        for trainer in racing:
            start = clock()
            try:
                trainer.train([task] * trainer.width)
            except Exception as exc:  # whatever torch, or a user's module in it, makes of a backend
                log.debug("backend %s is no candidate: %s", trainer.name, exc)
                rates[trainer.name] = 0.0
                continue
            rate = trainer.width * count / (clock() - start)
            rates[trainer.name] = max(rate, rates.get(trainer.name, 0.0))
        rounds += 1
        least = max(rates.values()) / _HOPELESS
        racing = [trainer for trainer in racing if rates[trainer.name] > least]
    return {name: rate for name, rate in rates.items() if rate > 0}


def _key(site: _Site) -> dict[str, str]:
    problem = site.problem
    shape = f"{problem.input.dtype} {problem.input.shape}"
    where = str(site.device)
    if site.device.type == "cuda":
        where = f"{where} {torch.cuda.get_device_name(site.device)}"
    return {
        "layout": problem.network.layout.hash.hex(),
        "model": f"{type(problem.module).__qualname__} {problem.module}",
        "batch": f"{problem.batch_size} of {shape}",
        "precision": site.precision,
        "device": where,
        "processor": f"{_processor()} x {torch.get_num_threads()}",
        "programs": str(site.bundle is not None),
        **{name: _version(name) for name in ("sedge-fl", "torch", "onnxruntime")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()} {torch.backends.cpu.get_cpu_capability()}"
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _read(path: Path) -> tuple[str, int] | None:
    """The name and width kept in a file; None when there is none, or none that makes sense."""
    try:
        found = cast(object, json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None
    match found:
        case {"name": str(name), "width": int(width)} if name in NAMES and width > 0:
            return name, width
        case _:
            return None


def _keep(
    path: Path, trainer: FleetTrainer, key: dict[str, str], rates: dict[str, float]
) -> tuple[str, int]:
    """Keep a choice, unless another process has kept one meanwhile; gives the one that is kept."""
    make_folder(path.parent)
    entry = {
        "name": trainer.name,
        "width": trainer.width,
        "examples_per_second": {name: round(rate) for name, rate in rates.items()},
        "for": key,
    }
    temporary = path.with_suffix(f".{os.getpid()}")
    with translated("write", path):
        temporary.write_text(json.dumps(entry, indent=2) + "\n")
        try:
            os.link(temporary, path)  # fails where another process was first
        except FileExistsError:
            kept = _read(path)
            if kept is not None:
                return kept
            os.replace(temporary, path)  # the one that was there is damaged
        finally:
            temporary.unlink(missing_ok=True)
    return trainer.name, trainer.width
