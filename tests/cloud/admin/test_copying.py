"""A fleet moves between stores: by copying, and by a backup of one that another is restored from."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cloud.helper import FLEET, Cloud, all_rows, second_round, small_update
from tests.cloud.stores import FOLDER, config_of, open_store

from sedge_cloud.admin.backup import back_up, restore
from sedge_cloud.admin.copying import copy_blobs, copy_store
from sedge_cloud.config import CloudConfig
from sedge_cloud.rounds.lifecycle import FINISHED
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.loop import lock_folder


@pytest.fixture
def busy(tmp_path: Path, engine: str) -> Cloud:
    return second_round(tmp_path / "cloud")


@pytest.fixture(params=[FOLDER, "this kind"])
def target(request: pytest.FixtureRequest, tmp_path: Path, engine: str) -> Iterator[Store]:
    """An empty store: in a folder, or of the kind that the fleet's own is."""
    opened = open_folder if request.param == FOLDER else open_store
    with closing(opened(tmp_path / "target")) as store:
        yield store


def all_of(store: Store) -> dict[str, list[tuple[object, ...]]]:
    names = "meta devices runs rounds orders updates client_models traffic small_updates"
    return all_rows(store, names.split())


def test_a_fleet_goes_on_in_another_store(busy: Cloud, target: Store) -> None:
    before = all_of(busy.store)
    order = busy.order("b")
    (told,) = copy_store(busy.store, target)
    assert told.startswith(f"copied to {target.place}: 2 devices, 1 run, ")
    assert all_of(target) == before == all_of(busy.store)
    busy.store.close()
    busy.store = target
    busy.core = busy._incarnation()
    busy.hello()
    busy.offer("b", small_update(order))
    busy.poll()
    for _ in range(2):
        busy.answer("a", "b")
    assert busy.run_row().status == FINISHED


def test_copying_is_continued(busy: Cloud, target: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is looked at, and a blob that came damaged is copied again."""
    before, written = all_of(busy.store), list[bytes]()
    write = target.blobs.write

    def cut(data: bytes) -> bytes:
        if len(written) == 1:
            raise StorageError("the server is away")
        written.append(write(data))
        return written[-1]

    with monkeypatch.context() as patched:
        patched.setattr(target.blobs, "write", cut)
        with pytest.raises(StorageError, match="the server is away"):
            copy_store(busy.store, target)
    assert target.devices() == [] and target.runs() == []
    told = copy_store(busy.store, target)
    assert "already there and intact: 1 blobs" in told
    assert all_of(target) == before


def test_a_damaged_blob_is_not_copied(busy: Cloud, target: Store, engine: str) -> None:
    with pytest.MonkeyPatch.context() as patched:

        def damaged(sha256: bytes) -> bytes:
            raise StorageError(f"read blob {sha256.hex()}: 3 bytes do not match its sha256")

        patched.setattr(busy.store.blobs, "read", damaged)
        with pytest.raises(StorageError, match="do not match its sha256"):
            copy_store(busy.store, target)
    assert target.runs() == []


def test_a_store_with_a_fleet_is_not_copied_to(busy: Cloud, target: Store) -> None:
    target.add_device("stranger", bytes(32))
    with pytest.raises(ConfigError, match=r"found '1 device, 0 runs in .*', expected an empty one"):
        copy_store(busy.store, target)
    assert [row.device for row in target.devices()] == ["stranger"]


def test_nothing_is_copied_beside_a_coordinator(busy: Cloud, target: Store) -> None:
    with lock_folder(busy.store.folder), pytest.raises(StorageError, match="another process"):
        copy_store(busy.store, target)
    with (
        open_store(busy.folder / "state").serving(),
        pytest.raises(StorageError, match="a coordinator is running"),
    ):
        copy_store(busy.store, target)
    assert target.runs() == []


def test_a_backup_of_either_store_restores_into_either(
    busy: Cloud, target: Store, tmp_path: Path, engine: str
) -> None:
    before, backup = all_of(busy.store), tmp_path / "b.tar"
    told = back_up(busy.store, FLEET, backup)
    assert "devices: 2" in told and "run run: running, 1 rounds closed" in told
    restore(backup, CloudConfig(FLEET, str(tmp_path / "folder")), replace=False)
    with closing(open_folder(tmp_path / "folder")) as store:
        assert all_of(store) == before
    target.add_device("stranger", bytes(32))
    is_folder = target.place.endswith("sedge.sqlite")
    config = (
        CloudConfig(FLEET, str(target.folder)) if is_folder else config_of(FLEET, target.folder)
    )
    with pytest.raises(ConfigError, match="expected an empty store"):
        restore(backup, config, replace=False)
    with (
        lock_folder(target.folder) if is_folder else target.serving(),
        pytest.raises(StorageError, match=r"a coordinator is running|another process"),
    ):
        restore(backup, config, replace=True)
    target.close()
    restore(backup, config, replace=True)
    with closing((open_folder if is_folder else open_store)(target.folder)) as store:
        assert all_of(store) == before
    assert not (target.folder / "loading").exists()


def test_blobs_that_the_disk_has_lost_stay_lost(busy: Cloud, target: Store) -> None:
    blob = busy.state().initial
    busy.store.blobs.collect(Garbage(busy.store).named_blobs() - {blob}, 0.0)
    copied, skipped, lost = copy_blobs(busy.store, target)
    assert copied > 0 and (skipped, lost) == (0, 1)
