"""Where the stores of these tests are: the one place that opens them."""

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from tools.bench.parts.servers import Servers

from sedge_cloud.config import CloudConfig
from sedge_cloud.store import opening
from sedge_cloud.store.database import Store
from sedge_cloud.store.objects import ObjectBlobs
from sedge_cloud.store.settings import BlobsConfig, StoreConfig
from sedge_protocol.host.blobs import BlobFolder

FOLDER, SERVERS = "folder", "servers"
# For a test of what only a store in a folder has: its files, or a fork, which a server's client does not
# survive.
in_a_folder = pytest.mark.parametrize("engine", [FOLDER], indirect=True)
ON_SERVERS = pytest.param(SERVERS, marks=pytest.mark.fleet)
on_servers = pytest.mark.parametrize("engine", [ON_SERVERS], indirect=True)
BOTH = [FOLDER, ON_SERVERS]
on_both = pytest.mark.parametrize("engine", BOTH, indirect=True)
_open = opening.open_parts
# The servers that have the stores, if they are not in folders, and what each test has opened.
_servers: list[Servers] = []
_opened: list[list[Store]] = []


def open_store(folder: Path) -> Store:
    """The store of a state folder. It does not wait for the disk: here processes die, not the power."""
    if _servers:
        return _kept(_open(folder, *_servers[0].place(folder), durable=False))
    return _kept(opening.open_folder(folder, durable=False))


def _kept(store: Store) -> Store:
    for opened in _opened[-1:]:
        opened.append(store)
    return store


@contextmanager
def closed_afterwards() -> Generator[None]:
    """What is opened meanwhile is closed in the end; a thread closes its own."""
    _opened.append([])
    yield
    for store in _opened.pop():
        with suppress(sqlite3.ProgrammingError):
            store.close()


def config_of(fleet: str, folder: Path) -> CloudConfig:
    """The configuration of a fleet whose store is what ``open_store`` opens."""
    rows, objects = _servers[0].place(folder) if _servers else (StoreConfig(), BlobsConfig())
    return CloudConfig(fleet, str(folder), store=rows, blobs=objects)


@contextmanager
def on(servers: Servers) -> Generator[None]:
    """Every store is on the servers, also those that the product's own commands open."""

    def open_parts(
        folder: Path, rows: StoreConfig, objects: BlobsConfig, *, any_thread: bool
    ) -> Store:
        if rows == StoreConfig() and objects == BlobsConfig():
            rows, objects = servers.place(folder)
        return _kept(_open(folder, rows, objects, durable=False, any_thread=any_thread))

    _servers.append(servers)
    with pytest.MonkeyPatch.context() as patch, closed_afterwards():
        patch.setattr(opening, "open_parts", open_parts)
        yield
    _servers.clear()
    servers.clear()


def disk_of(store: Store) -> BlobFolder:
    if isinstance(store.blobs, ObjectBlobs):
        return store.blobs.copies
    assert isinstance(store.parts, BlobFolder)
    return store.parts


def parts_of(store: Store) -> Path:
    folder = opening.OBJECTS if isinstance(store.blobs, ObjectBlobs) else ""
    return store.folder / folder / "parts"
