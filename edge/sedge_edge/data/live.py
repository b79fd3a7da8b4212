"""A device's examples, which are read again when they have changed."""

import logging
from pathlib import Path

from sedge_edge.config import FUNCTION_SOURCE, DataConfig
from sedge_edge.data.sources import load_data
from sedge_edge.training.examples import Examples
from sedge_protocol.errors import DataError

_LOG = logging.getLogger("sedge.edge")


class LiveData:
    """The training and test examples of a configuration. Calling it reads them again if they have changed.

    Files and folders are checked for changes, while a function is called only once. If changed data cannot
    be read, the error is logged and the previous examples stay in use. The constructor raises ``DataError``
    if the data cannot be read.
    """

    def __init__(self, data: DataConfig, base: Path) -> None:
        self._data, self._base = data, base
        self._seen = self._refused = self._stamps()
        self._examples = load_data(data, base)

    def __call__(self) -> tuple[Examples, Examples]:
        """Return the training and the test examples."""
        stamps = self._stamps()
        if stamps != self._seen:
            try:
                self._examples = load_data(self._data, self._base)
                # Not updated after an error, so that the data are read again next time: completing a
                # half-written image does not change its folder.
                self._seen = stamps
            except DataError as exc:
                if stamps != self._refused:  # log each error once
                    _LOG.error("new data: %s; continuing with the previous examples", exc)
                self._refused = stamps
        return self._examples

    def _stamps(self) -> tuple[object, ...]:
        sources = (s for s in (self._data.train, self._data.test) if s is not None)
        return tuple(_stamp(self._base / s) for s in sources if not FUNCTION_SOURCE.fullmatch(s))


def _stamp(path: Path) -> tuple[object, ...]:
    """Return a value that changes if a file is replaced or written, or an image is added or removed."""
    try:
        folders = sorted(p for p in path.iterdir() if p.is_dir()) if path.is_dir() else ()
        found = [path.stat(), *(folder.stat() for folder in folders)]
    except OSError:
        return ()
    return tuple((one.st_ino, one.st_mtime_ns, one.st_size) for one in found)
