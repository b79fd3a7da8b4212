"""The store: every method, two processes at once, other schemas, damage, and what it refuses."""

import errno
import hashlib
import os
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import as_nobody, mode
from tests.cloud.stores import in_a_folder, open_store
from tests.fleet import failing

from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.receipts import RECEIVED
from sedge_cloud.store.records import ClosedRound
from sedge_cloud.store.rollouts import RolloutRow
from sedge_cloud.store.rows import (
    LATE_ROUNDS,
    ClientModelRow,
    OrderRow,
    RoundRow,
    RunRow,
    UpdateRow,
)
from sedge_cloud.store.schema import NAMED_UPDATES, SCHEMA, named_blobs_sql, steps_of
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host import blobs
from sedge_protocol.wire.frame import LATEST_CLOCK_S

RUN = RunRow("run", "running", b"config", b"B" * 32, b"state", 1.5)
ROUND = RoundRow("run", 1, "train", True, b"M" * 32, b"H" * 32, None)
ORDERS = [OrderRow("run", 1, name, b"patch", b"work", b"") for name in ("a", "b")]
GOOD = UpdateRow("run", 1, "a", b"U" * 32, b"report", 99, False)
KNOWN = ClientModelRow("run", "a", 1, b"M" * 32, b"patch", b"U" * 32, b"")


def filled(folder: Path) -> Store:
    """A store with a device, a run, and its first round open."""
    store = open_store(folder)
    store.add_device("a", b"s" * 32)
    store.add_run(RUN)
    store.open_round(ROUND, ORDERS)
    return store


def close(store: Store, number: int) -> None:
    row = store.round("run", number)
    assert row is not None
    assert store.close_round(ClosedRound("run", number, row.receipts, b"", b"", "running"))


def test_no_row_is_there_before_the_blobs_that_it_may_name(store: Store) -> None:
    store.blobs.write(b"named in a row")
    with (
        failing(store.blobs, "settle", StorageError("flush the names: Input/output error")),
        pytest.raises(StorageError, match="flush the names"),
    ):
        store.add_device("a", b"s" * 32)
    assert store.devices() == []
    store.add_device("a", b"s" * 32)


