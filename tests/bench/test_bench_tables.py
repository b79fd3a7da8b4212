"""Tables of cells: what is chosen, what is kept, and what is not run twice; no cell is really trained."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.emulate.sample import SAMPLE
from tools.bench import gains, gains_figure, methods, mixes, tables
from tools.bench.harness import RESULTS, BadOption

from sedge_cloud.strategies.blended import Blended
from sedge_emulate.compare.comparison import Comparison
from sedge_emulate.config import EmulationConfig, load_emulation
from sedge_emulate.result import Result, read_json
from sedge_protocol.errors import DataError

FLEET = """\
devices = 12
seed = 1
[rounds]
num_rounds = 2
[training]
learning_rate = 0.1
[[strategies]]
name = "local_only"
label = "alone"
[[strategies]]
name = "fedavg"
label = "FedAvg"
training = { learning_rate = 0.5 }
"""
BEST = {"alone": 0.3, "FedAvg": 0.5}


class Fleet:
    """Stands for the emulator; ``cells`` are those played in turn, as strategy, seed and rate."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.out = folder / "mine.toml", folder / "out"
        self.cells: list[tuple[str, int, float]] = []
        self.path.write_text(FLEET)
        monkeypatch.setattr(tables, "SETS", {"mine": self.path})
        monkeypatch.setattr(tables, "played", self.played)

    def played(self, config: EmulationConfig, *_: object) -> Result:
        """A result that is the better, the nearer the rate is to the method's best."""
        (strategy,) = config.strategies
        assert strategy.training is not None
        rate = strategy.training.learning_rate
        self.cells.append((strategy.title, config.seed, rate))
        (some, *_rest) = SAMPLE.strategies
        after = 0.9 - abs(rate - BEST[strategy.title])
        devices = [replace(device, after=after) for device in some.devices]
        played = replace(some, name=strategy.title, devices=devices)
        settings = msgspec.json.decode(msgspec.json.encode(config))
        return replace(SAMPLE, seed=config.seed, strategies=[played], settings=settings)

    def measure(self, **options: Any) -> Comparison:
        self.cells.clear()
        found = tables.measure("mine", out=self.out, kept=self.out / "kept", **options)
        return msgspec.convert(found["mine"], Comparison)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    return Fleet(tmp_path, monkeypatch)


def test_rates_are_chosen_once_and_cells_are_run_once(fleet: Fleet) -> None:
    found = fleet.measure(seeds=(1, 2), methods=("alone",))
    tried = [("alone", 1, rate) for rate in (0.03, 0.1, 0.3)]
    assert fleet.cells == [*tried, ("alone", 1, 0.3), ("alone", 2, 0.3)]
    assert [(row.name, row.seeds) for row in found.strategies] == [("alone", [1, 2])]
    found = fleet.measure(seeds=(1,))
    assert fleet.cells == [("FedAvg", 1, rate) for rate in (0.15, 0.5, 1.5, 0.5)]
    assert found.strategies[1].figures["after"].mean == pytest.approx(0.9)
    kept = fleet.out / "kept" / "mine" / "fedavg" / "seed-1" / "result.json"
    assert kept.stat().st_size < 12_000
    assert read_json(kept).strategies[0].devices[0].before == 0.9


def test_a_cell_of_another_configuration_is_named(fleet: Fleet) -> None:
    fleet.measure(seeds=(1,), methods=("FedAvg",))
    fleet.path.write_text(FLEET.replace("devices = 12", "devices = 11"))
    with pytest.raises(DataError, match=r"rate\.json: .* devices is 12, expected 11; delete it"):
        fleet.measure(seeds=(1,))
    with pytest.raises(BadOption, match="--methods: found 'fedavg', expected one of alone"):
        fleet.measure(methods=("fedavg",))


def test_every_fleet_file_has_the_methods() -> None:
    """All that suit its model, Blended first, which is tested against the others."""
    for name, path in tables.SETS.items():
        fleet = load_emulation(path)
        labels = [strategy.title for strategy in fleet.strategies]
        assert labels[0] == "Blended"
        assert {"alone", "FedAvg", "Blended", "FedPURIN", "FedCAC", "APFL"} < set(labels)
        assert len(labels) == (11 if name == "shakespeare" else 12)
        assert fleet.training.local_epochs == 3
        assert {kind.absent_rounds for kind in fleet.classes} == {0, 10, fleet.rounds.num_rounds}


