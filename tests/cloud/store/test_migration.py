"""State folders that earlier versions left are opened, go on where they were, and lose nothing.

They are in before/, made by its make_folder.py, whose docstring says what is in them.
"""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import FLEET, Cloud
from tests.cloud.store.before.make_folder import JOIN, ROLLOUT, TOKEN, close_round
from tests.cloud.stores import on_servers, open_store

from sedge_cloud.config import RunConfig
from sedge_cloud.facts.reader import Reader
from sedge_cloud.run_file import check_run
from sedge_cloud.store import connection
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.schema import OBJECTS, SCHEMA
from sedge_cloud.store.sqlite import Sqlite
from sedge_protocol.errors import StorageError

BEFORE = Path(__file__).with_name("before")
KEPT = [3, 4, 8, 9, 10]


def unpacked(folder: Path, schema: int) -> Path:
    """The folder as the version with this schema left it."""
    with tarfile.open(BEFORE / f"schema-{schema}.tar.xz") as tar:
        tar.extractall(folder, filter="data")
    return folder


def opened(folder: Path) -> Cloud:
    """A coordinator of today on the folder's state, and its devices after a new start of theirs."""
    cloud = Cloud.of(open_store(folder / "state"), folder, "abcd", incarnation=2)
    cloud.begin()
    return cloud


@pytest.mark.parametrize("schema", KEPT)
def test_an_open_round_closes_to_the_right_bytes(schema: int, tmp_path: Path) -> None:
    expected = json.loads((unpacked(tmp_path, schema) / "expected.json").read_text())
    cloud = opened(tmp_path)
    assert [row.status for row in cloud.store.runs()] == ["finished", "failed", "running"]
    current = cloud.core.open["second"]
    assert (current.received, current.settled) == ({"a", "b"}, {"a", "b", "c"})
    assert current.orders["c"].declined == "DiskFull: no room for 2 MB"
    cloud.hello()
    update = (tmp_path / "update").read_bytes()
    assert close_round(cloud, update) == expected["model_hash"]


def test_what_was_in_files_is_in_rows(tmp_path: Path) -> None:
    state = unpacked(tmp_path, 3) / "state"
    cloud = opened(tmp_path)
    facts = Reader(FLEET, state, cloud.store).read()
    first, broken, second = facts.runs
    assert broken.status == "failed"
    assert broken.why == "round 1 cannot be planned: no start for this device"
    assert [r.closed is not None and r.opened is not None for r in first.rounds] == [True, True]
    assert first.ended is not None and first.strategy == "fedavg"
    assert second.open is not None and second.open.opened is not None
    assert first.sums.closed == 2 and first.sums.up == sum(r.up for r in first.rounds) > 0
    devices = {device.device: device for device in facts.devices}
    assert [devices[name].updates for name in "abcd"] == [3, 3, 3, 3]
    assert all(devices[name].heard is not None for name in "abcd")
    assert devices["never"].heard is None
    assert len(cloud.store.disk()) == 1
    assert not (state / "live.msgpack").exists() and not (state / "history.jsonl").exists()


def test_what_a_history_has_lost_is_found_in_the_rounds(tmp_path: Path) -> None:
    """Or nowhere; what it says of an earlier run of a name is not believed."""
    state = unpacked(tmp_path, 3) / "state"
    lines = [{"event": "ended", "run": run, "why": "x", "at": 1.0} for run in ("first", "broken")]
    (state / "history.jsonl").write_text("\n".join(['{"event": "en', *map(json.dumps, lines)]))
    with closing(sqlite3.connect(state / "sedge.sqlite")) as db, db:
        db.execute("UPDATE runs SET status = 'failed' WHERE run = 'first'")
        for number in (1, 2):
            where = "WHERE run = 'first' AND round = ?"
            (coded,) = db.execute(f"SELECT summary FROM rounds {where}", (number,)).fetchone()
            summary = {**msgspec.msgpack.decode(coded), "failure": f"of {number}"}
            values = msgspec.msgpack.encode(summary), number
            db.execute(f"UPDATE rounds SET summary = ? {where}", values)
    with closing(open_folder(state)) as store:
        assert {row.run: row.why for row in store.runs() if row.status == "failed"} == {
            "first": "of 2",
            "broken": "",
        }


