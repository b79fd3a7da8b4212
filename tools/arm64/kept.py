"""Folders in runs/arm64 that take long to make; they are made again when their inputs have changed."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "runs" / "arm64"


def digest(parts: Iterable[bytes]) -> str:
    """A short name for these bytes."""
    sums = (hashlib.sha256(part).digest() for part in parts)
    return hashlib.sha256(b"".join(sums)).hexdigest()[:12]


def kept(name: str, parts: Iterable[bytes], make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` has filled from these parts; an older one of the name is removed.

    If ``make`` raises, the error is passed on and nothing is kept.
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
