"""Stores the outcome of one cell as a small JSON file: accuracies, bytes, cost, and how it was made."""

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sedge_cloud.config import Option
from sedge_protocol.errors import StorageError

FORMAT = 1
# Fields whose elements are written one per line.
ROWS = ("checkpoints", "points", "sizes")


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Accuracies of all devices after ``round`` training rounds, before and after local training.

    Accuracies are shares from 0 to 1. ``before`` and ``after`` are pooled, so each test example has
    equal weight. The other fields are means over devices, so each device has equal weight:
    ``before_mean`` and ``after_mean`` over all devices, the last two over the tenth of the devices with
    the lowest accuracy.
    """

    round: int
    before: float
    after: float
    before_mean: float
    after_mean: float
    before_worst_tenth: float
    after_worst_tenth: float


class Point(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A training round: the pooled accuracy of its participants, and the bytes of all devices.

    For strategies that select elements, ``sparse`` is the accuracy after training of models in which
    only the sent elements are updated. ``accounted_up`` and ``accounted_down`` are the bytes per device
    as the paper counts them (accounting.py).
    """

    round: int
    before: float
    after: float
    bytes_up: int
    bytes_down: int
    sparse: float | None = None
    accounted_up: float | None = None
    accounted_down: float | None = None


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """The devices that trained one width of the model, which lacks the share ``dropped`` of the channels.

    ``multiply_adds`` is for one example's forward pass. Bytes are per device over the whole run.
    Accuracies are from the last measurement, before and after local training. Both are means over
    devices.
    """

    dropped: float
    devices: int
    parameters: int
    multiply_adds: int
    bytes_up: int
    bytes_down: int
    before: float
    after: float


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a cell's run with ``participants`` devices per round.

    ``seconds`` is how long the whole run took on this host, with ``workers`` processes. ``sizes`` are the
    widths of the model, if there were several. ``backend`` is the requested trainer; empty for the default.
    """

    format: int = FORMAT
    table: str
    cell: str
    strategy: str
    options: Mapping[str, Option]
    seed: int
    rounds: int
    created: str
    versions: Mapping[str, str]
    trainer: str
    workers: int
    seconds: float
    bytes_up: int
    bytes_down: int
    parameters: int
    participants: int
    checkpoints: tuple[Checkpoint, ...]
    points: tuple[Point, ...]
    sizes: tuple[Size, ...] = ()
    backend: str = ""

    @property
    def file(self) -> str:
        """Return the name of the outcome's file."""
        return file_name(self.table, self.cell, self.seed, self.rounds, self.backend)

    @property
    def command(self) -> str:
        """Return the command that reproduces the outcome."""
        words = f"python -m tools.reproduce {self.table} --only {self.cell} --seed {self.seed}"
        more = f" --backend {self.backend}" if self.backend else ""
        return f"{words} --rounds {self.rounds}{more}"

    @property
    def method(self) -> str:
        """The cell's name, and its trainer if one was requested."""
        return f"{self.cell}, {self.backend}" if self.backend else self.cell


def file_name(table: str, cell: str, seed: int, rounds: int, backend: str = "") -> str:
    """Return the path of a cell's outcome within the folder of results."""
    return f"{table}-{cell}-seed{seed}-{rounds}{f'-{backend}' if backend else ''}.json"


def read(path: Path) -> Outcome | None:
    """Read an outcome. Returns None if there is none yet. Raises ``StorageError`` for an invalid file."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Outcome)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as exc:
        raise StorageError(f"{path}: {exc}; delete it to run it again") from exc


def write(outcome: Outcome, folder: Path) -> Path:
    """Write an outcome atomically, one line per round. Raises ``StorageError`` if that fails."""
    path = folder / outcome.file
    parts = [
        f'  "{key}": {_rows(value) if key in ROWS else _text(value)}'
        for key, value in ((key, getattr(outcome, key)) for key in outcome.__struct_fields__)
    ]
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    partial = path.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        partial.write_text(text)
        os.replace(partial, path)
    except OSError as exc:
        raise StorageError(f"{path}: {exc}") from exc
    return path


def _rows(rows: tuple[object, ...]) -> str:
    return "[\n" + ",\n".join(f"    {_text(row)}" for row in rows) + "\n  ]" if rows else "[]"


def _text(value: object) -> str:
    return msgspec.json.encode(value).decode()
