"""Runs and stores the cells of a table. A cell is an emulation of one strategy under one seed.

A finished cell is not repeated, and an interrupted one resumes. Its result.json is stored without default
values, in a form that ``sedge-emulate compare`` reads like any run.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace
from rich.console import Console

from sedge_emulate.config import EmulationConfig, StrategyConfig
from sedge_emulate.emulation import slug, unfinished
from sedge_emulate.result import Result, StrategyResult, read_json, write_whole
from sedge_emulate.run import run_fleet
from sedge_emulate.settings import differing
from sedge_protocol.errors import DataError


def cell_config(
    fleet: EmulationConfig, strategy: StrategyConfig, seed: int, rate: float
) -> EmulationConfig:
    """Return the fleet's configuration with only this strategy, this seed and the strategy's learning rate.

    The model gets the narrower forms that the strategy's option ``dropped`` names.
    """
    training = replace(strategy.training or fleet.training, learning_rate=rate)
    dropped = strategy.options.get("dropped", [0.0])
    assert isinstance(dropped, list)
    widths = tuple(float(share) for share in dropped)
    model = replace(fleet.model, widths=widths)
    strategies = (replace(strategy, training=training),)
    return replace(fleet, seed=seed, model=model, strategies=strategies).check()


def kept_cell(config: EmulationConfig, path: Path) -> Result | None:
    """Return the cell stored at ``path``, or None.

    Raises ``DataError`` if the cell has another configuration, and ``StorageError`` if the file is not a
    result.
    """
    if not path.exists():
        return None
    result = read_json(path)
    require_config(config, result.settings, path)
    return result


def require_config(config: EmulationConfig, settings: dict[str, Any], path: Path) -> None:
    """Raise ``DataError``, naming the first difference, if the configurations differ."""
    for key, old, new in differing(settings, config):
        raise DataError(
            f"{path}: a cell of another configuration: {key} is {old!r}, expected {new!r}; delete it to "
            "run it again"
        )


def played(config: EmulationConfig, base: Path, out: Path, console: Console) -> Result:
    """Run or resume a cell in the folder ``out``. Returns its result.

    ``base`` is the folder with the module of a user-defined model, if there is one.
    """
    (strategy,) = config.strategies
    resume = unfinished(out)
    console.rule(f"{strategy.title}, seed {config.seed}, {config.data.dataset}")
    arguments = argparse.Namespace(
        fleet=base / "fleet.toml", out=out, resume=resume, fresh=False, ray=None, verbose=False,
        argv=["run", f"{config.data.dataset}/{slug(strategy.title)}", "--seed", str(config.seed)],
    )  # fmt: skip
    return run_fleet(config, arguments, console)


def keep(result: Result, path: Path) -> None:
    """Write the parts of a cell that are worth storing."""
    strategies = [
        {
            **_shown(
                strategy,
                ("name", "before", "after", "bytes", "seconds", "personal", "epochs", "partners"),
            ),
            "options": strategy.options,
            "rounds": _short(strategy.rounds),
            "devices": _short(strategy.devices),
        }
        for strategy in result.strategies
    ]
    whole = {**msgspec.to_builtins(result), "strategies": strategies}
    write_whole(msgspec.json.encode(whole) + b"\n", path)


def _shown(strategy: StrategyResult, keys: Iterable[str]) -> dict[str, Any]:
    return {key: msgspec.to_builtins(getattr(strategy, key)) for key in keys}


def _short(rows: Iterable[msgspec.Struct]) -> list[dict[str, Any]]:
    """Return rows without the values that equal their defaults."""
    return [
        {
            field.name: round(value, 6) if isinstance(value, float) else value
            for field in msgspec.structs.fields(row)
            if (value := getattr(row, field.name)) != field.default and value not in ([], {})
        }
        for row in rows
    ]
