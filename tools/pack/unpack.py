"""Unpacks the archives next to this file: ``python unpack.py FOLDER``.

It uses only the standard library. ``run`` has already verified the checksums.
"""

import gzip
import json
import shutil
import sys
import tarfile
from pathlib import Path

CONTENT = "content.json"
ARCHIVES = ("source", "packages", "data")
SUFFIX = ".tar.xz"


def unpack(pack: Path, folder: Path) -> None:
    """Fill ``folder`` with the source, packages and data. Raises ``OSError`` and ``tarfile.TarError``."""
    needed = json.loads((pack / CONTENT).read_bytes())["unpacked_bytes"]
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OSError(f"{free / 1e6:,.0f} MB free, expected {needed / 1e6:,.0f} MB")
    for archive in ARCHIVES:
        with tarfile.open(pack / (archive + SUFFIX)) as file:
            file.extractall(folder / archive, filter="data")
    for raw in (folder / "data").iterdir():
        _gzip(raw)


def _gzip(raw: Path) -> None:
    """Compress a file with gzip, because the emulator reads compressed files.

    The archive contains the files uncompressed, which makes the pack smaller.
    """
    with raw.open("rb") as file, gzip.open(f"{raw}.gz", "wb", compresslevel=1) as packed:
        shutil.copyfileobj(file, packed)
    raw.unlink()


def main(folder: str) -> int:
    """Unpack everything. On failure, print one line and return 2."""
    try:
        unpack(Path(__file__).parent, Path(folder))
    except (OSError, tarfile.TarError) as exc:
        print(f"run: unpacking into {folder}: {exc}; set TMPDIR to another folder", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
