"""The device that most tests of the agent begin with."""

import os
from pathlib import Path

import pytest
from tests.edge.harness import Harness


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
