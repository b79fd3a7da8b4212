"""The processes that serve a fleet: their shards, which of them leads, and their counters."""

from collections import Counter
from collections.abc import Sequence

import msgspec

from sedge_cloud.facts.records import CoordinatorFacts, ProcessFacts, printable, when
from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.rows import CoordinatorRow
from sedge_cloud.store.schema import LEADER

# The service counts as silent after this many seconds without a heartbeat.
SILENT_S = 6.0


def processes_of(
    rows: Sequence[ProcessRow],
    leases: Sequence[LeaseRow],
    coordinators: Sequence[CoordinatorRow],
    now: float,
) -> tuple[ProcessFacts, ...]:
    """Return every process that holds a lease or has sent a recent heartbeat, oldest first."""
    # A process that serves a fleet alone does not renew a lease, so its heartbeat counts instead.
    heard = {row.id for row in coordinators if _is_heard(row, now)}
    shards = Counter(lease.token for lease in leases if lease.name != LEADER)
    leaders = {lease.token for lease in leases if lease.name == LEADER}
    return tuple(
        ProcessFacts(
            process=row.token,
            host=printable(row.host),
            pid=row.pid,
            since=when(row.joined),
            shards=shards[row.token],
            leads=row.token in leaders,
        )
        for row in rows
        if row.expires >= now or row.token in heard
    )


def coordinator_of(rows: Sequence[CoordinatorRow], now: float) -> CoordinatorFacts:
    """Return facts about the leading process, with the counters summed over all processes."""
    row, counters = rows[0], Counter[str]()
    running = _is_heard(row, now)
    for one in rows:
        counters += Counter(msgspec.msgpack.decode(one.counters) if one.counters else {})
    return CoordinatorFacts(
        running=running,
        since=when(row.started),
        heard=when(row.heard),
        link=row.link and running,
        link_since=when(row.link_since),
        link_error=printable(row.link_error),
        max_packet=row.max_packet,
        error=row.error,
        error_since=when(row.error_at),
        counters=dict(counters),
    )


def _is_heard(row: CoordinatorRow, now: float) -> bool:
    return row.running and now - row.heard < SILENT_S
