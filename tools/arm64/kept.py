"""Caches folders in runs/arm64 that take a long time to build. Rebuilds them when their inputs change."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "arm64"


def digest(parts: Iterable[bytes]) -> str:
    """Return a short hash of these bytes."""
    sums = (hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(sums)).hexdigest()[:12]


def kept(name: str, parts: Iterable[bytes], make: Callable[[Path], None]) -> Path:
    """Return a folder that ``make`` has filled, from the cache if ``parts`` have not changed.

    An older folder of this name is removed. If ``make`` raises, nothing is cached.
    """
    folder = FOLDER / f"{name}-{digest(parts)}"
    if not folder.exists():
        FOLDER.mkdir(parents=True, exist_ok=True)
        for old in FOLDER.glob(f"{name}-{'?' * 12}"):
            shutil.rmtree(old)
        with tempfile.TemporaryDirectory(dir=FOLDER) as temporary:
            made = Path(temporary) / "made"
            made.mkdir()
            make(made)
            made.rename(folder)
    return folder
