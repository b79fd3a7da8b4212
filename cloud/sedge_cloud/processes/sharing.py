"""How processes share the shards of a fleet: evenly, and with as few as possible that change hands.

Each process plans for itself alone: it takes what is free, up to its share, and names heirs for what it has
beyond that, or for everything when it leaves. A shard changes hands without losing what is on its way:

    owner   names an heir                                     (the heir's share has room)
    heir    listens to the shard, keeps what comes, and says that it is ready
    owner   listens no longer, processes what had come, and hands over
    heir    is the owner: it processes what it has kept
"""

from collections.abc import Collection, Sequence

import msgspec

from sedge_cloud.store.leases import LeaseRow, ProcessRow
from sedge_cloud.store.schema import LEADER
from sedge_protocol.wire.topics import SHARDS


def plan(token: int, processes: Sequence[ProcessRow], leases: Sequence[LeaseRow]) -> list[LeaseRow]:
    """The leases that the process with this token changes, given all that are alive and all leases."""
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
    """How many shards each of these processes is to have, the oldest first."""
    each, more = divmod(SHARDS, len(tokens) or 1)
    return {token: each + (place < more) for place, token in enumerate(sorted(tokens))}


def without_gone(lease: LeaseRow, living: Collection[int], staying: Collection[int]) -> LeaseRow:
    """The lease without an owner that is gone, and without an heir that takes nothing more."""
    if lease.token not in living:
        lease = msgspec.structs.replace(lease, token=0)
    if lease.heir not in staying:
        lease = msgspec.structs.replace(lease, heir=0, ready=False)
    return lease


def _lead(token: int, lease: LeaseRow, staying: Sequence[int]) -> LeaseRow:
    """The lead goes to whoever comes first, and from who leaves to the oldest; all it needs is in rows."""
    if not lease.token and token in staying:
        return msgspec.structs.replace(lease, token=token)
    if lease.token == token and token not in staying:
        return msgspec.structs.replace(lease, token=min(staying, default=0))
    return lease


def _room(staying: Sequence[int], leases: Sequence[LeaseRow]) -> dict[int, int]:
    """How many shards more each process is to have; below 0: how many fewer."""
    room = shares(staying)
    for lease in leases:
        owner = lease.heir or lease.token
        if owner in room and lease.name != LEADER:
            room[owner] -= 1
    return room


def _take(token: int, lease: LeaseRow, room: dict[int, int]) -> LeaseRow:
    """A shard once this process has taken it, or named its heir; ``room`` changes with it."""
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
