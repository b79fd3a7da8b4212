"""Remembers on disk the policies under which a device has accepted orders."""

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from sedge_protocol.wire.messages import Count
from sedge_protocol.wire.policy import KEY_ID_BYTES

# The number of runs whose policy versions are remembered, including runs that the device has given up.
MAX_POLICIES = 64


class TakenPolicy(msgspec.Struct, frozen=True):
    """The last policy under which an order of a run was accepted."""

    version: Count
    """The version of the policy."""
    key: Annotated[bytes, Meta(max_length=KEY_ID_BYTES)]
    """The id of the key that signed the policy."""


def remembered(
    before: Mapping[str, TakenPolicy], run: str, policy: TakenPolicy | None
) -> dict[str, TakenPolicy]:
    """Return the remembered policies keyed by run, with this one last, as the most recently used.

    Policies of the least recently used runs are dropped.
    """
    if policy is None:
        return dict(before)
    others = {name: taken for name, taken in before.items() if name != run}
    return dict([*others.items(), (run, policy)][-MAX_POLICIES:])
