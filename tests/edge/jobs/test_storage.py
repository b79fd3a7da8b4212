"""Vectors and masks among the blobs: what comes back, and what is no longer there."""

from pathlib import Path

import pytest
from tests.edge.harness import LAYOUT, N, theta_of

from sedge_edge.jobs.storage import FolderVectors
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.host.blobs import BlobFolder


@pytest.fixture
def blobs(tmp_path: Path) -> BlobFolder:
    return BlobFolder(tmp_path, min_free_bytes=0)


@pytest.fixture
def vectors(blobs: BlobFolder) -> FolderVectors:
    return FolderVectors(blobs)


@pytest.mark.parametrize("data", [b"", b"x", bytes(4 * N - 4), bytes(4 * N + 1), bytes(8 * N)])
def test_a_blob_that_is_no_vector_of_the_layout(
    vectors: FolderVectors, blobs: BlobFolder, data: bytes
) -> None:
    name = blobs.write(data)
    with pytest.raises(CodecError, match=rf"{len(data)} bytes, expected float32 \({N},\)"):
        vectors.read(name, LAYOUT)
    assert vectors.has(name)


def test_what_is_not_there_or_damaged_is_a_storage_error(
    vectors: FolderVectors, tmp_path: Path
) -> None:
    with pytest.raises(StorageError):
        vectors.read(bytes(32), LAYOUT)
    with pytest.raises(StorageError):
        vectors.read_mask(bytes(32))
    model, mask = vectors.keep(theta_of(1)), vectors.keep_mask(b"mask")
    for name in (model, mask):
        (path,) = tmp_path.glob(f"blobs/{name.hex()}")
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StorageError, match="do not match its sha256"):
        vectors.read(model, LAYOUT)
    with pytest.raises(StorageError, match="do not match its sha256"):
        vectors.read_mask(mask)
    assert not vectors.has(model)
    assert not vectors.has(mask)
