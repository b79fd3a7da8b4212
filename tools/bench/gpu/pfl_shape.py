"""pfl-research's CIFAR-10 shape: 1,000 users of 50 random images, 50 users a round, batches of 10.

Measured are the vectorised trainer with a mean of its results, which is what a simulator does; a whole
sedge-emulate (updates coded by default, every model tested before and after, in the same two workers as the
other emulations); and pfl-research itself if it is installed. A round's seconds are medians without the
first round.
"""

import json
import os
import sys
import tempfile
import time
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tools.bench.frameworks import emulated
from tools.bench.gpu import simple_cnn
from tools.bench.gpu.cells import Cell, Figures, Missing, Settings
from tools.bench.gpu.fleets import reason
from tools.bench.gpu.sizes import SIZES, Size
from tools.bench.parts.environments import Unavailable, output

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import Trained, TrainRequest
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Task
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.training import Training

PFL, TRAINER, EMULATOR = "pfl-research", "the vectorised trainer alone", "sedge-emulate"
TEST_SHARE = (simple_cnn.TESTS + 0.5) / (simple_cnn.IMAGES + simple_cnn.TESTS)
FLEET = f"""\
devices = USERS
workers = WORKERS
[data]
dataset = "{simple_cnn.__name__}:load"
split = "pathological"
classes_per_device = {simple_cnn.CLASSES}
test_fraction = {TEST_SHARE}
[model]
factory = "{simple_cnn.__name__}:build"
batch_size = {simple_cnn.BATCH_SIZE}
[rounds]
num_rounds = ROUNDS
fraction_train = SHARE
fraction_evaluate = SHARE
[training]
local_epochs = 1
learning_rate = {simple_cnn.LEARNING_RATE}
[broadcast]
values = "fp32"
fraction = 1
[[strategies]]
name = "fedavg"
[trainer]
device = "DEVICE"
"""


def cells(settings: Settings) -> list[Cell]:
    """The three ways, the quick ones first."""
    ways = {TRAINER: by_trainer, PFL: by_pfl, EMULATOR: by_emulator}
    return [Cell({"by": name}, partial(way, settings)) for name, way in ways.items()]


def _cohort(settings: Settings) -> int:
    fleet = SIZES[settings.size].pfl
    return round(fleet.devices * fleet.fraction)


def _figures(settings: Settings, seconds: list[float]) -> Figures:
    """The median round, without the first, in which kernels are chosen; of a single one, that."""
    round_s = median(seconds[1:] or seconds)
    return {"round_s": round_s, "examples_s": _cohort(settings) * simple_cnn.IMAGES / round_s}


def by_trainer(settings: Settings) -> Figures:
    """Train a cohort, and average its models."""
    fleet, cohort = SIZES[settings.size].pfl, _cohort(settings)
    os.environ[simple_cnn.USERS] = str(fleet.devices)
    x, y = simple_cnn.load()
    torch.manual_seed(0)
    row = TensorSpec("float32", simple_cnn.SHAPE)
    of = Problem(simple_cnn.build(), CLASSIFICATION, simple_cnn.BATCH_SIZE, row)
    trainer = VectorisedTrainer(of, "fp32", torch.device(settings.device), cohort)
    training = Training(1, simple_cnn.LEARNING_RATE)
    users = [
        Examples(x[start : start + simple_cnn.IMAGES], y[start : start + simple_cnn.IMAGES])
        for start in range(0, fleet.devices * simple_cnn.IMAGES, simple_cnn.IMAGES)
    ]
    theta, rng, seconds = of.network.theta, np.random.default_rng(0), list[float]()
    for number in range(fleet.rounds):
        start = time.perf_counter()
        chosen = rng.choice(fleet.devices, cohort, replace=False)
        tasks = [Task(TrainRequest(theta, training, number), users[user]) for user in chosen]
        ends = [end for end in trainer.train(tasks) if isinstance(end, Trained)]
        theta = np.mean([end.theta for end in ends], axis=0)
        seconds.append(time.perf_counter() - start)
    return _figures(settings, seconds)


def by_emulator(settings: Settings) -> Figures:
    """A whole emulation."""
    size = SIZES[settings.size]
    os.environ[simple_cnn.USERS] = str(size.pfl.devices)
    text = fleet(size, settings.device)
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        log = Path(name) / "log"
        try:
            found = emulated(text, Path(name), log, settings.left())
        except Unavailable as exc:
            raise Missing(reason(exc, log)) from exc
    return _figures(settings, [each.seconds for each in found.rounds])


def fleet(size: Size, device: str) -> str:
    """The text of the emulation's fleet file."""
    text = FLEET
    for key, value in (
        ("USERS", size.pfl.devices),
        ("WORKERS", size.workers[0]),
        ("ROUNDS", size.pfl.rounds),
        ("SHARE", size.pfl.fraction),
        ("DEVICE", device),
    ):
        text = text.replace(key, str(value))
    return text


def by_pfl(settings: Settings) -> Figures:
    """pfl-research's simulation in a separate process."""
    if find_spec("pfl") is None:
        raise Missing("pfl-research is not installed here (pip install pfl)")
    of = SIZES[settings.size].pfl
    words = [sys.executable, "-m", "tools.bench.elsewhere.with_pfl"]
    words += [*map(str, (of.devices, _cohort(settings), of.rounds))]
    words += ["--device", settings.device]
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        log = Path(name) / "log"
        try:
            lines = output("with_pfl.py", words, log, settings.left()).splitlines()
        except Unavailable as exc:
            raise Missing(reason(exc, log)) from exc
    seconds: list[float] = json.loads(lines[-1])["rounds"]
    return _figures(settings, seconds)
