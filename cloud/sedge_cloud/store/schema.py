"""The tables of the coordinator's database, and the longer queries on them, as text.

Columns are in the order of the fields in rows.py, as rows are read and written by position. The types are
SQLite's; postgres.py maps each to PostgreSQL's.
"""

from collections.abc import Mapping

import msgspec

from sedge_protocol.errors import StorageError
from sedge_protocol.wire.topics import SHARD_NAMES

# The states of a run.
RUNNING, STOPPED, FINISHED, FAILED = "running", "stopped", "finished", "failed"
# The schema version, which grows with every change to the tables. ``MIGRATIONS`` has the
# statements that lead from each schema to the next.
SCHEMA = 10
_DEVICES_8 = """CREATE TABLE devices (
    device TEXT PRIMARY KEY, secret BLOB NOT NULL, revoked INTEGER NOT NULL DEFAULT 0,
    incarnation INTEGER NOT NULL DEFAULT 0, hello BLOB, changed INTEGER NOT NULL DEFAULT 0)"""
_ENROLLED = "enrolled REAL NOT NULL DEFAULT 0"
# All tables and indexes, by name. Times are seconds on the wall clock, 0 for unknown.
OBJECTS: Mapping[str, str] = {
    "meta": "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL)",
    # Written as SQLite records it after the migration, because checking a store compares the strings.
    "devices": f"{_DEVICES_8[:-1]}, {_ENROLLED})",
    "runs": """CREATE TABLE runs (
    run TEXT PRIMARY KEY, status TEXT NOT NULL, config BLOB NOT NULL, bundle BLOB NOT NULL,
    state BLOB NOT NULL, created REAL NOT NULL, narrower BLOB NOT NULL, frozen BLOB NOT NULL,
    why TEXT NOT NULL, ended REAL NOT NULL, terms BLOB NOT NULL, sums BLOB NOT NULL)""",
    "rounds": """CREATE TABLE rounds (
    run TEXT NOT NULL, round INTEGER NOT NULL, task TEXT NOT NULL, open INTEGER NOT NULL,
    model BLOB NOT NULL, model_hash BLOB NOT NULL, summary BLOB, steps BLOB NOT NULL,
    up INTEGER NOT NULL, down INTEGER NOT NULL, phase TEXT NOT NULL, opened REAL NOT NULL,
    ends_at REAL NOT NULL, deadline REAL NOT NULL, closed REAL NOT NULL, why TEXT NOT NULL,
    needed INTEGER NOT NULL, extended INTEGER NOT NULL, parts BLOB NOT NULL,
    receipts INTEGER NOT NULL, PRIMARY KEY (run, round))""",
    "open_rounds": "CREATE INDEX open_rounds ON rounds (run, round) WHERE open = 1",
    "orders": """CREATE TABLE orders (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, patch BLOB NOT NULL,
    work BLOB NOT NULL, arrays BLOB NOT NULL, declined TEXT NOT NULL, context BLOB NOT NULL,
    model BLOB NOT NULL, model_hash BLOB NOT NULL, width INTEGER NOT NULL, patch_blob BLOB NOT NULL,
    patch_context BLOB NOT NULL, trusted INTEGER NOT NULL, num_train INTEGER NOT NULL,
    correction BLOB NOT NULL, holds BLOB NOT NULL, step BLOB NOT NULL,
    bundle BLOB NOT NULL, PRIMARY KEY (run, round, device))""",
    "updates": """CREATE TABLE updates (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, blob BLOB NOT NULL,
    report BLOB NOT NULL, size INTEGER NOT NULL, late INTEGER NOT NULL, rejected TEXT NOT NULL,
    detail TEXT NOT NULL, patch_length REAL, delta_length REAL, PRIMARY KEY (run, round, device))""",
    "late_updates": "CREATE INDEX late_updates ON updates (run, late) WHERE late > 0",
    "client_models": """CREATE TABLE client_models (
    run TEXT NOT NULL, device TEXT NOT NULL, round INTEGER NOT NULL, model BLOB NOT NULL,
    patch BLOB NOT NULL, blob BLOB NOT NULL, arrays BLOB NOT NULL, mask BLOB NOT NULL,
    context BLOB NOT NULL, width INTEGER NOT NULL, patch_blob BLOB NOT NULL,
    patch_context BLOB NOT NULL, mix REAL, step_s REAL NOT NULL, remembered INTEGER NOT NULL,
    steps INTEGER NOT NULL, PRIMARY KEY (run, device))""",
    "traffic": """CREATE TABLE traffic (
    run TEXT NOT NULL, round INTEGER NOT NULL, device TEXT NOT NULL, up INTEGER NOT NULL,
    down INTEGER NOT NULL, whole INTEGER NOT NULL, PRIMARY KEY (run, round, device))""",
    "small_updates": "CREATE TABLE small_updates (sha256 BLOB PRIMARY KEY, data BLOB NOT NULL)",
    "sessions": """CREATE TABLE sessions (
    device TEXT PRIMARY KEY, online INTEGER NOT NULL, since REAL NOT NULL, heard REAL NOT NULL,
    error TEXT NOT NULL, error_at REAL NOT NULL, waits TEXT NOT NULL, waits_since REAL NOT NULL,
    run TEXT NOT NULL, round INTEGER NOT NULL, state TEXT NOT NULL, state_since REAL NOT NULL,
    done INTEGER NOT NULL, total INTEGER NOT NULL, changed INTEGER NOT NULL)""",
    "histories": """CREATE TABLE histories (
    run TEXT NOT NULL, device TEXT NOT NULL, round INTEGER NOT NULL, past BLOB NOT NULL,
    changed INTEGER NOT NULL, PRIMARY KEY (run, device))""",
    "coordinator": """CREATE TABLE coordinator (
    id INTEGER PRIMARY KEY, running INTEGER NOT NULL, started REAL NOT NULL, heard REAL NOT NULL,
    link INTEGER NOT NULL, link_since REAL NOT NULL, link_error TEXT NOT NULL,
    max_packet INTEGER NOT NULL, error TEXT NOT NULL, error_at REAL NOT NULL,
    counters BLOB NOT NULL, used INTEGER NOT NULL, free INTEGER NOT NULL, total INTEGER NOT NULL)""",
    "disk": "CREATE TABLE disk (at REAL PRIMARY KEY, used INTEGER NOT NULL)",
    "fleet": "CREATE TABLE fleet (name TEXT PRIMARY KEY, secret BLOB NOT NULL)",
    "processes": """CREATE TABLE processes (
    token INTEGER PRIMARY KEY, host TEXT NOT NULL, boot TEXT NOT NULL, pid INTEGER NOT NULL,
    started INTEGER NOT NULL, joined REAL NOT NULL, expires REAL NOT NULL, leaves INTEGER NOT NULL)""",
    "leases": """CREATE TABLE leases (
    name TEXT PRIMARY KEY, token INTEGER NOT NULL, heir INTEGER NOT NULL, ready INTEGER NOT NULL)""",
    "changed_devices": "CREATE INDEX changed_devices ON devices (changed)",
    "changed_sessions": "CREATE INDEX changed_sessions ON sessions (changed)",
    "changed_histories": "CREATE INDEX changed_histories ON histories (changed)",
    "enrolled_devices": "CREATE INDEX enrolled_devices ON devices (revoked, device)",
    "silent_devices": "CREATE INDEX silent_devices ON devices (device)"
    " WHERE hello IS NULL AND revoked = 0",
    "online_sessions": "CREATE INDEX online_sessions ON sessions (device, waits) WHERE online = 1",
    # Attributes from hellos, for use in conditions; each name in ``backends`` is enclosed in spaces.
    "abilities": """CREATE TABLE abilities (
    device TEXT PRIMARY KEY, version TEXT NOT NULL, backends TEXT NOT NULL,
    memory_mb INTEGER NOT NULL, num_train INTEGER NOT NULL, num_test INTEGER NOT NULL,
    max_packet INTEGER NOT NULL)""",
    "ability_versions": "CREATE INDEX ability_versions ON abilities (version)",
    # ``number`` is NULL if the value is not a number.
    "tags": """CREATE TABLE tags (
    device TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, number REAL,
    PRIMARY KEY (device, key))""",
    "tagged": "CREATE INDEX tagged ON tags (key, value, device)",
    # Paused devices, which take part in no cohort.
    "paused": "CREATE TABLE paused (device TEXT PRIMARY KEY, since REAL NOT NULL)",
    "tokens": """CREATE TABLE tokens (
    token TEXT PRIMARY KEY, secret BLOB NOT NULL, device TEXT NOT NULL, tags BLOB NOT NULL,
    uses INTEGER NOT NULL, accepts INTEGER NOT NULL, created REAL NOT NULL, expires REAL NOT NULL,
    revoked INTEGER NOT NULL, account INTEGER NOT NULL, refused TEXT NOT NULL,
    refused_at REAL NOT NULL)""",
    # ``point`` is the device's public key.
    "joins": """CREATE TABLE joins (
    point BLOB PRIMARY KEY, token TEXT NOT NULL, device TEXT NOT NULL, secret BLOB NOT NULL,
    state TEXT NOT NULL, asked REAL NOT NULL, detail TEXT NOT NULL)""",
    "joining": "CREATE INDEX joining ON joins (state, device)",
    # Devices that should change their secret; ``point`` and ``secret`` are empty until they offer one.
    "renewals": """CREATE TABLE renewals (
    device TEXT PRIMARY KEY, asked REAL NOT NULL, point BLOB NOT NULL, secret BLOB NOT NULL,
    account INTEGER NOT NULL)""",
    # For ``state`` see certificates.py.
    "certificates": """CREATE TABLE certificates (
    serial BLOB PRIMARY KEY, name TEXT NOT NULL, until REAL NOT NULL, der BLOB NOT NULL,
    state TEXT NOT NULL)""",
    "certified": "CREATE INDEX certified ON certificates (name, state)",
    "ending_certificates": "CREATE INDEX ending_certificates ON certificates (state, until)",
    # A run's rollouts, numbered from 1; for ``plan`` and ``progress`` see rollouts.py.
    "rollouts": """CREATE TABLE rollouts (
    run TEXT NOT NULL, number INTEGER NOT NULL, bundle BLOB NOT NULL, state TEXT NOT NULL,
    plan BLOB NOT NULL, progress BLOB NOT NULL, created REAL NOT NULL, why TEXT NOT NULL,
    PRIMARY KEY (run, number))""",
}  # fmt: skip
# The processes that serve a fleet. These rows are not copied with the rest of a store.
SERVING_TABLES = ("processes", "leases")
TABLE_NAMES = tuple(
    name
    for name, sql in OBJECTS.items()
    if sql.startswith("CREATE TABLE") and name not in SERVING_TABLES
)
LEADER = "leader"
_LEASES = "INSERT INTO leases VALUES " + ", ".join(
    f"('{name}', 0, 0, 0)" for name in (LEADER, *SHARD_NAMES)
)
TABLES = ";".join([
    *OBJECTS.values(),
    "INSERT INTO meta VALUES ('incarnation', 0), ('change', 0), ('enrolment', 0), ('token', 0)",
    _LEASES,
])  # fmt: skip


