"""The simulation on a link that also reorders: every frame takes its own time, up to three seconds.

A broker that keeps the order of a connection still has several of them in turn, and clusters keep none.
An order that arrives after its own receipt must not be worked on again: a second training would change
the residual, and the model that only the device has.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.system.test_simulation import CONFIGS, Faults, World, play

from sedge_protocol.wire.effects import Send

SLOWEST_S = 3.0


class Reordering(World):
    """A world whose frames overtake one another."""

    def publish(self, send: Send, delay_s: float) -> None:
        """Hand a message over whenever it gets there."""
        slow = self.faults.active and self.faults.drop > 0
        super().publish(
            send, float(self.faults.rng.uniform(delay_s, SLOWEST_S)) if slow else delay_s
        )


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in memory where there is one; no power is lost here."""

    def nothing(descriptor: int) -> None:
        return

    monkeypatch.setattr(os, "fsync", nothing)
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as name:
        yield Path(name)


@pytest.mark.parametrize("seed", [8, 10, 11, 12])
@pytest.mark.parametrize("name", ["fedobp", "local"])
def test_frames_that_overtake_one_another_change_nothing(
    memory: Path, name: str, seed: int
) -> None:
    quiet_folder, folder = memory / "quiet", memory / "hostile"
    quiet_folder.mkdir()
    folder.mkdir()
    quiet = play(quiet_folder, name, Faults(0, 0, 0, 0, 0))
    config = msgspec.structs.replace(
        CONFIGS[name], min_train_devices=3, min_available_devices=3, deadline_s=86400.0
    )
    faults = Faults(seed, crash=0.002, drop=0.03, corrupt=0.01, disk=0.002)
    world = Reordering(folder, config, 3, faults)
    world.run(until_s=20_000.0)
    assert faults.crashes + faults.dropped + faults.corrupted + faults.full > 0
    assert world.final() == quiet.final()
