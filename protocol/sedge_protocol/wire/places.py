"""Where else a blob is: any HTTP server named by an order; the manifest's digests verify its bytes."""

from typing import Annotated

import msgspec
from msgspec import Meta

# A presigned URL of an object store with a session token takes about 1,500 characters.
MAX_URL = 2048
MAX_PLACES = 8


class Place(msgspec.Struct, frozen=True):
    """The blob with this SHA-256 is also what a GET of ``url`` returns, http:// or https://."""

    sha256: Annotated[bytes, Meta(min_length=32, max_length=32)]
    """Which of the order's blobs, those of its bundle's ``frozen`` included; any other is ignored."""
    url: Annotated[str, Meta(max_length=MAX_URL)]
    """``http://`` or ``https://``, printable ASCII, no user, no fragment: a GET of it returns the
    blob's bytes. Any other is ignored."""
