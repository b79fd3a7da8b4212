"""The device that most tests of the agent begin with."""

import os
from pathlib import Path

import pytest
from tests.edge.harness import Harness

from sedge_protocol.layout import Theta


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Theta]:
    """The packed bundle of a small network, and its first theta (n,)."""
    from tests.edge.home import make_bundle  # with torch, which a device does not have

    return make_bundle(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    """Connected and welcomed."""
    device = Harness(tmp_path)
    device.pump(device.connect())
    return device


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk loses power here: what a flush is for is tested where it is simulated."""

    def nothing(descriptor: int) -> None:
        return

    monkeypatch.setattr(os, "fsync", nothing)
