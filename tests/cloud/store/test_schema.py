"""A database of schema 1, made by its own SQL, becomes one of today; the run in it goes on."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, random_theta, small_update, update

from sedge_cloud.config import BroadcastConfig, RunConfig
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_cloud.store.schema import SCHEMA, config_of_schema_2
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder

# As version 0.1.0 made it.
TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE devices (
    device TEXT PRIMARY KEY, secret BLOB NOT NULL, revoked INTEGER NOT NULL DEFAULT 0,
    boot INTEGER NOT NULL DEFAULT 0, hello BLOB);
CREATE TABLE runs (
    run TEXT PRIMARY KEY, status TEXT NOT NULL, config BLOB NOT NULL, bundle BLOB NOT NULL,
    state BLOB NOT NULL, created REAL NOT NULL);
CREATE TABLE rounds (
    run TEXT NOT NULL, round INTEGER NOT NULL, task TEXT NOT NULL, open INTEGER NOT NULL,
    model BLOB NOT NULL, model_hash BLOB NOT NULL, summary BLOB, PRIMARY KEY (run, round));
CREATE TABLE orders (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, patch BLOB NOT NULL,
    keep BLOB NOT NULL, upload INTEGER NOT NULL, arrays BLOB NOT NULL,
    declined TEXT NOT NULL DEFAULT '', PRIMARY KEY (run, round, device));
CREATE TABLE updates (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, blob BLOB NOT NULL,
    report BLOB NOT NULL, size INTEGER NOT NULL, late INTEGER NOT NULL,
    rejected TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run, round, device));
CREATE TABLE memory (
    run TEXT NOT NULL, device TEXT NOT NULL, round INTEGER NOT NULL, model BLOB NOT NULL,
    patch BLOB NOT NULL, blob BLOB NOT NULL, arrays BLOB NOT NULL, PRIMARY KEY (run, device));
"""
COLUMNS = {
    "meta": "key, value",
    "devices": "device, secret, revoked, boot, hello",
    "runs": "run, status, config, bundle, state, created",
    "rounds": "run, round, task, open, model, model_hash, summary",
    "orders": "run, round, device, patch, keep, upload, arrays, declined",
    "updates": "run, round, device, blob, report, size, late, rejected, detail",
    "memory": "run, device, round, model, patch, blob, arrays",
}


def old_config(config: RunConfig) -> bytes:
    """A configuration as version 0.1.0 wrote it."""
    fields = msgspec.to_builtins(config)
    values = fields.pop("broadcast")["values"]
    del fields["fraction_evaluate"]
    return msgspec.msgpack.encode({**fields, "model_values": values})


def made_old(folder: Path, config: RunConfig) -> None:
    """Copy a store of today into tables of schema 1, with what those could hold."""
    path = folder / "sedge.sqlite"
    now = path.with_name("now.sqlite")
    path.rename(now)
    with closing(sqlite3.connect(now)) as db:
        for (data,) in db.execute("SELECT data FROM small_updates"):
            BlobFolder(folder).write(data)  # there was no such table
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA journal_mode=WAL")
        db.executescript(TABLES)
        db.execute("ATTACH ? AS now", (str(now),))
        for table, columns in COLUMNS.items():
            db.execute(f"INSERT INTO {table} SELECT {columns} FROM now.{table}")
        for run, state in db.execute("SELECT run, state FROM runs").fetchall():
            fields = msgspec.msgpack.decode(state, type=dict[str, object])
            kept = {k: v for k, v in fields.items() if k not in ("owed", "steps")}
            db.execute(
                "UPDATE runs SET config = ?, state = ? WHERE run = ?",
                (old_config(config), msgspec.msgpack.encode(kept), run),
            )
        db.commit()
        db.execute("PRAGMA user_version = 1")
    now.unlink()


@pytest.mark.parametrize("values", [ValueCoding.FP32, ValueCoding.BF16])
def test_a_run_of_schema_1_goes_on(tmp_path: Path, values: ValueCoding) -> None:
    config = msgspec.structs.replace(CONFIG, num_rounds=3, broadcast=BroadcastConfig(values))
    cloud = Cloud(tmp_path, msgspec.structs.replace(CONFIG, num_rounds=3))
    cloud.hello()
    cloud.answer("a", "b")  # round 1; round 2 is open, with one update
    cloud.offer("a", small_update(cloud.order("a")))
    first = cloud.model(cloud.state().model)
    rounds, orders = cloud.store.rounds(RUN), cloud.store.orders(RUN, 2)
    memory, update = cloud.store.memory(RUN, "a"), cloud.store.update(RUN, 2, "a")
    devices, state = cloud.store.devices(), cloud.state()
    cloud.store.close()
    made_old(tmp_path / "state", config)
    cloud.restart()
    assert cloud.store._db.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    assert cloud.store.rounds(RUN) == rounds and cloud.store.orders(RUN, 2) == orders
    assert memory is not None
    unknown = msgspec.structs.replace(memory, step_s=0.0)  # it was not kept then
    assert cloud.store.memory(RUN, "a") == unknown and cloud.store.update(RUN, 2, "a") == update
    assert cloud.store.devices() == devices and cloud.state() == state
    assert msgspec.msgpack.decode(cloud.run_row().config, type=RunConfig) == config
    cloud.hello()
    cloud.answer("b")
    order = cloud.order("a")
    assert order.round == 3 and len(order.steps) == (values is ValueCoding.BF16)
    moved = cloud.model(cloud.state().model) - first
    assert np.count_nonzero(moved) == 11
    cloud.answer("a", "b")
    cloud.answer("a", "b")
    assert cloud.run_row().status == "finished"


