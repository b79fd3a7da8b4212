"""HTTP servers that an order names as additional sources of blobs.

The manifest's digests verify the data.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

# A presigned URL of an object store with a session token takes about 1,500 characters.
MAX_URL = 2048
MAX_PLACES = 8


class Place(msgspec.Struct, frozen=True):
    """A URL, http:// or https://, from which the blob with this SHA-256 can also be downloaded."""

    sha256: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """One of the order's blobs, including its bundle's ``frozen``; any other is ignored."""
    url: Annotated[str, Meta(max_length=MAX_URL)]
    """A GET of this URL returns the blob's bytes: ``http://`` or ``https://``, printable ASCII, no user, no
    fragment. Any other is ignored."""