def test_others_write_while_blobs_are_under_way_that_a_transaction_will_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So an upload may last, and a server that ends idle transactions ends none for it."""
    for dialect in ("sqlite", "postgres"):
        monkeypatch.setattr(f"sedge_cloud.store.{dialect}.BUSY_S", 0.05)
    store, other = open_store(tmp_path), open_store(tmp_path)
    settle, waiting = store.blobs.settle, ["b"]

    def arrive() -> None:
        while waiting:
            other.add_device(waiting.pop(), b"t" * 32)
        settle()

    store.blobs.write(b"named in a row")
    monkeypatch.setattr(store.blobs, "settle", arrive)
    store.add_device("a", b"s" * 32)
    assert [device.device for device in store.devices()] == ["a", "b"]


def test_ids_of_devices(store: Store) -> None:
    store.add_device("a", b"1" * 32)
    with pytest.raises(ConfigError, match="device: found 'a', expected an id that is not enrolled"):
        store.add_device("a", b"3" * 32)
    with pytest.raises(ConfigError, match="device: found 'c', expected an enrolled device"):
        store.revoke_device("c")


def test_runs(store: Store) -> None:
    later = msgspec.structs.replace(RUN, run="also", created=2.0)
    store.add_run(later)
    store.add_run(RUN)
    assert store.runs() == [RUN, later]
    with pytest.raises(ConfigError, match="run: found 'run', expected a name that no run has yet"):
        store.add_run(RUN)
    store.set_status("also", "stopped")
    assert [row.status for row in store.runs()] == ["running", "stopped"]
    for name in ("also", "none"):  # what has ended ends once
        with pytest.raises(ConfigError, match="expected the name of a running run"):
            store.set_status(name, "stopped")


@in_a_folder
def test_a_round_comes_with_all_its_orders_or_not_at_all(tmp_path: Path) -> None:
    store = filled(tmp_path)
    second = msgspec.structs.replace(ROUND, round=2)
    twice = [msgspec.structs.replace(ORDERS[0], round=2)] * 2
    with pytest.raises(StorageError, match=r"sedge\.sqlite: UNIQUE constraint failed"):
        store.open_round(second, twice)
    assert store.rounds("run") == [ROUND] and store.orders("run", 2) == []


def test_nothing_is_written_for_a_run_that_has_been_deleted(tmp_path: Path) -> None:
    store = filled(tmp_path)
    with pytest.raises(StorageError, match="run run: it is running"):
        store.add_newcomer_orders(ROUND, [])  # as only a finished run has them
    store.set_status("run", "stopped")
    store.delete_run("run")
    for write in (
        lambda: store.open_round(ROUND, ORDERS),
        lambda: store.add_newcomer_orders(ROUND, ORDERS),
        lambda: store.close_round(ClosedRound("run", 1, 0, b"", b"", "running")),
        lambda: store.commit_receipt(GOOD),
        lambda: store.reject(GOOD.refused("lost", "its blob")),
        lambda: store.add_rollout(RolloutRow("run", 1, b"", "in_progress", b"", b"", 1.0)),
    ):
        with pytest.raises(StorageError, match="run run: it is deleted"):
            write()


def test_an_older_round_never_replaces_a_newer_client_model(tmp_path: Path) -> None:
    store = filled(tmp_path)
    for number in (4, 5, 6):
        store.open_round(msgspec.structs.replace(ROUND, round=number), [])
    for number, kept in ((5, 5), (4, 5), (5, 5), (6, 6)):
        row = msgspec.structs.replace(GOOD, round=number, device=f"a{number}{kept}")
        blob = bytes([number]) * 32
        with open_store(tmp_path)._transaction() as db:  # receipts are not what this is about
            db.execute("DELETE FROM updates")
        store.commit_receipt(row, msgspec.structs.replace(KNOWN, round=number, blob=blob))
        found = store.client_model("run", "a")
        assert found is not None and (found.round, found.blob) == (kept, bytes([kept]) * 32)
    assert store.client_model("run", "b") is None and store.client_model("other", "a") is None


def test_what_a_round_needs_is_kept_and_no_more(store: Store) -> None:
    store.add_run(RUN)
    last = 8
    for number in range(1, last + 1):
        blob = bytes([number])
        order = OrderRow("run", number, "a", b"", b"", b"arrays" + blob)
        round_ = RoundRow("run", number, "train", True, b"model" + blob, b"", None)
        store.open_round(round_, [order])
        row = UpdateRow("run", number, "a", b"update" + blob, b"", 1, False)
        other = msgspec.structs.replace(row, device="b", blob=b"other" + blob)
        known = ClientModelRow("run", "a", number, b"model" + blob, b"", row.blob, order.arrays)
        if number != last:
            store.commit_receipt(row, known)
        if number != 3:
            store.commit_receipt(other, None)
        if number != last:
            close(store, number)
    late = range(last - LATE_ROUNDS, last + 1)
    assert store.named_blobs() == (
        {RUN.bundle, b"other" + bytes([last])}
        # Round 7 is the device's last: its client model needs these.
        | {b"model\x07", b"update\x07", b"arrays\x07"}
        # An update that comes late to these rounds still becomes its client model.
        | {b"model" + bytes([n]) for n in late}
        | {b"arrays" + bytes([n]) for n in late}
    )


@in_a_folder
def test_what_is_needed_is_found_by_the_rounds_that_live(store: Store) -> None:
    """However many orders and updates there were: none of the tables that grow is gone through."""
    plans = [
        store._db.execute(f"EXPLAIN QUERY PLAN {sql}").fetchall()
        for sql in (named_blobs_sql(LATE_ROUNDS), f"SELECT 1 WHERE 1 NOT IN ({NAMED_UPDATES})")
    ]
    steps = [step for plan in plans for *_, step in plan]
    assert sum(step.startswith(("SEARCH o ", "SEARCH u ")) for step in steps) == 7 + 2
    assert not [step for step in steps if step.startswith(("SCAN o", "SCAN u", "CORRELATED"))]
    plan = store._db.execute(f"EXPLAIN QUERY PLAN {RECEIVED}", ("run", 1, "run", 1, 1)).fetchall()
    searches = [step for *_, step in plan if "updates" in step]
    assert len(searches) == 2 and all("(run=? AND " in step for step in searches)


def test_old_orders_keep_neither_patch_nor_work(store: Store) -> None:
    store.add_run(RUN)
    last = 7
    for number in range(1, last + 1):
        order = OrderRow("run", number, "a", b"patch", b"work", b"")
        store.open_round(msgspec.structs.replace(ROUND, round=number), [order])
        close(store, number)
    found = [store.order("run", number, "a") for number in range(1, last + 1)]
    kept = [bool(order and order.patch and order.work) for order in found]
    # An update that comes late to one of these may be taken, also should the last round have failed.
    assert all(found) and kept == [number >= last - LATE_ROUNDS for number in range(1, last + 1)]


@in_a_folder
def test_a_receipt_its_client_model_and_its_small_update_are_one(tmp_path: Path) -> None:
    store = filled(tmp_path)
    data, large = b"a small update", b"a large one"
    sha256, other = hashlib.sha256(data).digest(), store.blobs.write(large)
    store._db.execute(
        "CREATE TRIGGER full BEFORE INSERT ON client_models BEGIN SELECT RAISE(FAIL,'x'); END"
    )
    row = msgspec.structs.replace(GOOD, blob=sha256)
    with pytest.raises(StorageError, match="x"):
        store.commit_receipt(row, msgspec.structs.replace(KNOWN, blob=sha256), data)
    with pytest.raises(StorageError, match="No such file"):
        store.update_blob(sha256)
    assert store.update("run", 1, "a") is None and store.client_model("run", "a") is None
    store._db.execute("DROP TRIGGER full")
    store.commit_receipt(row, msgspec.structs.replace(KNOWN, blob=sha256), data)
    store.commit_receipt(msgspec.structs.replace(row, device="b"), None, data)  # the same bytes
    assert store.update_blob(sha256) == data and store.update_blob(other) == large
    store._db.execute("UPDATE small_updates SET data = x'00'")
    with pytest.raises(StorageError, match=r"sedge\.sqlite: update [0-9a-f]{64} does not match"):
        store.update_blob(sha256)


def test_small_updates_stay_for_as_long_as_they_are_named(tmp_path: Path) -> None:
    store = filled(tmp_path)

    def small() -> set[bytes]:
        return {bytes(data) for (data,) in store._db.execute("SELECT data FROM small_updates")}

    for number in (1, 2, 3):
        for name in "ab":
            data = f"{name}{number}".encode()
            row = UpdateRow("run", number, name, hashlib.sha256(data).digest(), b"r", 2, False)
            known = ClientModelRow("run", name, number, b"M", b"", row.blob, b"")
            store.commit_receipt(row, known if name == "a" else None, data)
        store.drop_small_updates()
        # Of device a the client model names the last one; of b the open round does.
        assert small() == {f"a{number}".encode(), f"b{number}".encode()}
        close(store, number)
        store.drop_small_updates()
        assert small() == {f"a{number}".encode()}
        store.open_round(msgspec.structs.replace(ROUND, round=number + 1), [])


@in_a_folder
def test_steps_that_cannot_be_read() -> None:
    assert steps_of(b"") == ()
    for bad in (b"\xc1", b"\x91\x90", msgspec.msgpack.encode("text")):
        with pytest.raises(StorageError, match="a round's steps cannot be read"):
            steps_of(bad)


@in_a_folder
@pytest.mark.parametrize("durable", [True, False])
def test_only_a_durable_store_flushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool
) -> None:
    store = open_folder(tmp_path, durable)
    (found,) = store._db.execute("PRAGMA synchronous").fetchone()
    assert found == (2 if durable else 0)
    flushed: list[int] = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    store.blobs.write(b"some bytes")
    assert bool(flushed) is durable
    store.close()


@in_a_folder
def test_an_impossible_clock_is_not_followed(tmp_path: Path) -> None:
    """It would leave no number for the starts after it: a frame has 4 bytes for them."""
    store = open_store(tmp_path)
    found = [store.next_incarnation(clock) for clock in (100, 2**32, 7_300_000_000, 50)]
    assert found == [100, 101, 102, 103]
    assert store.next_incarnation(LATEST_CLOCK_S) == LATEST_CLOCK_S < 2**32 - 2**20
    store.close()
    with closing(sqlite3.connect(tmp_path / "sedge.sqlite")) as db, db:  # by an earlier version
        db.execute("UPDATE meta SET value = 7300000000 WHERE key = 'incarnation'")
    assert open_store(tmp_path).next_incarnation(1_800_000_000) == 1_800_000_000


@in_a_folder
def test_what_the_disk_has_lost(tmp_path: Path) -> None:
    store = filled(tmp_path)
    blob = store.blobs.write(b"an update")
    assert store.missing_reason(blob) == ""
    for number, gone in ((errno.EIO, True), (errno.EACCES, False), (errno.EMFILE, False)):
        with failing(blobs, "read_at", OSError(number, "no")):
            assert bool(store.missing_reason(blob)) is gone
    path = tmp_path / "blobs" / blob.hex()
    path.write_bytes(b"an updatf")
    assert "9 bytes do not match its sha256" in store.missing_reason(blob)
    assert "No such file" in store.missing_reason(blob)  # set aside
    small = b"small"
    row = msgspec.structs.replace(GOOD, blob=hashlib.sha256(b"another").digest())
    store.commit_receipt(row, None, small)
    assert "does not match its sha256" in store.missing_reason(row.blob)
    assert [r.device for r in store.received("run", 1).counted] == ["a"]
    store.reject(row.refused("malformed", "lost"))
    found = store.update("run", 1, "a")
    assert store.received("run", 1).counted == [] and found is not None
    assert (found.rejected, found.detail) == ("malformed", "lost")


def test_two_connections_write_at_once(tmp_path: Path) -> None:
    def enrol(who: str) -> None:
        store = open_store(tmp_path / "state")
        for number in range(30):
            store.add_device(f"{who}{number}", b"s" * 32)
            store.next_incarnation(0)
        store.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(enrol, "xyz"))  # raises what one has raised
    store = open_store(tmp_path / "state")
    assert len(store.devices()) == 90 and store.next_incarnation(0) == 91


@in_a_folder
def test_a_lock_held_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.store.sqlite.BUSY_S", 0.05)
    one, two = open_store(tmp_path), open_store(tmp_path)
    with one._transaction():
        with pytest.raises(StorageError, match=r"sedge\.sqlite: database is locked"):
            two.add_device("a", b"s" * 32)
        assert two.devices() == []  # reading never waits
    two.add_device("a", b"s" * 32)


@in_a_folder
def test_another_schema_is_refused_and_not_touched(tmp_path: Path) -> None:
    schema = SCHEMA + 1
    store = filled(tmp_path)
    store._db.execute(f"PRAGMA user_version = {schema}")
    store.close()
    before = (tmp_path / "sedge.sqlite").read_bytes()
    with pytest.raises(StorageError) as caught:
        open_folder(tmp_path)
    said = f"schema {schema}, but this version uses {SCHEMA}; upgrade Sedge"
    assert str(caught.value) == f"{tmp_path}/sedge.sqlite: {said}"
    assert (tmp_path / "sedge.sqlite").read_bytes() == before


@in_a_folder
def test_every_flipped_bit_is_found_or_harmless(tmp_path: Path) -> None:
    """Or cut: whatever the disk does to the file, the only error is one line that names it."""
    store = filled(tmp_path)
    store.commit_receipt(GOOD, KNOWN)
    store.close()
    path = tmp_path / "sedge.sqlite"
    whole = path.read_bytes()
    refused = 0
    places = range(0, len(whole), 1009)
    flipped = [whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :] for at in places]
    for damaged in (whole[:5000], whole[:4096] + b"\xa5" * (len(whole) - 4096), *flipped):
        path.write_bytes(damaged)
        try:
            store = open_folder(tmp_path)
            try:
                store.check()
                for look in (store.devices, store.runs, store.named_blobs):
                    look()
                store.rounds("run")
                store.orders("run", 1)
                store.update("run", 1, "a")
                store.client_model("run", "a")
            finally:
                store.close()
        except StorageError as exc:
            assert "sedge.sqlite" in str(exc) and len(str(exc).splitlines()) == 1
            refused += 1
    assert refused > 3


@in_a_folder
def test_a_row_of_another_type_is_a_storage_error(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store._db.execute("UPDATE runs SET created = 'yesterday'")
    with pytest.raises(StorageError, match=r"sedge\.sqlite: damaged RunRow: .*created"):
        store.runs()


@in_a_folder
def test_only_the_owner_reads(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    before = os.umask(0)
    try:
        store = open_folder(folder)
        store.add_device("a", b"s" * 32)
        store.blobs.write(b"some bytes")
    finally:
        os.umask(before)
    assert mode(folder) == 0o700
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} > {"sedge.sqlite", "sedge.sqlite-wal", "sedge.sqlite-shm"}
    assert {path.name: oct(mode(path)) for path in files if mode(path) != 0o600} == {}
    assert all(mode(path) == 0o700 for path in folder.rglob("*") if path.is_dir())


@in_a_folder
def test_a_file_open_to_others_is_closed_to_them(tmp_path: Path) -> None:
    open_folder(tmp_path).close()
    (tmp_path / "sedge.sqlite").chmod(0o644)
    store = open_folder(tmp_path)
    store.add_device("a", b"s" * 32)
    assert {mode(path) for path in tmp_path.glob("sedge.sqlite*")} == {0o600}


@in_a_folder
def test_a_read_only_folder_is_one_clear_line() -> None:
    with as_nobody() as folder:
        (folder / "empty").mkdir(0o500)
        with pytest.raises(StorageError, match=r"empty.*(Permission|not readable)") as caught:
            open_folder(folder / "empty")
        assert len(str(caught.value).splitlines()) == 1
        state = folder / "state"
        filled(state).close()
        for path in state.iterdir():
            path.chmod(0o500 if path.is_dir() else 0o400)
        state.chmod(0o500)
        with pytest.raises(StorageError, match="state") as caught:
            open_folder(state)
        assert len(str(caught.value).splitlines()) == 1
        for path in (state, *state.iterdir()):
            path.chmod(0o700)


@in_a_folder
def test_a_file_in_the_way_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"state folder .*file: "):
        open_folder(tmp_path / "file")
    (tmp_path / "state" / "sedge.sqlite").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"sedge\.sqlite"):
        open_folder(tmp_path / "state")


@in_a_folder
def test_two_stores_of_a_process_keep_their_log_when_another_process_leaves(tmp_path: Path) -> None:
    """The status page opens a second one; then a command writes, and would end as the last user."""
    first, second = open_folder(tmp_path), open_folder(tmp_path)
    first.add_device("a", bytes(32))
    words = f"from pathlib import Path; from sedge_cloud.store.opening import open_folder; s = open_folder(Path({str(tmp_path)!r})); s.add_device('b', bytes(32)); s.close()"  # noqa: E501
    subprocess.run([sys.executable, "-c", words], check=True)
    assert (tmp_path / "sedge.sqlite-wal").exists()
    first.add_device("c", bytes(32))
    second.close()
    copy = tmp_path / "copy"  # as a power cut would leave it
    copy.mkdir()
    for name in ("sedge.sqlite", "sedge.sqlite-wal"):
        shutil.copy(tmp_path / name, copy)
    after = open_folder(copy)
    assert [row.device for row in after.devices()] == ["a", "b", "c"]
    first.close()
    after.close()


@in_a_folder
def test_an_older_schema_is_brought_up_in_one_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every step in order, or, with one that fails or is missing, none."""
    store = open_store(tmp_path)
    store.add_device("a", bytes(32))
    store.close()
    later = {
        SCHEMA: "ALTER TABLE devices ADD COLUMN note TEXT NOT NULL DEFAULT 'old'",
        SCHEMA + 1: "CREATE TABLE notes (note TEXT); INSERT INTO notes SELECT note FROM devices",
    }
    monkeypatch.setattr("sedge_cloud.store.connection.SCHEMA", SCHEMA + 2)
    for broken in ({SCHEMA: later[SCHEMA]}, {**later, SCHEMA + 1: "CREATE TABLE notes (; )"}):
        monkeypatch.setattr("sedge_cloud.store.connection.MIGRATIONS", broken)
        said = f"schema {SCHEMA}, but this version uses {SCHEMA + 2}; no|incomplete"
        with pytest.raises(StorageError, match=said):
            open_store(tmp_path)
    monkeypatch.setattr("sedge_cloud.store.connection.MIGRATIONS", later)
    for _ in range(2):
        store = open_store(tmp_path)
        assert store._db.execute("SELECT note FROM notes").fetchall() == [("old",)]
        assert store._db.execute("PRAGMA user_version").fetchone() == (SCHEMA + 2,)
        store.close()


def test_of_statements_the_last_ones_alone_are_kept(store: Store) -> None:
    """There are as many as numbers of values, and each is as long as these are many."""
    for number in range(300):
        store.devices_named([str(each) for each in range(number)])
    kept = vars(sys.modules[type(store._db).__module__])["_translated"].cache_info()
    assert 0 < kept.currsize <= 256
