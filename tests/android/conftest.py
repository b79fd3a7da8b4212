"""The compiled Java core, and fleets with Java devices."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.android import class_means
from tests.android.java import compiled
from tests.system.harness import RealFleet

from sedge_protocol.wire.bundle import save


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The core and its tests, compiled."""
    return compiled(tmp_path_factory.mktemp("java") / "classes")


@pytest.fixture(scope="session")
def means(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of class_means.py in a folder."""
    folder = tmp_path_factory.mktemp("bundle") / "means"
    save(folder, *class_means.bundle())
    return folder


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RealFleet]:
    """A broker, configured by ``sedge-cloud init``; the test starts the rest."""
    fleet = RealFleet(tmp_path)
    try:
        yield fleet
    finally:
        fleet.close()
