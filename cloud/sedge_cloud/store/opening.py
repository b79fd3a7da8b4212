"""Opens a store: in the state folder, or where [store] and [blobs] in cloud.toml place it."""

from importlib import import_module
from pathlib import Path
from typing import Any

from sedge_cloud.config import CloudConfig
from sedge_cloud.store.contract import Blobs, Dialect, Parts, Public
from sedge_cloud.store.database import Store
from sedge_cloud.store.settings import PRESIGNED, BlobsConfig, StoreConfig
from sedge_cloud.store.sqlite import Sqlite
from sedge_protocol.errors import NotInstalled, StorageError, os_reason
from sedge_protocol.host.blobs import BlobFolder

# Folders in the state folder, for copies of objects and for upload parts that become objects.
OBJECTS = "objects"


def open_store(cloud: CloudConfig, any_thread: bool = False) -> Store:
    """Open the store that a configuration names. Raises ``ConfigError`` or ``StorageError``."""
    folder = Path(cloud.state_dir)
    store = open_parts(folder, cloud.store, cloud.blobs, any_thread=any_thread)
    try:
        store.require_fleet(cloud.fleet)
        store.coordinator_account = cloud.username
    except BaseException:
        store.close()
        raise
    return store


def is_shared(cloud: CloudConfig) -> bool:
    """Return True if several processes may serve the fleet, because both rows and blobs are on servers."""
    return cloud.store.url is not None and cloud.blobs.url is not None


def open_blobs(cloud: CloudConfig) -> Blobs:
    """Open a store's blobs without its rows. Raises ``ConfigError`` or ``StorageError``."""
    return _open_blobs(Path(cloud.state_dir), cloud.blobs, durable=True)[0]


def open_folder(folder: Path, durable: bool = True, any_thread: bool = False) -> Store:
    """Open a store that is entirely in one folder, creating it if missing. Raises ``StorageError``.

    See ``Sqlite`` for ``durable`` and ``any_thread``.
    """
    return _open(folder, StoreConfig(), BlobsConfig(), durable, any_thread)


def open_parts(
    folder: Path,
    rows: StoreConfig,
    objects: BlobsConfig,
    durable: bool = True,
    any_thread: bool = False,
) -> Store:
    """Open a store with these rows and blobs; everything else is in ``folder``."""
    return _open(folder, rows, objects, durable, any_thread)


def _open(
    folder: Path, rows: StoreConfig, objects: BlobsConfig, durable: bool, any_thread: bool
) -> Store:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as exc:
        raise StorageError(f"state folder {folder}: {os_reason(exc)}") from exc
    blobs, parts, public = _open_blobs(folder, objects, durable)
    return Store(_open_rows(folder, rows, durable, any_thread), blobs, parts, folder, public)


def _open_rows(folder: Path, rows: StoreConfig, durable: bool, any_thread: bool) -> Dialect:
    if rows.url is None:
        return Sqlite(folder, durable, any_thread)
    postgres = _extra("postgres", "store.url", rows.url)
    return postgres.Postgres(rows.url, rows.password())  # type: ignore[no-any-return]


def _open_blobs(
    folder: Path, config: BlobsConfig, durable: bool
) -> tuple[Blobs, Parts, Public | None]:
    public = None if config.public is None else config.place
    if config.url is None:
        disk = BlobFolder(folder, durable=durable)
        return disk, disk, public
    objects = _extra("objects", "blobs.url", config.url)
    blobs = objects.ObjectBlobs(
        config.url, objects.open_objects(config), folder / OBJECTS, config.cache_mb * 2**20
    )
    blobs.require()
    signed = blobs.signed if config.public == PRESIGNED else public
    return blobs, objects.ObjectParts(blobs), signed


def _extra(module: str, key: str, url: str) -> Any:
    """Import a module from this folder whose library is in the optional extra ``stores``."""
    try:
        return import_module(f"sedge_cloud.store.{module}")
    except ModuleNotFoundError as exc:
        raise NotInstalled(f"{key} {url!r}", exc.name or "a package", "stores") from exc
