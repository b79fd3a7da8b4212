"""The benchmarks that drive other processes: a small run arrives whole, and a failure is named."""

import os
import sys
from pathlib import Path

import pytest
from tools.bench import compression, disk, flood, frameworks, train_step
from tools.bench.harness import Figure
from tools.bench.parts import environments

from sedge_cloud.broker.child import find_mosquitto


def missed(figures: list[Figure]) -> list[str]:
    return [target for figure in figures for target, met in figure.met if not met]


@pytest.mark.fleet
@pytest.mark.skipif(
    find_mosquitto() is None and os.environ.get("CI") != "true", reason="needs Mosquitto"
)
def test_the_others_go_on_during_a_flood() -> None:
    with flood.Bench(2) as bench:
        for kind in flood.KINDS:
            row = bench.flood(kind, 300, 1.0)
            assert float(row["updates_s"]) > 0 and float(row["sent_s"]) > 200, kind
        assert bench.calm(1.5) > 0


@pytest.mark.fleet
def test_accuracy_beside_bytes_over_seeds_and_splits(tmp_path: Path) -> None:
    """What is there is not run again."""
    fleet = tmp_path / "fleet.toml"
    fleet.write_text(
        'devices = 2\n[data]\ndataset = "digits"\nalpha = 9.0\n[model]\nname = "mlp"\n'
        '[[strategies]]\nname = "fedavg"\nlabel = "default"\n'
    )
    found = compression.measure((1, 2), (0.5,), 2, tmp_path / "out", fleet)
    assert isinstance(found["cells"], list)
    assert [(cell["alpha"], cell["seed"]) for cell in found["cells"]] == [(0.5, 1), (0.5, 2)]
    assert all(0 < cell["before"] < 1 and cell["up"] > 0 < cell["down"] for cell in found["cells"])
    (result, _) = sorted((tmp_path / "out").glob("*/result.json"))
    assert "alpha = 0.5\n" in result.with_name("fleet.toml").read_text()
    first = result.stat().st_mtime_ns
    assert compression.measure((1, 2), (0.5,), 2, tmp_path / "out", fleet) == found
    assert result.stat().st_mtime_ns == first


@pytest.mark.slow
def test_a_training_step_is_timed_on_both_sides() -> None:
    figures = train_step.timed("mlp", 0.1)
    assert figures.keys() == {"onnxruntime", "executorch"}
    assert all(row["ratio"] == row["ms"] / row["eager_ms"] > 0 for row in figures.values())


def test_a_rounds_writes_are_counted_by_what_they_are_for(tmp_path: Path) -> None:
    row = disk.played(tmp_path, disk.WARM_UP + 1)
    assert row["written_by"].keys() == {"journal", "blobs", "downloads"}
    assert row["written_bytes"] == sum(row["written_by"].values()) > row["update_bytes"] > 0
    assert row["fsyncs_by"] == {"journal": 4, "blobs": 3, "downloads": 1, "folders": 6}
    assert missed(disk.figures(row)) == []
    assert missed(disk.figures({**row, "fsyncs": 22})) == ["at most 14.2 fsyncs"]


def test_the_first_round_of_a_pass_does_not_count() -> None:
    passes = [frameworks.Pass([9.0, 1.0, 1.0], 4.0), frameworks.Pass([7.0, 2.0, 1.0], 6.0)]
    row = frameworks.row(passes)
    assert (row["round_s"], row["first_s"], row["dispatch_ms"]) == (1.0, 8.0, 5.0)
    assert row["examples_s"] == 2560


@pytest.mark.parametrize(
    ("code", "limit_s", "said"),
    [
        ("print('why'); raise SystemExit(3)", 60.0, "work: exit status 3, see .*work.log"),
        ("import time; time.sleep(60)", 0.5, "work: not finished after 0 s"),
    ],
)
def test_what_fails_is_unavailable(tmp_path: Path, code: str, limit_s: float, said: str) -> None:
    log = tmp_path / "work.log"
    with pytest.raises(environments.Unavailable, match=said):
        environments.output("work", [sys.executable, "-c", code], log, limit_s)
    assert not log.exists() or log.read_text() == "why\n"