def _rebuilt(table: str, added: str, text: str = "") -> tuple[str, ...]:
    """Return statements that give a table new columns, with the values ``added``.

    ``text`` is an earlier form of the table. Afterwards the table's text in SQLite, and its index's name in
    PostgreSQL, are as in a new store.
    """
    old = f"{table}_before"
    return (
        f"CREATE TABLE {old} AS SELECT * FROM {table}",
        f"DROP TABLE {table}",
        text or OBJECTS[table],
        f"INSERT INTO {table} SELECT *, {added} FROM {old}",
        f"DROP TABLE {old}",
    )


_NEW_IN_4 = (
    "open_rounds", "late_updates", "sessions", "histories", "coordinator", "disk", "changed_devices",
    "changed_sessions", "changed_histories",
)  # fmt: skip
_NEW_IN_5 = (
    "enrolled_devices", "silent_devices", "online_sessions", "abilities", "tags", "tagged",
)  # fmt: skip
_NEW_IN_6 = ("paused", "tokens", "joins", "joining")
_EMPTY = "CAST('' AS BLOB)"
_PHASE = "CASE open WHEN 1 THEN 'open' ELSE 'closed' END"
MIGRATIONS: Mapping[int, str] = {
    3: ";".join([
        *_rebuilt("devices", "0", _DEVICES_8),
        *_rebuilt("runs", f"'', 0, {_EMPTY}, {_EMPTY}"),
        # No row says when an open round opened or when it ends, so it starts over.
        *_rebuilt("rounds", f"{_PHASE}, 0, 0, 0, 0, '', 0, 0, {_EMPTY}, 0"),
        *_rebuilt("updates", "NULL, NULL"),
        *(OBJECTS[name] for name in _NEW_IN_4),
        "INSERT INTO meta VALUES ('change', 0)",
    ]),
    4: ";".join([
        *(OBJECTS[name] for name in (*_NEW_IN_5, "fleet", *SERVING_TABLES)),
        "INSERT INTO meta VALUES ('enrolment', 0), ('token', 0)",
        _LEASES,
    ]),
    5: ";".join(OBJECTS[name] for name in _NEW_IN_6),
    6: ";".join(OBJECTS[name] for name in ("ability_versions", "renewals")),
    7: ";".join([*_rebuilt("orders", _EMPTY), OBJECTS["rollouts"]]),
    8: f"ALTER TABLE devices ADD COLUMN {_ENROLLED}",
    9: ";".join(OBJECTS[n] for n in ("certificates", "certified", "ending_certificates")),
}  # fmt: skip
# Selects the updates that client models build on, and updates in open rounds. The cross join makes SQLite
# look up rounds first; otherwise it would scan all updates ever received.
NAMED_UPDATES = (
    "SELECT blob FROM client_models UNION SELECT u.blob FROM rounds r"
    " CROSS JOIN updates u WHERE u.run = r.run AND u.round = r.round AND r.open = 1"
)


