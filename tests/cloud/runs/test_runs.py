"""The run_store: vectors out of references, exactly those the devices hold, and updates that it refuses."""

from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import RUN, Cloud
from tests.fleet import failing

from sedge_cloud.ingest import uploads as inbox
from sedge_cloud.runs.run import Run
from sedge_protocol.errors import StorageError
from sedge_protocol.host import blobs


def test_collecting_costs_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large fleet's blobs are not looked through for each small round."""
    core = Cloud(tmp_path).core
    named = {bytes([0, i]) * 16 for i in range(100)}
    monkeypatch.setattr(core.store, "named_blobs", lambda: set(named))
    looked: list[int] = []

    def collected(keep: set[bytes], age: float, part_age: float) -> int:
        looked.append(len(keep))
        return 0

    monkeypatch.setattr(core.store.blobs, "collect", collected)
    core.garbage.collect()
    for _ in range(100):
        core.garbage.collect_if_due(4)
    assert len(looked) - 1 == 3  # 400 orders, a hundred blobs and those of the run's state
    looked.clear()
    core.garbage.collect_if_due(1000)
    assert len(looked) == 1
    core.garbage.collect_if_due(looked[0] - 1)
    assert len(looked) == 1
    core.garbage.collect_if_due(1)
    assert len(looked) == 2


def test_a_run_whose_bundle_is_gone(cloud: Cloud) -> None:
    for blob, why in ((bytes(32), "read blob"), (cloud.store.blobs.write(b"no bundle"), "")):
        row = msgspec.structs.replace(cloud.run_row(), bundle=blob)
        with pytest.raises(StorageError, match=f"run run: its bundle cannot be read: {why}"):
            Run(row, cloud.store)


def test_an_unreadable_model_is_waited_for(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_ROW_BYTES", 2**12)
    cloud.hello()
    cloud.send("a", "b")
    cloud.poll()
    cloud.restart()
    run_store, run = cloud.core.run_store, cloud.core.runs[RUN]
    with (
        failing(blobs, "read_at", PermissionError(13, "Permission denied")),
        pytest.raises(StorageError, match="Permission denied"),
    ):
        run_store.client_model(run, "a")
    assert run_store.take_losses() == [] and run_store.client_model(run, "a").trained is not None
