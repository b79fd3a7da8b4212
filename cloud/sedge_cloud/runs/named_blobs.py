"""The blobs that orders name, and how they are cut into chunks."""

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from sedge_protocol.wire.transfer import Manifest

# Returns a stored blob's manifest, with chunks of this size, or larger ones for a large blob.
Cut: TypeAlias = Callable[[bytes, int], Manifest]
# Returns a stored blob's manifest, with chunks that suit one device.
Describe: TypeAlias = Callable[[bytes], Manifest]


class NamedBlob(NamedTuple):
    """A blob that a device's order names; ``what`` describes it for people.

    It is sent once to all its ``receivers``; if that is 0, it is sent to this device only.
    """

    manifest: Manifest
    receivers: int
    what: str
