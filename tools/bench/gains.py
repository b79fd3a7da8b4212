"""Measures when a fleet helps: the gain over training alone, by split and examples per device.

    python -m tools.bench --keep gains
    python -m tools.bench --keep gains --splits dir-0.1 --sizes 20 200 --seeds 42

Each cell is one strategy of gains.toml on Fashion-MNIST under one seed. A device trains on a given number
of examples on average and is tested on ``TESTS`` others; accuracies are pooled over all test examples. A
finished cell is not repeated, and an interrupted one resumes. gains_figure.py draws them.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean

import msgspec
from msgspec.structs import replace
from rich.console import Console
from tools.bench.cells import cell_config, played, require_config
from tools.bench.harness import RESULTS, BadOption, Figure, Result, bench

from sedge_emulate.config import DataConfig, EmulationConfig, load_emulation
from sedge_emulate.emulation import slug
from sedge_emulate.paired import pooled
from sedge_emulate.result import write_whole

FLEET = Path(__file__).with_suffix(".toml")
KEPT = RESULTS / "gains.json"
SPLITS = ("dir-0.1", "dir-0.5", "iid")
SIZES = (20, 60, 200, 600, 2000)
SEEDS = (42, 43, 44)
TESTS = 200


class Cell(msgspec.Struct, frozen=True):
    """One strategy's accuracy before and after training, for a split, a ``size`` and a seed."""

    split: str
    size: int
    seed: int
    strategy: str
    before: float
    after: float

    @property
    def place(self) -> tuple[str, int, int, str]:
        """The fields that distinguish this cell from the others."""
        return self.split, self.size, self.seed, self.strategy


class Gains(msgspec.Struct, frozen=True):
    """All cells, and the settings that they share."""

    settings: dict[str, object]
    cells: list[Cell]


def figures(found: Result) -> Iterator[Figure]:
    """Yield each strategy's gain over the first one, after training."""
    cells = msgspec.convert(found, Gains).cells
    for split, size, strategy in dict.fromkeys((c.split, c.size, c.strategy) for c in cells):
        gains = gains_of(cells, split, size, strategy)
        if gains:
            seeds = f"{len(gains)} seed{'s' * (len(gains) > 1)}"
            measured = f"{100 * fmean(after for _, after in gains):+.1f} points, {seeds}"
            yield Figure(f"{strategy} on {split}, {size} examples per device", measured)


def gains_of(
    cells: Sequence[Cell], split: str, size: int, strategy: str
) -> list[tuple[float, float]]:
    """Return a strategy's gains before and after training, by seed, or [] for the first strategy."""
    first = cells[0].strategy
    by_place = {cell.place: cell for cell in cells}
    return [
        (cell.before - alone.before, cell.after - alone.after)
        for cell in cells
        if (cell.split, cell.size, cell.strategy) == (split, size, strategy) and strategy != first
        if (alone := by_place.get((split, size, cell.seed, first)))
    ]


@bench("When a fleet helps", figures)
def measure(
    splits: Sequence[str] = SPLITS, sizes: Sequence[int] = SIZES, seeds: Sequence[int] = SEEDS,
    out: Path = Path("runs/gains"), kept: Path = KEPT,
) -> Result:  # fmt: skip
    """Run the missing cells, seed by seed."""
    console, fleet = Console(), load_emulation(FLEET)
    cells = {cell.place: cell for cell in kept_cells(fleet, kept)}
    for seed in seeds:
        for split in splits:
            for size in sizes:
                divided = replace(fleet, data=divided_data(fleet, split, size))
                for strategy in fleet.strategies:
                    if (split, size, seed, strategy.title) not in cells:
                        rate = fleet.training.learning_rate
                        config = cell_config(divided, strategy, seed, rate)
                        folder = out / f"{split}-{size}" / slug(strategy.title) / f"seed-{seed}"
                        devices = played(config, out, folder, console).strategies[0].devices
                        before, after = pooled(devices, "before"), pooled(devices, "after")
                        assert before is not None and after is not None
                        cell = Cell(
                            split, size, seed, strategy.title, round(before, 5), round(after, 5)
                        )
                        cells[cell.place] = cell
                        write_whole(msgspec.json.encode(_gains(fleet, cells.values())), kept)
    found: Result = msgspec.to_builtins(_gains(fleet, cells.values()))
    return found


def kept_cells(fleet: EmulationConfig, kept: Path) -> list[Cell]:
    """Return the stored cells. Raises ``DataError`` if they belong to another fleet."""
    if not kept.exists():
        return []
    found = msgspec.json.decode(kept.read_bytes(), type=Gains)
    require_config(fleet, found.settings, kept)
    return found.cells


def divided_data(fleet: EmulationConfig, split: str, size: int) -> DataConfig:
    """Return the data settings with which devices train on ``size`` examples on average.

    Raises ``BadOption`` if that is impossible.
    """
    if split not in SPLITS:
        raise BadOption(f"--splits: found {split!r}, expected one of {', '.join(SPLITS)}")
    if size < 1:
        raise BadOption(f"--sizes: found {size}, expected 1 or more")
    kind, _, alpha = split.partition("-")
    each = size + TESTS
    return replace(
        fleet.data,
        split="iid" if kind == "iid" else "dirichlet",
        alpha=float(alpha or fleet.data.alpha),
        examples=fleet.devices * each,
        test_fraction=TESTS / each,
        min_examples=each // 10,
    )


def _gains(fleet: EmulationConfig, cells: Iterable[Cell]) -> Gains:
    order = [strategy.title for strategy in fleet.strategies]

    def place(cell: Cell) -> tuple[int, str, int, int]:
        return order.index(cell.strategy), cell.split, cell.size, cell.seed

    return Gains(msgspec.to_builtins(fleet), sorted(cells, key=place))
