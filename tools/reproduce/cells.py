"""The tables to reproduce: each cell is a published figure and the run that should reproduce it.

They are read from tables.toml. Accuracies are percentages.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from tools.reproduce.fling import FlingSetting
from tools.reproduce.partial import PartialSetting
from tools.reproduce.released import ReleasedSetting
from tools.reproduce.setting import Setting
from tools.reproduce.sized import SizedSetting

from sedge_cloud.coding import EXACT, WHOLE, BroadcastConfig, CodecConfig, PatchConfig
from sedge_cloud.config import Option
from sedge_protocol.codec import ValueCoding

_EXACT_PATCHES = PatchConfig(ValueCoding.FP32)


@dataclass(frozen=True)
class Cell:
    """One row of a table: a strategy with its options, and its published figures.

    ``published`` and ``published_after`` map a number of training rounds to the accuracy over all
    devices at that point, before and after local training. ``best`` is the published maximum; the
    table's ``best_of`` says of what. ``accounted`` has a device's MiB per round, "up" and "down", as
    the paper counts them, before and after round beta.
    """

    name: str
    strategy: str
    options: Mapping[str, Option] = field(default_factory=dict[str, Option])
    published: Mapping[int, float] = field(default_factory=dict[int, float])
    published_after: Mapping[int, float] = field(default_factory=dict[int, float])
    best: float | None = None
    accounted: Mapping[str, tuple[float, float]] = field(
        default_factory=dict[str, tuple[float, float]]
    )
    codec: CodecConfig = EXACT  # by default nothing is compressed, as in the papers
    broadcast: BroadcastConfig = WHOLE
    patch: PatchConfig = _EXACT_PATCHES


@dataclass(frozen=True)
class Table:
    """Cells that share a setting.

    ``rounds`` is the length of a full run, and ``tolerance`` is in percentage points. ``best_of`` says
    which accuracy a cell's ``best`` is the maximum of: "before", that of all devices before local
    training, at the checkpoints; or "after", that of each round's devices after local training.
    ``plain`` is the cell that all others are compared with, seed by seed. ``dropped`` lists methods
    that were removed because they did not win; their outcomes are still shown.
    """

    name: str
    title: str
    source: str
    setting: Setting
    rounds: int
    cells: tuple[Cell, ...]
    tolerance: float = 0.0
    best_of: str = "before"
    seeds: tuple[int, ...] = (42,)
    plain: str = ""
    dropped: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        """Return the names of all cells, including the dropped methods."""
        return (*(cell.name for cell in self.cells), *self.dropped)

    def cell(self, name: str) -> Cell:
        """Return the cell with this name. For a dropped method, the cell has only a name.

        Raises ``KeyError`` if there is no such cell.
        """
        gone = {name: Cell(name, "") for name in self.dropped}
        return {**gone, **{cell.name: cell for cell in self.cells}}[name]


_SETTINGS: Mapping[str, type[Setting]] = {
    "released": ReleasedSetting,
    "fling": FlingSetting,
    "partial": PartialSetting,
    "sized": SizedSetting,
}


def _setting(kind: type, value: Any) -> Setting:
    """Read a setting, which is written as its name and alpha."""
    assert kind is Setting
    ((name, alpha),) = value.items()
    return _SETTINGS[name](alpha)


def _table(name: str, raw: dict[str, Any]) -> Table:
    """Read a table from its keys. By default a cell is named after its strategy."""
    cells = [{"name": cell, "strategy": cell, **keys} for cell, keys in raw["cells"].items()]
    whole = {**raw, "name": name, "cells": cells}
    return msgspec.convert(whole, Table, str_keys=True, dec_hook=_setting)


_READ = tomllib.loads(Path(__file__).with_name("tables.toml").read_text())
TABLES: Mapping[str, Table] = {name: _table(name, raw) for name, raw in _READ["tables"].items()}
# The cells that ``--short`` runs, and the first rounds of the authors' released runs, by cell and seed.
SHORT = tuple((table, cell) for table, cell in _READ["short"])
SHORT_ROUNDS: int = _READ["short_rounds"]
FIRST_ROUNDS: Mapping[tuple[str, int], tuple[tuple[float, float], ...]] = {
    (run["cell"], run["seed"]): tuple((before, after) for before, after in run["accuracies"])
    for run in _READ["first_rounds"]
}
