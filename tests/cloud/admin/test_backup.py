"""A backup holds one moment whatever the service does meanwhile, and comes back whole or not at all."""

import hashlib
import io
import resource
import shutil
import sqlite3
import tarfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cloud.helper import FLEET, Cloud, all_rows, second_round, small_update
from tests.cloud.killed import kills
from tests.cloud.stores import open_store

from sedge_cloud.admin import backup as backups
from sedge_cloud.admin.backup import HEAD, Head, back_up, restore
from sedge_cloud.config import CloudConfig
from sedge_cloud.rounds.lifecycle import FINISHED
from sedge_cloud.runs import garbage as garbage_of
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.connection import Database
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_parts
from sedge_cloud.store.schema import TABLE_NAMES
from sedge_cloud.store.settings import BlobsConfig
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.wire.messages import Committed, Reject


@pytest.fixture
def busy(tmp_path: Path) -> Cloud:
    return second_round(tmp_path / "cloud")


def rows(folder: Path) -> dict[str, list[tuple[object, ...]]]:
    """Everything in the database of a state folder, and that each blob it names is there."""
    with closing(open_store(folder)) as store:
        return all_rows(store, TABLE_NAMES)


def at(folder: Path, fleet: str = FLEET) -> CloudConfig:
    return CloudConfig(fleet, str(folder))


def test_a_disk_is_lost_and_the_run_goes_on(busy: Cloud, tmp_path: Path) -> None:
    """The devices are a round ahead of what comes back; no receipt from before the backup is lost."""
    before, order_a, order_b = rows(busy.folder / "state"), busy.order("a"), busy.order("b")
    told = back_up(busy.store, FLEET, tmp_path / "b.tar")
    assert told[0].startswith(f"written: {tmp_path}/b.tar, ")
    busy.answer("b")
    busy.answer("a", "b")
    assert busy.state().round == 3
    busy.store.close()
    shutil.rmtree(busy.folder / "state")
    said = restore(tmp_path / "b.tar", at(busy.folder / "state"), replace=False)
    assert said[0].startswith("restored: the state of 20")
    assert "Everything later is lost" in said[-1]
    assert rows(busy.folder / "state") == before
    busy.restart()
    assert busy.state().round == 1
    (answer,) = busy.offer("a", small_update(order_a), order=order_a)
    assert isinstance(answer, Committed) and not answer.late
    ahead = msgspec.structs.replace(order_b, round=4)
    (answer,) = busy.offer("b", small_update(ahead), order=ahead)
    assert isinstance(answer, Reject) and answer.reason == "unknown-round"
    busy.hello()
    for _ in range(12):
        for name in "ab":
            busy.offer(name, small_update(busy.order(name)))
        busy.poll(61.0)  # orders come again after a minute
    assert [summary.round for summary in busy.summaries()] == [1, 2, 3, 4]
    assert [d.device for d in busy.summaries()[1].devices] == ["a", "b"]
    assert busy.run_row().status == FINISHED


