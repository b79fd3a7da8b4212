"""The tables of the coordinator's database, what is asked of them, and how an earlier schema becomes this.

A new database is made with the first tables and then changed like an old one, so there is one way to
every schema. What is here is text and values; database.py owns sqlite3 and does it all in one transaction.
"""

from collections.abc import Mapping

import msgspec

from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import MAX_INLINE_BYTES

SCHEMA = 3
FIRST_TABLES = """
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
INSERT INTO meta VALUES ('boot', 0);
"""
# By the schema they lead to. Columns are added at the end: rows are read and written by position.
CHANGES: Mapping[int, str] = {
    2: """
ALTER TABLE rounds ADD COLUMN steps BLOB NOT NULL DEFAULT x'';
ALTER TABLE orders ADD COLUMN context BLOB NOT NULL DEFAULT x'';
ALTER TABLE memory ADD COLUMN mask BLOB NOT NULL DEFAULT x'';
ALTER TABLE memory ADD COLUMN context BLOB NOT NULL DEFAULT x'';
CREATE TABLE small_updates (sha256 BLOB PRIMARY KEY, data BLOB NOT NULL);
""",
    3: """
ALTER TABLE runs ADD COLUMN narrower BLOB NOT NULL DEFAULT x'';
ALTER TABLE orders ADD COLUMN model BLOB NOT NULL DEFAULT x'';
ALTER TABLE orders ADD COLUMN model_hash BLOB NOT NULL DEFAULT x'';
ALTER TABLE orders ADD COLUMN width INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN details BLOB NOT NULL DEFAULT x'';
ALTER TABLE orders ADD COLUMN patch_blob BLOB NOT NULL DEFAULT x'';
ALTER TABLE orders ADD COLUMN patch_context BLOB NOT NULL DEFAULT x'';
ALTER TABLE memory ADD COLUMN width INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memory ADD COLUMN patch_blob BLOB NOT NULL DEFAULT x'';
ALTER TABLE memory ADD COLUMN patch_context BLOB NOT NULL DEFAULT x'';
ALTER TABLE memory ADD COLUMN mix REAL;
ALTER TABLE memory ADD COLUMN step_s REAL NOT NULL DEFAULT 0;
ALTER TABLE memory ADD COLUMN remembered INTEGER NOT NULL DEFAULT 0;
""",
}
# Up to schema 2 a large patch lay in its row, too: which rows these are, what is in one, and what puts the
# name of a blob there instead.
LARGE_PATCHES = tuple(
    (
        f"SELECT rowid FROM {table} WHERE length(patch) > {MAX_INLINE_BYTES}",
        f"SELECT patch FROM {table} WHERE rowid = ?",
        f"UPDATE {table} SET patch = x'', patch_blob = ? WHERE rowid = ?",
    )
    for table in ("orders", "memory")
)
# The updates that a device's memory builds on, and those of open rounds. A cross join looks rounds up
# first: SQLite might else go through all updates there ever were.
NAMED_UPDATES = (
    "SELECT blob FROM memory UNION SELECT u.blob FROM rounds r"
    " CROSS JOIN updates u ON u.run = r.run AND u.round = r.round WHERE r.open = 1"
)


def named_blobs_sql(late_rounds: int) -> str:
    """Every blob that a row names but the runs' states and rounds' steps.

    A round up to ``late_rounds`` before the one that is open, or next, needs its model and what its orders
    name: they go into a device's memory when its late update comes.
    """
    live = (
        "WITH coming(run, round) AS MATERIALIZED"
        " (SELECT run, MAX(round + 1 - open) FROM rounds GROUP BY run),"
        " live(run, round, model) AS MATERIALIZED"
        " (SELECT r.run, r.round, r.model FROM rounds r JOIN coming c ON c.run = r.run"
        f" WHERE r.open = 1 OR r.round + {late_rounds} >= c.round) "
    )
    of_orders = ("arrays", "context", "model", "patch_blob", "patch_context")
    of_memory = ("model", "arrays", "mask", "context", "patch_blob", "patch_context")
    parts = [
        NAMED_UPDATES,
        "SELECT bundle FROM runs",
        "SELECT model FROM live",
        *(f"SELECT {column} FROM memory" for column in of_memory),
        *(
            f"SELECT o.{column} FROM live l"
            " CROSS JOIN orders o ON o.run = l.run AND o.round = l.round"
            for column in of_orders
        ),
    ]
    return live + " UNION ".join(parts)


class StepRow(msgspec.Struct, frozen=True):
    """A coded delta, ``blob`` of ``size`` bytes, from the global with ``base_hash`` to the next one."""

    base_hash: bytes
    blob: bytes
    size: int


def steps_of(coded: bytes) -> tuple[StepRow, ...]:
    """The steps in ``RoundRow.steps``. Raises ``StorageError`` when they cannot be read."""
    try:
        return msgspec.msgpack.decode(coded, type=tuple[StepRow, ...]) if coded else ()
    except ValueError as exc:  # msgspec's errors
        raise StorageError(f"a round's steps cannot be read: {exc}") from exc


def config_of_schema_2(config: bytes) -> bytes:
    """A run's configuration of schema 1: ``model_values`` has become ``broadcast.values``.

    What cannot be read is left as it is, for whoever needs that run to say so.
    """
    try:
        fields = msgspec.msgpack.decode(config, type=dict[str, object])
    except ValueError:  # msgspec's errors
        return config
    if "model_values" not in fields:
        return config
    values = fields.pop("model_values")
    return msgspec.msgpack.encode({**fields, "broadcast": {"values": values}})