@pytest.mark.parametrize("schema", KEPT)
def test_the_tables_are_those_of_a_new_folder(schema: int, tmp_path: Path) -> None:
    with closing(open_folder(unpacked(tmp_path, schema) / "state")) as store:
        store.check()  # compares their text
        assert [row.device for row in store.devices()] == ["a", "b", "c", "d", "never"]
        assert len(store.traffic("first", 1)) == 4
        assert store.client_model("second", "a") is not None


def holds_what_was_asked(store: Store) -> None:
    """Nothing of what operators have asked for is lost, and the tables are today's."""
    lab = {"site": "lab", "rack": "7"}
    assert store.tags_of(["a", "b", "c"]) == {"a": lab, "b": lab}
    assert (set(store.paused()), store.tokens()) == ({"never"}, [TOKEN])
    assert (store.joins(["pending"]), store.rollouts("second")) == ([JOIN], [ROLLOUT])
    assert [(row.device, row.asked) for row in store.renewals()] == [("b", 5.0)]
    store.check()


def test_what_operators_have_asked_for_is_kept(tmp_path: Path) -> None:
    with closing(open_folder(unpacked(tmp_path, 8) / "state")) as store:
        holds_what_was_asked(store)


@on_servers
def test_it_is_kept_in_postgresql_too(tmp_path: Path) -> None:
    """The folder's tables as that schema made them there, with their rows."""
    store = open_store(tmp_path / "server")
    with closing(sqlite3.connect(unpacked(tmp_path, 8) / "state" / "sedge.sqlite")) as old:
        made = dict(old.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))
        tables = [name for name, sql in made.items() if sql.startswith("CREATE TABLE")]
        gone = [f"DROP TABLE {name}" for name, sql in OBJECTS.items() if "CREATE TABLE" in sql]
        with store.transaction():
            store._db.define(";".join([*gone, *made.values()]), 8)
            for table in tables:
                rows = old.execute(f"SELECT * FROM {table}").fetchall()
                store._db.insert(table, rows, len(rows[0]) if rows else 1)
    holds_what_was_asked(open_store(tmp_path / "server"))


def test_devices_have_been_enrolled_since_schema_9_at_a_time(tmp_path: Path) -> None:
    with closing(open_folder(unpacked(tmp_path, 8) / "state")) as store:
        assert {row.enrolled for row in store.devices()} == {0.0}
        before = store.clock()
        store.add_device("new", bytes(32))
        store.reissue_device("never", bytes(32))
        known = store.devices_named(["a", "new", "never"])
        assert known["a"].enrolled == 0.0
        assert before <= known["new"].enrolled <= known["never"].enrolled <= store.clock()


def test_todays_schema_has_a_folder() -> None:
    """After a change of the tables make one as make_folder.py says, and list it, for the next change."""
    assert SCHEMA in KEPT


def test_runs_keep_their_methods(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Options of theirs have other defaults or names now; values that a run file gave stay."""
    state = unpacked(tmp_path, 4) / "state"
    before: dict[str, tuple[str, dict[str, object]]] = {
        "first": ("subflot", {"lam": 0.0, "mix": 0.3}),
        "broken": ("subflot", {"lam": 2.0}),
        "second": ("fedobp", {"norm": "layer"}),
    }
    with closing(sqlite3.connect(state / "sedge.sqlite")) as db, db:
        for run, coded in db.execute("SELECT run, config FROM runs").fetchall():
            strategy, options = before[run]
            config = {**msgspec.msgpack.decode(coded), "strategy": strategy, "options": options}
            changed = msgspec.msgpack.encode(config)
            db.execute("UPDATE runs SET config = ? WHERE run = ?", (changed, run))
    with closing(open_folder(state)) as store:
        configs = {r.run: msgspec.msgpack.decode(r.config, type=RunConfig) for r in store.runs()}
    assert {run: check_run(config).options for run, config in configs.items()} == {
        "first": {"pull": 0.0, "mix": 0.3},
        "broken": {},
        "second": {"norm": "layer", "quantile": "paper"},
    }
    assert [record.getMessage() for record in caplog.records] == [
        "run first: SubFLOT no longer has lam; lam = 0 becomes pull = 0",
        "run broken: SubFLOT no longer has lam; lam = 2 becomes pull = its default",
    ]


def test_nothing_is_migrated_while_a_coordinator_of_an_earlier_version_runs(tmp_path: Path) -> None:
    state = unpacked(tmp_path, 4) / "state"
    with (
        closing(Sqlite(state)) as earlier_version,
        earlier_version.lock(connection.SERVING),
        pytest.raises(StorageError, match="a coordinator is running on this store"),
    ):
        open_folder(state)
    open_folder(state).close()
