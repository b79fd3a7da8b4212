"""Divides a fleet's shards among its processes, evenly and with as few changes of owner as possible.

Each process plans only for itself: it takes free shards, up to its share, and names heirs for surplus
shards, or for all of its shards when it leaves. A shard changes its owner without losing frames in transit:

    owner   names an heir, a process whose share has room
    heir    subscribes to the shard, keeps its frames, and reports that it is ready
    owner   unsubscribes, processes the frames that had arrived, and hands over
    heir    is the new owner, and processes the frames that it has kept
"""

from collections.abc import Collection, Sequence

import msgspec

from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.schema import LEADER
from sedge_protocol.wire.topics import SHARDS


def plan(token: int, processes: Sequence[ProcessRow], leases: Sequence[LeaseRow]) -> list[LeaseRow]:
    """Return the leases that this process should change, given all living processes and all leases."""
    living = {process.token for process in processes}
    staying = [process.token for process in processes if not process.leaves]
    current = [without_gone(lease, living, staying) for lease in leases]
    room = _room(staying, current)
    planned = [
        _lead(token, lease, staying) if lease.name == LEADER else _take(token, lease, room)
        for lease in current
    ]
    return [
        after
        for before, after in zip(leases, planned, strict=True)
        if after != before and token in (before.token, after.token)
    ]


def shares(tokens: Sequence[int]) -> dict[int, int]:
    """Return how many shards each process should have. ``tokens`` lists the processes, oldest first."""
    each, more = divmod(SHARDS, len(tokens) or 1)
    return {token: each + (place < more) for place, token in enumerate(sorted(tokens))}


def without_gone(lease: LeaseRow, living: Collection[int], staying: Collection[int]) -> LeaseRow:
    """Return the lease without an owner that is gone, or an heir that is gone or leaving."""
    if lease.token and lease.token not in living:
        lease = msgspec.structs.replace(lease, token=0)
    if lease.heir and lease.heir not in staying:
        lease = msgspec.structs.replace(lease, heir=0, ready=False)
    return lease


def _lead(token: int, lease: LeaseRow, staying: Sequence[int]) -> LeaseRow:
    """Return the leader's lease. This process takes a free lead, and passes it on when leaving."""
    if not lease.token and token in staying:
        return msgspec.structs.replace(lease, token=token)
    if lease.token == token and token not in staying:
        return msgspec.structs.replace(lease, token=min(staying, default=0))
    return lease


def _room(staying: Sequence[int], leases: Sequence[LeaseRow]) -> dict[int, int]:
    """Return how many more shards each process should get. The number is negative if it has too many."""
    room = shares(staying)
    for lease in leases:
        owner = lease.heir or lease.token
        if owner in room and lease.name != LEADER:
            room[owner] -= 1
    return room


def _take(token: int, lease: LeaseRow, room: dict[int, int]) -> LeaseRow:
    """Take the shard, or name its heir, if this process should. Returns the lease and updates ``room``."""
    if not lease.token and lease.heir in (0, token):
        if not lease.heir and room.get(token, 0) <= 0:
            return lease
        room[token] -= not lease.heir
        return msgspec.structs.replace(lease, token=token, heir=0, ready=False)
    if lease.token == token and not lease.heir and room.get(token, -1) < 0:
        heir = max(room, key=lambda other: (room[other], -other), default=0)
        if heir and room[heir] > 0:
            room[heir] -= 1
            if token in room:
                room[token] += 1
            return msgspec.structs.replace(lease, heir=heir)
    return lease
