"""Reads the examples of a data source, given the source's name."""

import importlib
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from sedge_edge.config import FUNCTION_SOURCE, DataConfig
from sedge_edge.data.archive import read_archive
from sedge_edge.data.images import read_images
from sedge_edge.data.memory import no_room
from sedge_edge.data.raw import Raw, raw
from sedge_edge.data.table import DELIMITERS, read_table
from sedge_edge.training.examples import ExamplePlaces, Examples, split_rows
from sedge_protocol.errors import DataError
from sedge_protocol.host.user_code import importable, unimportable

_LOG = logging.getLogger("sedge.edge")
# Other common table formats, which are not supported.
_OTHERS = {
    ".arrow", ".feather", ".h5", ".hdf5", ".json", ".jsonl", ".mat", ".npy", ".ods", ".parquet", ".pickle",
    ".pkl", ".pt", ".pth", ".xls", ".xlsx",
}  # fmt: skip


def load_data(data: DataConfig, base: Path) -> tuple[Examples, Examples]:
    """Return the training and test examples of a configuration.

    The examples are split before they are converted, because pixels take four times as much memory in
    float32. Raises ``DataError`` for a source that is missing, unreadable or malformed.
    """
    if data.test is not None:
        return load_source(data.train, base), load_source(data.test, base)
    whole = _noted(read_source(data.train, base))
    train, test = split_rows(len(whole.x), data.test_fraction, data.split_seed)
    return whole.examples(train), whole.examples(test)


def load_source(source: str, base: Path) -> Examples:
    """Return the examples of one source. Relative paths and modules are looked up in ``base``.

    Raises ``DataError`` for a source that is missing, unreadable or malformed.
    """
    return _noted(read_source(source, base)).examples()


def read_source(source: str, base: Path, shape: tuple[int, ...] | None = None) -> Raw:
    """Read a source without converting it.

    ``shape`` is the shape of one example, if a model is known. Only images are compared with it, before all
    of them are read. Raises ``DataError`` for a source that is missing or unreadable, or images of a
    different shape.
    """
    try:
        return _read(source, base, shape)
    except MemoryError as exc:
        raise no_room(source) from exc


def _read(source: str, base: Path, shape: tuple[int, ...] | None) -> Raw:
    if FUNCTION_SOURCE.fullmatch(source):
        return raw(*_call(source, base), source)
    if "\0" in source:
        raise DataError(
            f"{source!r}: a name with a null byte, expected the name of a file or folder"
        )
    path = base / source
    try:
        if path.is_dir():
            return read_images(path, shape)
    except OSError as exc:  # no access to the folder, or an invalid file name
        where = path if exc.filename is None else exc.filename
        raise DataError(
            f"{where}: {exc.strerror or exc}, expected a readable file or folder"
        ) from exc
    ending = path.suffix.lower()
    if ending in _OTHERS:
        expected = ".npz, .csv, a folder of images, or a function that reads it"
        raise DataError(f"{path}: {ending} cannot be read, expected {expected}: 'my_data:load'")
    if ending in DELIMITERS:
        table = read_table(path)
        made = raw(table.x, table.y, table.group, str(path), table.notes)
        return replace(made, places=ExamplePlaces(path.name, "line", table.lines))
    made = raw(*read_archive(path), source)
    return replace(made, places=ExamplePlaces(path.name, "row", np.arange(len(made.x))))


def _noted(whole: Raw) -> Raw:
    for note in whole.notes:
        _LOG.warning("%s: %s", whole.where, note)
    return whole


def _call(source: str, base: Path) -> tuple[object, object, object]:
    """Call the user's function. Any exception in it becomes a ``DataError`` with the same text.

    This includes the exception raised by ``sys.exit``, which must not end the agent.
    """
    module, _, name = source.partition(":")
    try:
        with importable(base):
            function = cast(Callable[[], object], getattr(importlib.import_module(module), name))
            result = function()
    except (Exception, SystemExit) as exc:
        raise DataError(f"{source}: {unimportable(exc, source, base)}") from exc
    if isinstance(result, tuple):
        match cast(tuple[object, ...], result):
            case (x, y):
                return x, y, None
            case (x, y, group):
                return x, y, group
            case _:
                pass
    raise DataError(f"{source}: returned {type(result).__name__}, expected a tuple (x, y)")
