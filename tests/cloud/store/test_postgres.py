"""Rows in PostgreSQL: what is particular to it, and what becomes of a server that goes away."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from tests.cloud.helper import RUN, Cloud, small_update
from tests.cloud.stores import on_servers, open_store
from tests.fleet import always
from tools.bench.parts.servers import PostgresServer, Servers

from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store import postgres
from sedge_cloud.store.database import Store
from sedge_cloud.store.leases import ProcessRow
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.postgres import Postgres
from sedge_cloud.store.schema import SCHEMA
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.wire.messages import Busy, Committed

pytestmark = on_servers


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of one test's own, to be stopped."""
    started = PostgresServer()
    yield started
    started.close()


def refused(url: str, password: str | None = None) -> str:
    """What an attempt to connect says, in one line."""
    with pytest.raises(StorageError) as caught:
        Postgres(url, password)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_who_cannot_connect_is_told_why(servers: Servers) -> None:
    url = servers.postgres.url("empty")
    with pytest.raises(ConfigError, match=r"store\.url: found .*expected postgresql://user@host"):
        Postgres("postgresql://[broken")
    port = f":{servers.postgres.port}/"
    assert "Connection refused" in refused(url.replace(port, ":1/"))
    assert 'database "nowhere" does not exist' in refused(servers.postgres.url("nowhere"))
    assert 'role "stranger" does not exist' in refused(url.replace("sedge@", "stranger@"))


def test_a_wrong_password_is_one_line_without_it(server: PostgresServer) -> None:
    server.execute("ALTER USER sedge PASSWORD 'right'")
    rules = server.folder / "data" / "pg_hba.conf"
    rules.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
    server.execute("SELECT pg_reload_conf()")
    url = server.url("postgres")
    said = ""
    while "password authentication failed" not in said:  # until the rules are read
        try:
            Postgres(url, "wrong").close()
        except StorageError as exc:
            said = str(exc)
    assert "wrong" not in said.replace("password", "") and len(said.splitlines()) == 1
    Postgres(url, "right").close()


def test_values_are_what_they_are_in_sqlite(store: Store) -> None:
    """No NUL in a text, numbers for truth values, and devices in the order of their bytes."""
    for name in ("b", "a-2", "a1", "a"):
        store.add_device(name, bytes(32))
    assert [row.device for row in store.devices()] == ["a", "a-2", "a1", "b"]
    store._db.execute("UPDATE devices SET revoked = ? WHERE device = ?", (True, "a"))
    assert [row.device for row in store.devices() if row.revoked] == ["a"]
    store._db.execute("UPDATE devices SET hello = ? WHERE device = '%'", (b"\0",))
    row = store._db.execute("SELECT ? || '%'", ("a\0b",)).fetchone()
    assert row == ("a\N{REPLACEMENT CHARACTER}b%",)


def test_only_others_commits_change_the_version(tmp_path: Path) -> None:
    one, two = open_store(tmp_path), open_store(tmp_path)
    before = one.version(), two.version()
    one.add_device("a", bytes(32))
    one.add_device("b", bytes(32))
    assert one.version() == before[0] and two.version() == before[1] + 2
    with one.transaction(dry_run=True):
        one.add_device("c", bytes(32))
    assert two.version() == before[1] + 2


def test_a_run_is_not_deleted_while_an_update_is_received(cloud: Cloud) -> None:
    """The receipt waits for the deletion, or the deletion for the receipt: never half of either."""
    cloud.store.set_status(RUN, "stopped")
    other, said = open_store(cloud.folder / "state"), list[str]()

    def delete() -> None:
        other.delete_run(RUN)
        said.append("deleted")

    with cloud.store._transaction() as db:
        cloud.store._require_run(db, RUN)
        thread = threading.Thread(target=delete)
        thread.start()
        thread.join(0.3)
        assert said == []
        cloud.store.add_device("late", bytes(32))
        said.append("received")
    thread.join()
    assert said == ["received", "deleted"] and cloud.store.runs() == []


def test_a_row_locked_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "BUSY_S", 0.05)
    one, two = open_store(tmp_path), open_store(tmp_path)
    one.next_incarnation(1)
    with one._transaction() as db:
        db.execute("UPDATE meta SET value = 7 WHERE key = 'incarnation'")
        with pytest.raises(StorageError, match="lock timeout") as caught:
            two.next_incarnation(1)
    assert len(str(caught.value).splitlines()) == 1
    assert two.next_incarnation(1) == 8