def test_a_migration_is_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = Cloud(tmp_path)
    cloud.store.close()
    made_old(tmp_path / "state", CONFIG)
    before = shutil.copytree(tmp_path / "state", tmp_path / "before")
    steps = "ALTER TABLE rounds ADD COLUMN steps BLOB;"
    broken = {2: steps, 3: "ALTER TABLE none ADD COLUMN x BLOB"}
    monkeypatch.setattr("sedge_cloud.store.database.CHANGES", broken)
    with pytest.raises(StorageError, match=r"sedge\.sqlite: no such table: none"):
        Store(tmp_path / "state")
    monkeypatch.undo()
    for folder in (before, tmp_path / "state"):
        with closing(sqlite3.connect(folder / "sedge.sqlite")) as db:
            columns = [row[1] for row in db.execute("PRAGMA table_info(rounds)")]
            assert db.execute("PRAGMA user_version").fetchone() == (1,) and "steps" not in columns
        Store(folder).close()


def test_a_new_store_is_like_an_old_one(tmp_path: Path) -> None:
    """Column for column, in the same order."""
    Store(tmp_path / "new").close()
    Cloud(tmp_path / "old").store.close()
    made_old(tmp_path / "old" / "state", CONFIG)
    Store(tmp_path / "old" / "state").close()
    shapes: list[dict[str, list[object]]] = []
    for folder in (tmp_path / "new", tmp_path / "old" / "state"):
        with closing(sqlite3.connect(folder / "sedge.sqlite")) as db:
            shapes.append(
                {
                    table: list(db.execute(f"PRAGMA table_info({table})"))
                    for table in (*COLUMNS, "small_updates")
                }
            )
    assert shapes[0] == shapes[1] and all(shapes[0].values())


def test_new_columns_are_empty_in_old_rows(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path)
    cloud.hello()
    cloud.store.close()
    made_old(tmp_path / "state", CONFIG)
    store = Store(tmp_path / "state")
    row, order = store.round(RUN, 1), store.order(RUN, 1, "a")
    assert isinstance(row, RoundRow) and isinstance(order, OrderRow)
    assert row.steps == b"" and order.context == b"" and order.declined == ""
    store.close()


def test_a_large_patch_moves_to_the_blobs(tmp_path: Path) -> None:
    """It lay in the rows of order and memory; device and cloud go on with it from where it is now."""
    config = msgspec.structs.replace(
        CONFIG, strategy="fedobp", options={"quantile": 0.01}, num_rounds=3
    )
    cloud = Cloud(tmp_path, config)
    cloud.hello()
    for number, name in enumerate("ab"):
        cloud.upload(name, update(cloud.order(name), random_theta(number + 5)))
    cloud.poll()
    cloud.offer("a", small_update(cloud.order("a")))
    patch = cloud.order("a").patch_blob
    assert patch is not None and cloud.order("a").round == 2
    known = cloud.core.ledger.memory(cloud.core.runs[RUN], "a")
    data = cloud.store.blobs.read(patch.sha256)
    cloud.store.close()
    made_old(tmp_path / "state", config)
    with closing(sqlite3.connect(tmp_path / "state" / "sedge.sqlite")) as db, db:
        for table in ("orders", "memory"):
            where = "round = 2 AND device = 'a'"
            db.execute(f"UPDATE {table} SET patch = ? WHERE {where}", (data,))
        db.commit()
    (tmp_path / "state" / "blobs" / patch.sha256.hex()[:2] / patch.sha256.hex()).unlink()
    cloud.restart()
    order, memory = cloud.store.order(RUN, 2, "a"), cloud.store.memory(RUN, "a")
    assert order is not None and (order.patch, order.patch_blob) == (b"", patch.sha256)
    assert memory is not None and (memory.patch, memory.patch_blob) == (b"", patch.sha256)
    assert cloud.store.blobs.read(patch.sha256) == data
    found = cloud.core.ledger.memory(cloud.core.runs[RUN], "a")
    assert found.trained is not None and known.trained is not None
    assert found.trained.tobytes() == known.trained.tobytes()


def test_configurations() -> None:
    old = {"strategy": "fedavg", "model_values": "bf16", "num_rounds": 3}
    found = msgspec.msgpack.decode(config_of_schema_2(msgspec.msgpack.encode(old)), type=RunConfig)
    expected = RunConfig(
        strategy="fedavg", num_rounds=3, broadcast=BroadcastConfig(ValueCoding.BF16)
    )
    assert found == expected
    for other in (b"\xc1", b"", msgspec.msgpack.encode(CONFIG)):
        assert config_of_schema_2(other) == other
