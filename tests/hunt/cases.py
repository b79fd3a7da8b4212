"""Which fleet a seed plays, and what became of it."""

import shutil
import tempfile
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec
from tests.hunt.chance import Chance
from tests.hunt.machines import DEVICES, RUN, lay
from tests.hunt.world import World

from sedge_cloud.coding import EXACT, WHOLE, CodecConfig
from sedge_cloud.config import RobustConfig, RunConfig, TrainingConfig
from sedge_cloud.runs.run import StrategyState
from sedge_protocol.codec import ValueCoding

TRUSTING = RobustConfig(clip=0, rule="mean", max_weight=0)
ADDS_UP = RunConfig(
    strategy="fedavg",
    num_rounds=3,
    broadcast=WHOLE,
    codec=CodecConfig(values=ValueCoding.FP32, fraction=0.3),
    robust=TRUSTING,
    training=TrainingConfig(learning_rate=1.0),
    min_train_devices=2,
    min_available_devices=2,
    deadline_s=15.0,
    offline_grace_s=5.0,
)


def of_all(config: RunConfig) -> RunConfig:
    """Nobody can be spared: otherwise the end depends on who was late."""
    return msgspec.structs.replace(
        config,
        min_train_devices=len(DEVICES),
        min_available_devices=len(DEVICES),
        min_updates=len(DEVICES),
        deadline_s=86400.0,
    )


# By name: the run, and how many processes serve it. Where a round waits for all, the last bytes are those
# of a run without faults; where it does not, the judge adds up what counted.
CASES = {
    "late updates are left": (ADDS_UP, 1),
    "two processes": (msgspec.structs.replace(ADDS_UP, late_updates="count"), 2),
    "late updates count": (msgspec.structs.replace(ADDS_UP, late_updates="count"), 1),
    "two processes, all wait": (of_all(ADDS_UP), 2),
    "fedobp": (
        of_all(RunConfig(
            strategy="fedobp",
            options={"quantile": 0.9995},
            num_rounds=3,
            codec=CodecConfig(values=ValueCoding.BF16, fraction=0.3),
        )),
        1,
    ),
    "local": (of_all(RunConfig(strategy="local_only", num_rounds=2, codec=EXACT)), 1),
}  # fmt: skip


@dataclass(frozen=True)
class Played:
    """A seed's world when it was over; ``error`` is empty when everything held."""

    seed: int
    case: str
    error: str
    struck: tuple[str, ...]
    trace: tuple[str, ...]
    seconds: float
    end: bytes


def case_of(seed: int) -> str:
    return list(CASES)[seed % len(CASES)]


@contextmanager
def folder() -> Generator[Path]:
    """A folder in memory where there is one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


@lru_cache
def laid(case: str) -> Path:
    """The folders in which a fleet of this case begins; deleted with this process."""
    place = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    _kept.append(place)
    lay(Path(place.name), CASES[case][0])
    return Path(place.name)


_kept: list["tempfile.TemporaryDirectory[str]"] = []


def play(seed: int, only: Collection[str] | None = None) -> Played:
    """Play a seed with all its faults, or with ``only`` these."""
    case = case_of(seed)
    found = _played(seed, case, only)
    waits_for_all = CASES[case][0].min_updates == len(DEVICES)
    if waits_for_all and not found.error and found.end != quiet(case):
        text = "the model is not that of the run without faults"
        return Played(seed, case, text, found.struck, found.trace, found.seconds, found.end)
    return found


@lru_cache
def quiet(case: str) -> bytes:
    """The model that a case ends with when nothing happens."""
    found = _played(0, case, ())
    assert not found.error, found.error
    return found.end


def _played(seed: int, case: str, only: Collection[str] | None) -> Played:
    chance = Chance(seed, only)
    with folder() as place:
        world = World(place, laid(case), chance, CASES[case][1])
        world.judge.adds_up = CASES[case][0].strategy == "fedavg"
        error, end = "", b""
        try:
            with world.used():
                world.run()
                row = next(row for row in world.store.runs() if row.run == RUN)
                end = msgspec.msgpack.decode(row.state, type=StrategyState).model_hash
        except Exception as exc:  # whatever it is, it is a find
            error = f"{type(exc).__name__}: {exc}"
            world.trace.append(f"{world.now:8.2f} s  {error}")
    shutil.rmtree(place, ignore_errors=True)
    return Played(seed, case, error, tuple(chance.struck), tuple(world.trace), world.now, end)