def test_another_schema_and_foreign_tables_are_refused(servers: Servers, tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store.check()
    place = store.place
    store._db.execute("CREATE TABLE foreign_table (x BIGINT)")
    with pytest.raises(
        StorageError, match=r"found column 'foreign_table\.x', which is not Sedge's"
    ):
        store.check()
    store._db.execute("DROP TABLE foreign_table")
    store._db.execute("CREATE RULE quiet AS ON INSERT TO devices DO INSTEAD NOTHING")
    with pytest.raises(StorageError, match=r"found rule 'devices\.quiet', which is not Sedge's"):
        store.check()
    store._db.execute("DROP RULE quiet ON devices")
    store._db.execute("DROP INDEX late_updates")
    with pytest.raises(StorageError, match=r"index 'updates\.late_updates' is missing"):
        store.check()
    store._db.execute(f"UPDATE sedge_store SET schema = {SCHEMA + 1}")
    with pytest.raises(StorageError) as caught:
        open_store(tmp_path)
    expected = f"{place}: schema {SCHEMA + 1}, but this version uses {SCHEMA}; upgrade Sedge"
    assert str(caught.value) == expected


def test_one_coordinator_serves_one_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on another machine; a backup and a collection keep out of each other's way."""
    monkeypatch.setattr(postgres, "BUSY_S", 0.05)
    one, two = open_store(tmp_path), open_store(tmp_path)
    with one.serving(), pytest.raises(StorageError, match="a coordinator is running on this store"):
        two.serving().__enter__()
    with two.serving(), pytest.raises(StorageError, match="alone, or a command such as restore"):
        one.serving(shared=True).__enter__()
    with one.serving(shared=True), two.serving(shared=True):
        pass
    with two.may_collect(), pytest.raises(StorageError, match="blobs are being collected"):
        one.blobs_held().__enter__()
    with one.blobs_held(), two.blobs_held(), open_store(tmp_path).may_collect() as may:
        assert not may
    with open_store(tmp_path).may_collect() as may:
        assert may
    assert Garbage(one).collect() == 0


def test_a_lock_is_taken_again_with_a_new_connection(tmp_path: Path, servers: Servers) -> None:
    one, two = open_store(tmp_path), open_store(tmp_path)
    with one.serving():
        servers.postgres.stop()
        servers.postgres.start()
        for store in (one, two):
            with suppress(StorageError):  # the connection has gone
                store.version()
        one.version()
        with pytest.raises(StorageError, match="a coordinator is running"):
            two.serving().__enter__()


def test_a_lock_that_another_process_takes_while_the_server_is_not_asked(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has failed is not asked again at once."""
    monkeypatch.setattr(postgres, "RECONNECT_S", 60.0)
    one, two = open_store(tmp_path), open_store(tmp_path)
    with one.serving():
        servers.postgres.stop()
        for _ in range(2):
            with pytest.raises(StorageError):
                one.version()
        servers.postgres.start()
        with suppress(StorageError):  # the connection has gone
            two.version()
        with two.serving():
            with pytest.raises(StorageError, match="Connection refused"):
                one.version()
            monkeypatch.setattr(postgres, "RECONNECT_S", 0.0)
            with pytest.raises(StorageError, match="another process has taken the lock"):
                one.version()
        one.version()


def test_what_changes_tables_processes_or_all_rows_waits_for_the_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "BUSY_S", 0.05)
    one, two = open_store(tmp_path), open_store(tmp_path)
    source, here = open_folder(tmp_path / "source"), ProcessRow(0, "host", "boot", 1, 1)
    changes: list[Callable[[], object]] = [
        lambda: open_store(tmp_path),
        lambda: two.join(here, always(False)),
        lambda: two.settle(always(()), always(False)),
        lambda: source.copy_rows_to(two),
    ]
    for change in changes:
        with one._transaction(alone=True), pytest.raises(StorageError, match="lock timeout"):
            change()
    for change in changes:
        change()
    source.close()


def test_a_full_disk_is_one_line_and_no_half_row() -> None:
    """As a limit on the size of the server's files: a table reaches it, the server's log does not."""
    megabytes = 20
    with (
        closing(PostgresServer(megabytes * 2**20)) as server,
        closing(Postgres(server.url("postgres"))) as db,
    ):
        db.begin()
        db.define("CREATE TABLE blobs (number INTEGER, data BLOB)", 1)
        db.commit()
        with pytest.raises(StorageError, match="could not extend file") as caught, db.errors():
            db.begin()
            for number in range(megabytes):
                db.execute("INSERT INTO blobs VALUES (?, ?)", (number, os.urandom(2**20)))
        db.rollback()
        assert len(str(caught.value).splitlines()) == 1
        assert db.execute("SELECT COUNT(*) FROM blobs").fetchone() == (0,)
        db.execute("INSERT INTO blobs VALUES (?, ?)", (1, b"small"))


@pytest.mark.parametrize("after", [False, True])
def test_an_answer_that_the_server_owes(cloud: Cloud, after: bool) -> None:
    """The connection is lost in the receipt's transaction: it counts once, whether or not it was stored."""
    cloud.hello()
    blob = small_update(cloud.order("a"))
    store, commit = cloud.store, cloud.store._db.commit

    def lost() -> None:
        if after:
            commit()
        store._db._db.close()  # type: ignore[attr-defined]
        if not after:
            commit()
        raise StorageError("the connection was lost")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(store._db, "commit", lost)
        (answer,) = cloud.offer("a", blob)
        assert isinstance(answer, Busy)
    (answer,) = cloud.offer("a", blob, number=2)
    assert isinstance(answer, Committed)
    cloud.answer("b")
    assert len(cloud.summaries()[0].devices) == 2
