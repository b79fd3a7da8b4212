"""Selects a page of a fleet's devices by search text, state and condition, in a chosen order."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from sedge_cloud.facts.records import DeviceFacts, DeviceState
from sedge_cloud.figures.numbers import natural
from sedge_cloud.store.selector import MAX_TEXT

Sort = Literal["device", "state", "before", "change", "updates", "seconds", "bytes", "version"]
# A key to sort devices by; the values of one key can be compared with each other.
Key: TypeAlias = Callable[[DeviceFacts], Any]
_STATES = get_args(DeviceState)
# These keys put the devices that need most attention first, and unknown values last.
_KEYS: Mapping[Sort, Key] = {
    "device": lambda d: natural(d.device),
    "state": lambda d: -_STATES.index(d.state),
    "before": lambda d: _worst_first(None if d.before is None else d.metric.badness(d.before)),
    "change": lambda d: _worst_first(None if d.change is None else -d.change),
    "updates": lambda d: d.updates,
    "seconds": lambda d: _worst_first(d.seconds),
    "bytes": lambda d: -(d.up + d.down),
    "version": lambda d: (not d.version, natural(d.version)),
}


class DeviceSelection(msgspec.Struct, frozen=True):
    """A selection of devices: they are in this ``state``, have ``search`` in their id and match ``where``.

    ``limit`` (None means no limit) and ``offset`` choose the page. ``sort`` names a key, which puts first
    the devices that need most attention; a fleet of more than 20,000 devices is always sorted by id.
    """

    state: DeviceState | None = None
    search: Annotated[str, Meta(max_length=64)] = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1)] | None = None
    where: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    sort: Sort | None = None


def choose(
    devices: Sequence[DeviceFacts], wanted: DeviceSelection
) -> tuple[list[DeviceFacts], int]:
    """Return a page of the matching devices and the total number of matches, ignoring ``where``.

    The devices keep the given order unless ``sort`` is set.
    """
    text = wanted.search.lower()
    found = [
        device
        for device in devices
        if wanted.state in (None, device.state) and text in device.device
    ]
    if wanted.sort is not None:
        found.sort(key=_KEYS[wanted.sort])
    end = None if wanted.limit is None else wanted.offset + wanted.limit
    return found[wanted.offset : end], len(found)


def _worst_first(badness: float | None) -> tuple[bool, float]:
    return badness is None, -(badness or 0.0)
