"""A device whose state an earlier version has left goes on: what it had to send, and what it was to do."""

import tarfile
from pathlib import Path

import pytest
from tests.edge.before.make_folder import orders
from tests.edge.harness import Harness

pytestmark = [pytest.mark.both_cores, pytest.mark.python_only("own state")]

BEFORE = Path(__file__).with_name("before") / "protocol-1.tar.xz"


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    """The device of protocol version 1, started by the agent of today."""
    with tarfile.open(BEFORE) as archive:
        archive.extractall(tmp_path, filter="data")
    harness = Harness(tmp_path / "state")
    orders(harness, {})  # what the coordinator still serves
    return harness


def test_nothing_of_it_is_lost(harness: Harness) -> None:
    before = harness.on_disk()
    (waiting,) = before.outbox
    assert (waiting.run, waiting.round, set(before.orders)) == ("run", 2, {"levels"})
    harness.connect()
    harness.settle()
    assert set(harness.updates) == {("run", 2), ("levels", 1)} and not harness.declines
    assert harness.on_disk().outbox == () and not harness.on_disk().orders
    assert set(harness.on_disk().runs) == {"run", "levels"}
    assert harness.report(1, "levels").patched is not None  # its levels are ignored
