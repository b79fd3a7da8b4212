"""How long it takes to move a fleet to another store and back, killed twice each way.

A fleet in a folder, whose rows name this many blobs of a megabyte, is copied to PostgreSQL and an object
store, which this starts, and from there into another folder, each time by ``sedge-cloud store copy``. The
command is killed when a third and two thirds of the blobs are there, and run again. At the end every row
must be the same, and every blob must be there with its digest. Seconds are wall time, killed attempts
included.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import msgspec
from tools.bench.coordinator import make_bundle
from tools.bench.harness import Figure, Result, bench
from tools.bench.parts.servers import Servers

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import RunConfig, load_cloud
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_store
from sedge_cloud.store.rows import ClientModelRow
from sedge_cloud.store.schema import TABLE_NAMES

FLEET, RUN = "moving", "run"
BLOB_BYTES = 10**6
LOOK_S = 0.2


def cloud_toml(folder: Path, more: str = "") -> Path:
    """A configuration whose state folder is in this folder."""
    folder.mkdir()
    path = folder / "cloud.toml"
    path.write_text(f'fleet = "{FLEET}"\n{more}[broker]\nurl = "mqtt://127.0.0.1:1"\n')
    return path


def filled(config: Path, bundle: Path, count: int) -> None:
    """A run in which this many devices have a model of a megabyte each."""
    with closing(open_store(load_cloud(config))) as store:
        start_run(store, RUN, make_bundle(bundle, 100), RunConfig(strategy="fedavg"))
        names = [f"device-{i}" for i in range(count)]
        store.add_devices({name: os.urandom(32) for name in names})
        blobs = [store.blobs.write(os.urandom(BLOB_BYTES)) for _ in names]
        (row,) = store.runs()
        store.add_run(
            msgspec.structs.replace(row, run="other"),
            [
                ClientModelRow("other", name, 1, blob, b"", b"", b"")
                for name, blob in zip(names, blobs, strict=True)
            ],
        )


def contents(config: Path) -> str:
    """A digest of every row; every blob that a row names is read and thereby checked."""
    digest = hashlib.sha256()
    with closing(open_store(load_cloud(config))) as store:
        store.check()
        for name in sorted(TABLE_NAMES):
            digest.update(name.encode())
            for row in sorted(rows(store, name), key=repr):
                digest.update(repr(row).encode())
        for sha256 in sorted(Garbage(store).named_blobs()):
            store.update_blob(sha256)
    return digest.hexdigest()


def rows(store: Store, table: str) -> list[tuple[object, ...]]:
    """A table's rows, the same from each database."""
    found = store._db.execute(f"SELECT * FROM {table}").fetchall()
    return [tuple(bytes(v) if isinstance(v, memoryview) else v for v in row) for row in found]


def copied(source: Path, target: Path, count: int) -> float:
    """Copy, killed when a third and two thirds of the blobs are there. Returns the seconds."""
    command = [sys.executable, "-m", "sedge_cloud", "store", "copy", str(source), str(target)]
    begun = time.monotonic()
    with closing(open_store(load_cloud(target))) as store:
        for share in (1 / 3, 2 / 3):
            copying = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            while len(store.blobs.sizes()) < share * count:
                assert copying.poll() is None, "it was not killed"
                time.sleep(LOOK_S)
            copying.send_signal(signal.SIGKILL)
            copying.wait()
            assert not store.runs()
    subprocess.run(command, check=True)
    return time.monotonic() - begun


def figures(found: Result) -> list[Figure]:
    """The times there and back."""
    measured = (
        f"{found['out_s']:.0f} s, back in {found['back_s']:.0f} s, killed twice each; all equal"
    )
    return [Figure(f"{found['mb']:.0f} MB to another store", measured)]


@bench("Another store", figures)
def measure(mb: int = 1000) -> Result:
    """Copy there and back, and compare."""
    count = mb * 10**6 // BLOB_BYTES
    with tempfile.TemporaryDirectory() as name, closing(Servers()) as servers:
        folder = Path(name)
        there = folder / "there"
        first, last = cloud_toml(folder / "first"), cloud_toml(folder / "last")
        database, objects = servers.place(there)
        keys = {"url": database.url}, msgspec.structs.asdict(objects)
        sections = [
            f"[{section}]\n"
            + "".join(f"{k} = {json.dumps(v)}\n" for k, v in of.items() if v is not None)
            for section, of in zip(("store", "blobs"), keys, strict=True)
        ]
        filled(first, folder / "bundle", count)
        before = contents(first)
        middle = cloud_toml(there, "".join(sections))
        out = copied(first, middle, count)
        assert contents(middle) == before, "rows or blobs differ after the way out"
        back = copied(middle, last, count)
        assert contents(last) == before, "rows or blobs differ after the way back"
    return {"mb": count * BLOB_BYTES / 1e6, "out_s": out, "back_s": back, "kills": 4}
