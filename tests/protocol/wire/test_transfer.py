"""Manifests, bitmaps and backoff: what both kinds of transfer stand on."""

import hashlib
from itertools import pairwise

import msgspec
import numpy as np
import pytest

from sedge_protocol.errors import FrameError, LocalError
from sedge_protocol.wire.serving import Serving
from sedge_protocol.wire.transfer import (
    CREDIT,
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MIN_CHUNK_BYTES,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    Fetch,
    Intake,
    Manifest,
    Upload,
    backoff,
    describe,
    from_bitmap,
    to_bitmap,
)

BLOB = np.random.default_rng(1).bytes(9 * MIN_CHUNK_BYTES + 10)
MANIFEST = describe(BLOB, MIN_CHUNK_BYTES)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def chunk(index: int, manifest: Manifest = MANIFEST) -> bytes:
    offset, length = manifest.span(index)
    return BLOB[offset : offset + length]


def bitmap(*indices: int, count: int = 10) -> bytes:
    return to_bitmap(indices, count)


@pytest.mark.parametrize("size", [1, 4095, 4096, 4097, 3 * 4096, len(BLOB)])
def test_a_manifest_describes_every_byte_once(size: int) -> None:
    blob = BLOB[:size]
    manifest = describe(blob, MIN_CHUNK_BYTES)
    spans = [manifest.span(index) for index in range(manifest.count)]
    assert spans[0][0] == 0
    assert all(offset + length == later for (offset, length), (later, _) in pairwise(spans))
    assert sum(length for _, length in spans) == size
    assert manifest.sha256 == hashlib.sha256(blob).digest()
    for index, (offset, length) in enumerate(spans):
        manifest.check(index, blob[offset : offset + length])


class Huge(bytes):
    """A blob that is said to be larger than it is, so that the test needs no gigabyte."""

    def __len__(self) -> int:
        return MAX_CHUNKS * MAX_CHUNK_BYTES + 1


@pytest.mark.parametrize("blob", [b"", Huge(b"x")])
def test_a_blob_that_no_manifest_can_describe(blob: bytes) -> None:
    with pytest.raises(LocalError, match="limit 1073741824"):
        describe(blob)


def test_the_largest_manifest() -> None:
    size = MAX_CHUNKS * MAX_CHUNK_BYTES
    largest = Manifest(bytes(32), size, MAX_CHUNK_BYTES, bytes(16 * MAX_CHUNKS))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(largest), type=Manifest) == largest
    fields = msgspec.to_builtins(largest, builtin_types=(bytes,))
    digests = bytes(16 * (MAX_CHUNKS + 1))
    over = msgspec.msgpack.encode({**fields, "size": size + 1, "digests": digests})
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(over, type=Manifest)


@pytest.mark.parametrize(
    ("index", "data", "message"),
    [
        (10, b"", "chunk 10 of a blob of 10 chunks"),
        (2**32 - 1, chunk(0), "chunk 4294967295 of"),
        (0, chunk(0)[:-1], "chunk 0: 4095 bytes, expected 4096"),
        (0, chunk(0) + b"x", "chunk 0: 4097 bytes, expected 4096"),
        (9, chunk(0), "chunk 9: 4096 bytes, expected 10"),
        (9, b"", "chunk 9: 0 bytes, expected 10"),
        (0, chunk(1), "chunk 0: the digest does not match"),
        (1, chunk(1)[:-1] + b"\x00", "chunk 1: the digest does not match"),
    ],
)
def test_a_chunk_that_is_not_of_the_blob(index: int, data: bytes, message: str) -> None:
    intake, fetch = Intake(MANIFEST, set()), Fetch(MANIFEST, set(), rng())
    fetch.connected(0.0)
    for end in (intake, fetch):
        with pytest.raises(FrameError, match=message):
            end.chunk(index, data, 1.0)
        assert end.have == set()
    assert intake.timer() is None
    assert fetch.timer() == 0.0


@pytest.mark.parametrize(
    ("bits", "count"),
    [(b"", 1), (b"\x00\x00", 8), (b"\x00", 9), (b"\x02", 1), (b"\x00\x80", 15), (bytes(513), 4096)],
)
def test_malformed_bitmaps_are_refused_by_every_end(bits: bytes, count: int) -> None:
    with pytest.raises(FrameError, match="bitmap"):
        from_bitmap(bits, count)
    manifest = Manifest(bytes(32), count * 4096, 4096, bytes(16 * count))
    upload = Upload(manifest, rng())
    upload.connected(0.0)
    upload.poll(0.0)
    with pytest.raises(FrameError, match="bitmap"):
        upload.receive(1, bits, CREDIT, 0.0)
    assert upload.poll(0.0) == []
    serving = Serving(manifest, 0.0)
    with pytest.raises(FrameError, match="bitmap"):
        serving.request("d", bits, 1, 0.0)
    assert serving.timer() is None


def test_a_chunk_that_is_there_already_is_reported_all_the_same() -> None:
    """The sender would not have sent it if it knew."""
    intake = Intake(MANIFEST, {0})
    assert not intake.chunk(0, chunk(0), 0.0)
    assert intake.poll(1.0)


def test_backoff_grows_to_its_ceiling_with_full_jitter() -> None:
    chance = rng()
    for attempt in range(30):
        ceiling = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0**attempt)
        found = [backoff(attempt, chance) for _ in range(200)]
        assert min(found) >= 0.1 * ceiling
        assert max(found) <= ceiling
        assert max(found) - min(found) > 0.7 * ceiling
