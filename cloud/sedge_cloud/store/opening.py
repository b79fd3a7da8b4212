"""Where a store is: SQLite and blobs in the state folder."""

from pathlib import Path

from sedge_cloud.store.database import Store
from sedge_cloud.store.sqlite import Sqlite
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder


def open_folder(folder: Path, durable: bool = True, any_thread: bool = False) -> Store:
    """The store that is all in one folder, which is made when missing. Raises ``StorageError``.

    See ``Sqlite`` for ``durable`` and ``any_thread``.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise StorageError(f"state folder {folder}: {exc}") from exc
    blobs = BlobFolder(folder, durable=durable)
    return Store(Sqlite(folder, durable, any_thread), blobs, blobs, folder)
