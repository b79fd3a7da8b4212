"""Bundles and fleets for the system tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.system.faultproxy import FaultProxy
from tools.bench.parts.real_fleet import RealFleet

from sedge_export.exporter import export
from sedge_export.models import mlp


def make_bundle(folder: Path, hidden: int) -> Path:
    """An MLP for the 8x8 digits with this many hidden units, exported."""
    torch.manual_seed(0)
    model = mlp(64, hidden, 10)
    export(
        model, torch.randn(16, 1, 8, 8), batch_size=16, name="digits", num_classes=10, folder=folder
    )
    return folder


def run_text(strategy: str, rounds: int, devices: int, more: str = "") -> str:
    """A run file whose rounds need so many devices."""
    needs = f"min_train_devices = {devices}\nmin_available_devices = {devices}\n"
    return f'strategy = "{strategy}"\nnum_rounds = {rounds}\n{needs}{more}'


def begin(fleet: RealFleet, *devices: str) -> None:
    """Start the coordinator, and the agents of new devices."""
    fleet.start_cloud()
    for seed, device in enumerate(devices):
        fleet.add_device(device, seed)
        fleet.start_agent(device)


@pytest.fixture(scope="session")
def small_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """2,410 parameters: an update is one inline offer."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "small", 32)


@pytest.fixture(scope="session")
def large_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """4.5 million parameters: a dense update is 18 MB, and still over 10 MB when coded."""
    return make_bundle(tmp_path_factory.mktemp("bundle") / "large", 60_000)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RealFleet]:
    """A broker, configured by ``sedge-cloud init``; the test starts the rest."""
    fleet = RealFleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()


@pytest.fixture
def proxy(fleet: RealFleet) -> Iterator[FaultProxy]:
    """A bad link to the fleet's broker."""
    proxy = FaultProxy(fleet.port)
    try:
        yield proxy
    finally:
        proxy.close()
