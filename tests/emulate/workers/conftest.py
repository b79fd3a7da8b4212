"""What workers work on: a small fleet's setup, exported once for all of their tests, and orders on it."""

from pathlib import Path

import pytest
from tests.emulate.workers.fleet_of_four import OrderMaker, make_setup

from sedge_emulate.workers.setup import WorkerSetup


@pytest.fixture(scope="session")
def setup(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    return make_setup(tmp_path_factory.mktemp("setup"))


@pytest.fixture
def maker(setup: WorkerSetup, tmp_path: Path) -> OrderMaker:
    return OrderMaker(setup, tmp_path / "disk")
