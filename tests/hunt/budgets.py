"""I7: what a machine holds on its disk, in files that are open, and in transfers in memory stays bounded.

Judged at the end of a run, which may have been interrupted a hundred times: what piles up shows there.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path

from tests.hunt.machines import Device, Process
from tests.hunt.training import LAYOUT

from sedge_cloud.ingest.uploads import MAX_TRANSFERS
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.sqlite import DATABASE_NAME
from sedge_edge.rounds.state import DISK_RETRY_S

# A job leaves an update, a model, a residual and a checkpoint at most, which the next collection deletes.
SPARE_VECTORS = 4

Require = Callable[[str, bool, str], None]


def device(require: Require, one: Device, now: float) -> None:
    """A device that rests, once it has repeated what its disk last refused."""
    one.agent.poll(now + DISK_RETRY_S)
    _disk(require, one.name, one.folder, one.agent.state.needed(one.agent.blobs))
    _files(require, one.name, one.folder)


def process(require: Require, one: Process) -> None:
    _disk(require, one.name, one.folder, Garbage(one.store).named_blobs())
    _files(require, one.name, one.folder)
    transfers = one.core.ingest._uploads._transfers
    for name, begun in transfers.items():
        text = f"{one.name} remembers {len(begun)} uploads of {name}, at most {MAX_TRANSFERS}"
        require("I7", len(begun) <= MAX_TRANSFERS, text)


def _disk(require: Require, name: str, folder: Path, needed: Collection[bytes]) -> None:
    names = {sha256.hex() for sha256 in needed}
    blobs = [path for path in (folder / "blobs").iterdir() if path.name not in names]
    spare, most = sum(path.stat().st_size for path in blobs), SPARE_VECTORS * 4 * LAYOUT.size
    require("I7", spare <= most, f"{name} keeps {spare} bytes that nothing needs, at most {most}")
    parts = Counter(path.name.partition("-")[0] for path in (folder / "parts").iterdir())
    for owner, begun in parts.items():
        text = f"{name} keeps {begun} parts of {owner}, at most {MAX_TRANSFERS}"
        require("I7", begun <= MAX_TRANSFERS, text)


def _files(require: Require, name: str, folder: Path) -> None:
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    opened = {os.readlink(link) for link in links if os.path.islink(link)}
    left = {path for path in opened if path.startswith(f"{folder}/") and DATABASE_NAME not in path}
    require("I7", not left, f"{name} has {sorted(left)} open")