def named_blobs_sql(late_rounds: int) -> str:
    """Return a query for all blobs that rows name, except in the runs' states and the rounds' steps.

    Rounds up to ``late_rounds`` before the open or next round keep their models and the blobs that their
    orders name, as a late update makes these part of a client model.
    """
    live = (
        "WITH newest(run, round) AS MATERIALIZED"
        " (SELECT run, MAX(round) FROM rounds GROUP BY run),"
        " coming(run, round) AS MATERIALIZED"
        " (SELECT r.run, r.round + 1 - r.open FROM newest n CROSS JOIN rounds r"
        " WHERE r.run = n.run AND r.round = n.round),"
        " live(run, round, model) AS MATERIALIZED"
        " (SELECT run, round, model FROM rounds WHERE open = 1 UNION"
        " SELECT r.run, r.round, r.model FROM coming c CROSS JOIN rounds r"
        f" WHERE r.run = c.run AND r.round >= c.round - {late_rounds}) "
    )
    of_orders = ("arrays", "context", "model", "patch_blob", "patch_context", "correction", "step")
    of_clients = ("model", "arrays", "mask", "context", "patch_blob", "patch_context")
    parts = [
        NAMED_UPDATES,
        "SELECT bundle FROM runs",
        "SELECT bundle FROM rollouts",
        "SELECT frozen FROM runs",
        "SELECT model FROM live",
        *(f"SELECT {column} FROM client_models" for column in of_clients),
        *(
            f"SELECT o.{column} FROM live l"
            " CROSS JOIN orders o WHERE o.run = l.run AND o.round = l.round"
            for column in of_orders
        ),
    ]
    return live + " UNION ".join(parts)


class StepRow(msgspec.Struct, frozen=True):
    """An encoded change, ``blob`` of ``size`` bytes, from the global model ``base_hash`` to the next."""

    base_hash: bytes
    blob: bytes
    size: int


def steps_of(coded: bytes) -> tuple[StepRow, ...]:
    """Decode the steps in ``RoundRow.steps``. Raises ``StorageError`` when they cannot be read."""
    try:
        return msgspec.msgpack.decode(coded, type=tuple[StepRow, ...]) if coded else ()
    except ValueError as exc:  # msgspec's errors are ValueErrors
        raise StorageError(f"a round's steps cannot be read: {exc}") from exc
