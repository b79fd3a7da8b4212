"""A page of a fleet's devices that match a search and have one state."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from sedge_cloud.facts.records import DeviceFacts, DeviceState
from sedge_cloud.store.selector import MAX_TEXT


class Wanted(msgspec.Struct, frozen=True):
    """Which devices: in this ``state``, with ``search`` in their id, that match the condition ``where``.

    Of these ``limit`` (None: all), from the one at ``offset`` on.
    """

    state: DeviceState | None = None
    search: Annotated[str, Meta(max_length=64)] = ""
    offset: Annotated[int, Meta(ge=0)] = 0
    limit: Annotated[int, Meta(ge=1)] | None = None
    where: Annotated[str, Meta(max_length=MAX_TEXT)] = ""


def choose(devices: Sequence[DeviceFacts], wanted: Wanted) -> tuple[list[DeviceFacts], int]:
    """The matching devices in order, ``where`` aside, and their number on all pages."""
    text = wanted.search.lower()
    found = [
        device
        for device in devices
        if wanted.state in (None, device.state) and text in device.device
    ]
    end = None if wanted.limit is None else wanted.offset + wanted.limit
    return found[wanted.offset : end], len(found)