def test_a_share_of_the_past_is_tried_as_a_rate_is(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.path.write_text(FLEET.replace('name = "fedavg"', 'name = "blended"'))
    tried: list[tuple[object, float, float]] = []

    def play(config: EmulationConfig, *arguments: object) -> Result:
        """A result that is the better, the nearer the share is to 0.3."""
        share = config.strategies[0].options["mix"]
        assert isinstance(share, float)
        tried.append((share, config.strategies[0].training.learning_rate, config.data.validation))  # type: ignore[union-attr]
        result = fleet.played(config, *arguments)
        (some,) = result.strategies
        devices = [replace(device, before=1 - abs(share - 0.3)) for device in some.devices]
        return replace(result, strategies=[replace(some, devices=devices)])

    monkeypatch.setattr(mixes, "SETS", {"mine": fleet.path})
    monkeypatch.setattr(mixes, "LABEL", "FedAvg")
    monkeypatch.setattr(mixes, "played", play)
    found = mixes.measure(out=tmp_path / "out", kept=tmp_path / "kept")
    assert tried == [(share, 0.5, 0.2) for share in (0.25, 0.5, 0.75)]
    scores = msgspec.convert(found, dict[str, mixes.Tried])
    assert scores["mine"].scores["0.25"] == pytest.approx((0.95, 0.9))
    assert mixes.best_share(scores) == 0.25


def test_blended_has_the_share_that_was_chosen_on_held_out_examples() -> None:
    kept = (RESULTS / "mixes.json").read_bytes()
    assert mixes.best_share(msgspec.json.decode(kept, type=dict[str, mixes.Tried])) == Blended().mix


def test_the_first_table_has_the_methods_that_ran_under_every_seed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = {"SETS": {"mine": fleet.path}, "TITLES": {"mine": "my data"}, "SEEDS": (1, 2)}
    for name, value in {**mine, "CELLS": fleet.out / "kept"}.items():
        monkeypatch.setattr(methods, name, value)
    fleet.measure(seeds=(1, 2), methods=("alone",))
    fleet.measure(seeds=(2,), methods=("FedAvg",))  # its rate by the file's seed
    about, _, head, _, *rows = methods.overview()
    assert head == "| method | my data | bytes |"
    assert "over 2 seeds: newcomer's download/before/after/after rounds away. " in about
    (alone,) = rows
    assert alone.startswith("| alone | -/") and "/90.0/- | " in alone


def test_gains_are_counted_on_training_alone_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    after = {"alone": 0.7, "FedAvg": 0.8, "FedOBP": 0.75, "FedPURIN": 0.6}
    played: list[EmulationConfig] = []

    def play(config: EmulationConfig, *_: object) -> Result:
        played.append(config)
        (some, *_rest) = SAMPLE.strategies
        value = after[config.strategies[0].title] + 0.01 * config.seed
        devices = [replace(device, before=0.1, after=value) for device in some.devices]
        return replace(SAMPLE, strategies=[replace(some, devices=devices)])

    monkeypatch.setattr(gains, "played", play)
    kept = tmp_path / "gains.json"
    ask: dict[str, Any] = {"splits": ("dir-0.1",), "out": tmp_path, "kept": kept}
    found = gains.measure(sizes=(200,), seeds=(1, 2), **ask)
    assert len(played) == 8
    data = played[0].data
    assert (data.examples, data.alpha, data.test_fraction) == (20 * 400, 0.1, 0.5)
    words = [figure.measured for figure in gains.figures(found)]
    assert words == ["+10.0 points, 2 seeds", "+5.0 points, 2 seeds", "-10.0 points, 2 seeds"]
    gains.measure(sizes=(20, 200), seeds=(1,), **ask)
    assert len(played) == 8 + 4
    ((path, svg),) = gains_figure.drawn(kept)
    assert path.name == "gains-dir-0.1.svg"
    assert all(f">{name}</text>" in svg for name in ("FedAvg", "FedOBP", "FedPURIN"))
    with pytest.raises(BadOption, match="--splits: found 'dir-3', expected one of"):
        gains.measure(splits=("dir-3",), out=tmp_path, kept=kept)
    kept.write_text(kept.read_text().replace('"mlp"', '"avgcnn"'))
    with pytest.raises(DataError, match=r"gains\.json: .* model\.name is 'avgcnn', expected 'mlp'"):
        gains.measure(sizes=(200,), **ask)