def test_nothing_is_collected_while_a_backup_is_written(
    busy: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds close in the middle of it; the backup is of the moment at which it began."""
    monkeypatch.setattr(garbage_of, "ORPHAN_AGE_S", 0.0)
    before, copied = rows(busy.folder / "state"), list[int]()
    copy_rows_to = Store.copy_rows_to

    def then_rounds_go_on(store: Store, other: Database) -> None:
        copy_rows_to(store, other)
        store.blobs.write(b"named by nothing")
        busy.answer("b")
        for _ in range(2):
            busy.answer("a", "b")
        copied.append(busy.core.garbage.collect())

    monkeypatch.setattr(Store, "copy_rows_to", then_rounds_go_on)
    back_up(busy.store, FLEET, tmp_path / "b.tar")
    assert copied == [0] and busy.run_row().status == FINISHED
    assert busy.core.garbage.collect() > 0
    restore(tmp_path / "b.tar", at(tmp_path / "elsewhere"), replace=False)
    assert rows(tmp_path / "elsewhere") == before


def test_a_look_at_a_state_that_is_gone_is_no_state(busy: Cloud, tmp_path: Path) -> None:
    before, elsewhere = rows(busy.folder / "state"), tmp_path / "elsewhere"
    back_up(busy.store, FLEET, tmp_path / "b.tar")
    open_store(elsewhere).close()
    restore(tmp_path / "b.tar", at(elsewhere), replace=False)
    assert rows(elsewhere) == before


def test_what_is_there_stays_unless_it_is_given_up(busy: Cloud, tmp_path: Path) -> None:
    state, backup = busy.folder / "state", tmp_path / "b.tar"
    before = rows(state)
    back_up(busy.store, FLEET, backup)
    busy.answer("b")
    after = rows(state)
    with pytest.raises(ConfigError, match=r"restore into: found .*expected an empty store"):
        restore(backup, at(state), replace=False)
    with pytest.raises(ConfigError, match=r"b\.tar: fleet: found 'bench', expected .* fleet 'x'"):
        restore(backup, at(tmp_path / "new", "x"), replace=False)
    with lock_folder(state), pytest.raises(StorageError, match="another process is using"):
        restore(backup, at(state), replace=True)
    assert rows(state) == after
    busy.store.close()
    said = restore(backup, at(state), replace=True)
    assert "run run: goes back from round 2 to round 1" in said
    assert rows(state) == before


def test_a_damaged_state_is_replaced(busy: Cloud, tmp_path: Path) -> None:
    """Its log is not taken for the new database's."""
    state, backup = busy.folder / "state", tmp_path / "b.tar"
    before = rows(state)
    back_up(busy.store, FLEET, backup)
    busy.store.close()
    (state / "sedge.sqlite").write_bytes(b"no database" * 1000)
    (state / "sedge.sqlite-wal").write_bytes(b"no log" * 1000)
    with pytest.raises(ConfigError, match="expected an empty store"):
        restore(backup, at(state), replace=False)
    restore(backup, at(state), replace=True)
    assert rows(state) == before


def test_a_damaged_database_with_blobs_elsewhere_is_replaced(busy: Cloud, tmp_path: Path) -> None:
    """A blob that is damaged there is written again."""
    state, elsewhere, backup = tmp_path / "state", tmp_path / "objects", tmp_path / "b.tar"
    objects = BlobsConfig(f"file://{elsewhere}")
    config = CloudConfig(FLEET, str(state), blobs=objects)
    back_up(busy.store, FLEET, backup)
    restore(backup, config, replace=False)
    (state / "sedge.sqlite").write_bytes(b"no database" * 1000)
    model = elsewhere / busy.state().model.hex()
    model.write_bytes(b"no model")
    restore(backup, config, replace=True)
    shutil.rmtree(state / "objects")  # the copies
    with closing(open_parts(state, config.store, objects)) as store:
        assert [row.device for row in store.devices()] == ["a", "b"]
        for sha256 in Garbage(store).named_blobs():
            store.update_blob(sha256)


def test_damage_anywhere_is_refused_before_anything_is_written(busy: Cloud, tmp_path: Path) -> None:
    """Or is in bytes that mean nothing: those that fill a member up to a whole number of blocks."""
    back_up(busy.store, FLEET, tmp_path / "b.tar")
    good, expected = (tmp_path / "b.tar").read_bytes(), rows(busy.folder / "state")
    bad, refused = tmp_path / "bad.tar", 0
    flips = range(0, len(good), len(good) // 60)
    cuts = [good[:length] for length in (0, 100, 512, 1024, len(good) // 2, len(good) - 12_000)]
    for data in [*cuts, *(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in flips)]:
        bad.write_bytes(data)
        target = tmp_path / "target"
        try:
            restore(bad, at(target), replace=False)
        except StorageError as exc:
            refused += 1
            assert str(exc).startswith(f"backup {bad}: damaged, or not a backup: ")
            assert not target.exists()
        else:
            assert rows(target) == expected
            shutil.rmtree(target)
    assert refused > len(flips) // 2 + len(cuts) - 1


def packed(
    members: dict[str, bytes], change: Callable[[Head], Head] = lambda head: head,
    kind: bytes = tarfile.REGTYPE,
) -> bytes:  # fmt: skip
    """A backup of these members with a head that fits them, but for ``change``."""
    database = members.get("sedge.sqlite", b"")
    blobs = {name.removeprefix("blobs/"): len(data) for name, data in members.items()
             if name.startswith("blobs/")}  # fmt: skip
    digest = hashlib.sha256(database).hexdigest()
    head = change(Head(1, FLEET, time.time(), digest, len(database), blobs))
    coded = msgspec.json.encode(head)
    first = hashlib.sha256(coded).hexdigest().encode() + b"\n" + coded
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for name, data in {HEAD: first, **members}.items():
            member = tarfile.TarInfo(name)
            member.size, member.linkname = len(data), "/etc/passwd"
            member.type = kind if name != HEAD else tarfile.REGTYPE
            tar.addfile(member, io.BytesIO(data))
    return file.getvalue()


def blob_of(data: bytes) -> str:
    return f"blobs/{hashlib.sha256(data).hexdigest()}"


def listing(blobs: dict[str, int]) -> Callable[[Head], Head]:
    return lambda head: msgspec.structs.replace(head, blobs=blobs)


NONE = "00" * 32
DATABASE = {"sedge.sqlite": b"x" * 100}
HOSTILE: dict[str, tuple[bytes, str]] = {
    "a path out of the folder": (packed({**DATABASE, "blobs/../../x": b"x"}), "non-hexadecimal"),
    "an absolute path": (packed({**DATABASE, "/etc/x": b"x"}), "contains more than its head lists"),
    "a link": (packed(DATABASE, kind=tarfile.SYMTYPE), "expected the file 'sedge.sqlite'"),
    "a device": (packed(DATABASE, kind=tarfile.CHRTYPE), "expected the file 'sedge.sqlite'"),
    "no database": (packed({}), "found nothing more, expected the file 'sedge.sqlite'"),
    "one blob too many": (
        packed({**DATABASE, blob_of(b"a"): b"a"}, listing({})), "contains more than its head lists",
    ),
    "one blob too few": (packed(DATABASE, listing({NONE: 5})), "expected the file 'blobs/0000"),
    "a wrong digest": (packed({**DATABASE, blob_of(b"a"): b"b"}), "does not match its size and sha256"),
    "a negative size": (packed(DATABASE, listing({NONE: -5})), "not a valid blob: name"),
    "a later format": (packed(DATABASE, lambda h: msgspec.structs.replace(h, format=2)), "format 2"),
    "no archive": (b"PK\x03\x04" * 1000, "damaged, or not a backup"),
    "no head": (packed(DATABASE).replace(HEAD.encode(), b"other.txt", 1), "damaged, or not a backup"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_backup_is_refused_before_anything_is_written(tmp_path: Path, case: str) -> None:
    data, said = HOSTILE[case]
    (tmp_path / "b.tar").write_bytes(data)
    with pytest.raises(StorageError, match=rf"backup .*b\.tar: .*{said}") as caught:
        restore(tmp_path / "b.tar", at(tmp_path / "state"), replace=False)
    assert len(str(caught.value).splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["b.tar"]


def test_a_database_that_is_none_leaves_the_state_as_it_was(busy: Cloud, tmp_path: Path) -> None:
    """The digests are right, and SQLite says no."""
    state, before = busy.folder / "state", rows(busy.folder / "state")
    (tmp_path / "b.tar").write_bytes(packed(DATABASE))
    busy.store.close()
    with pytest.raises(StorageError, match="not a database"):
        restore(tmp_path / "b.tar", at(state), replace=True)
    assert rows(state) == before and not (state / "loading").exists()


def test_a_full_disk_leaves_no_half_a_backup(
    busy: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "b.tar").write_bytes(b"the last one")
    write = backups._write

    def write_little(*args: Any) -> int:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        try:
            return write(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(backups, "_write", write_little)
    with pytest.raises(StorageError, match=r"write backup .*b\.tar: File too large") as caught:
        back_up(busy.store, FLEET, out / "b.tar")
    assert len(str(caught.value).splitlines()) == 1
    (path,) = out.iterdir()
    assert (path.name, path.read_bytes()) == ("b.tar", b"the last one")
    assert not (busy.folder / "state" / "saving").exists()


def test_a_full_disk_leaves_the_state_as_it_was(busy: Cloud, tmp_path: Path) -> None:
    state, backup = busy.folder / "state", tmp_path / "b.tar"
    back_up(busy.store, FLEET, backup)
    busy.answer("b")
    before = rows(state)
    busy.store.close()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        with pytest.raises(StorageError, match=r"write .*sedge\.sqlite: File too large"):
            restore(backup, at(state), replace=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert rows(state) == before and not (state / "loading").exists()


def test_a_damaged_blob_is_told_and_the_next_backup_is_without(busy: Cloud, tmp_path: Path) -> None:
    path = busy.folder / "state" / "blobs" / busy.state().initial.hex()
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageError, match=f"read blob {path}: .*sha256"):
        back_up(busy.store, FLEET, tmp_path / "b.tar")
    assert not list(tmp_path.glob("b.tar*"))
    told = back_up(busy.store, FLEET, tmp_path / "b.tar")
    assert "lost earlier and therefore not included: 1 blobs" in told


def test_kill_at_each_step_of_a_backup(busy: Cloud, tmp_path: Path) -> None:
    state, backup = busy.folder / "state", tmp_path / "b.tar"
    before = rows(state)

    def command() -> None:
        with closing(open_store(state)) as store:
            back_up(store, FLEET, backup)

    steps = 0
    for killed in kills(command):
        steps += 1
        assert rows(state) == before
        assert backup.exists() <= (not killed or steps > 2)
        if backup.exists():
            restore(backup, at(tmp_path / str(steps)), replace=False)
            assert rows(tmp_path / str(steps)) == before
    assert steps > 5


def test_kill_at_each_step_of_a_restore(busy: Cloud, tmp_path: Path) -> None:
    """There is the old state or the new one, and either is whole."""
    state, backup = busy.folder / "state", tmp_path / "b.tar"
    new = rows(state)
    back_up(busy.store, FLEET, backup)
    busy.answer("b")
    old, seen = rows(state), list[bool]()
    busy.store.close()
    for _ in kills(lambda: restore(backup, at(state), replace=True)):
        found = rows(state)
        assert found in (old, new)
        seen.append(found == new)
    assert seen[-1] and not seen[0] and seen == sorted(seen) and len(seen) > 20


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ("PRAGMA user_version = 999", "schema 999"),
        (
            "CREATE TRIGGER evil DELETE ON runs BEGIN DELETE FROM devices; END",
            "trigger 'evil', which",
        ),
        ("CREATE VIEW more AS SELECT secret FROM devices", "found view 'more'"),
        ("CREATE TABLE more (a)", "found table 'more'"),
        ("CREATE UNIQUE INDEX more ON runs (status)", "found index 'more'"),
        (
            "DROP TABLE small_updates;"
            "CREATE TABLE small_updates (sha256 BLOB PRIMARY KEY, data BLOB NOT NULL CHECK (0))",
            "found table 'small_updates'",
        ),
    ],
)
def test_a_database_with_another_schema_is_refused(
    busy: Cloud, tmp_path: Path, changes: str, found: str
) -> None:
    back_up(busy.store, FLEET, tmp_path / "b.tar")
    with tarfile.open(tmp_path / "b.tar") as tar:
        members = {m.name: tar.extractfile(m).read() for m in tar.getmembers()}  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
    (tmp_path / "x.sqlite").write_bytes(members["sedge.sqlite"])
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as db:
        db.executescript(changes)
        db.execute("PRAGMA journal_mode = DELETE")
    del members[HEAD]
    changed = {**members, "sedge.sqlite": (tmp_path / "x.sqlite").read_bytes()}
    (tmp_path / "changed.tar").write_bytes(packed(changed))
    with pytest.raises(StorageError, match=found):
        restore(tmp_path / "changed.tar", at(tmp_path / "state"), replace=False)
    assert not (tmp_path / "state" / "sedge.sqlite").exists()
