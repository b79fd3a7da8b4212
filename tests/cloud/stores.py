"""Where the stores of these tests are: the one place that opens them."""

from pathlib import Path

from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_folder
from sedge_protocol.host.blobs import BlobFolder


def open_store(folder: Path) -> Store:
    """The store of a state folder. It does not wait for the disk: here processes die, not the power."""
    return open_folder(folder, durable=False)


def disk_of(store: Store) -> BlobFolder:
    """The folder of a store's parts."""
    assert isinstance(store.parts, BlobFolder)
    return store.parts
