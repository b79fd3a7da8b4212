"""The blobs that orders name, as they are cut and served."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from sedge_protocol.wire.transfer import Manifest

# The manifest of a stored blob, in chunks of this size or, for a large blob, larger ones.
Cut: TypeAlias = Callable[[bytes, int], Manifest]
# The manifest of a stored blob, cut for one device.
Describe: TypeAlias = Callable[[bytes], Manifest]


class NamedBlob(NamedTuple):
    """A blob that a device's order names; ``what`` describes it for people.

    It is sent once to all its ``receivers``; with 0, to this device only.
    """

    manifest: Manifest
    receivers: int
    what: str
