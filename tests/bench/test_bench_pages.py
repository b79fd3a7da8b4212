"""RESULTS.md and the README's tables: from results to words, and what becomes of a missing result."""

import json
from pathlib import Path

import pytest
from tools.bench import codec, demo, machine, models, models_page, pages, readme, results_page

from sedge_emulate.result import read_json

SAMPLE = Path(__file__).parents[1] / "vectors" / "result_format_1.json"
FLOOD = {
    "flood": [{"kind": "get", "share": 0.79, "cores": 0.4, "repeated": 3, "lines": 31}],
    "rate": 3000.0,
    "target": {"share": 0.8, "lines": 30},
}
OUTAGE = {
    "rows": [{"what": "one device cut off: back after", "measured": 9.8, "unit": "s", "most": 10.0}]
}
CODEC = {
    "n": 500_000,
    "rounds": 2,
    "rows": [
        {"what": what, "fraction": fraction, "values": values, "device": 0, "round": number}
        | {"bytes": number * 100_000, "encode_ms": 12.0, "decode_ms": 3.0}
        for what, fraction, values in codec.CODED
        for number in (1, 2)
    ]
    + [
        {
            "what": "snapshot",
            "fraction": 0.05,
            "values": "bf16",
            "round": 40,
            "bytes": 500_000,
            "smaller": 4.0,
        }
    ],
}
FRAMEWORKS = {
    "frameworks": {
        "sedge": {"round_s": 0.8, "first_s": 1.0, "examples_s": 3200, "dispatch_ms": 4.0},
        "flower": {
            "round_s": 2.0, "first_s": 9.0, "examples_s": 1280, "dispatch_ms": 160.0,
            "versions": {"flwr": "1.41.0"},
        },
        "fedjax": {"why": "pip install fedjax jax jaxlib: exit status 1, see fedjax.log"},
    }
}  # fmt: skip
UPDATES = {"delta": "rows", "share": 0.5}
COORDINATOR = {
    "rows": [
        {**UPDATES, "durable": True, "updates_per_s": 190},
        {**UPDATES, "durable": False, "updates_per_s": 260},
    ]
}
TRAINING = {
    "training": {
        "avgcnn": {
            "trainer": "autograd", "rate": 6000.0, "ratio": 2.1, "per_core": 1.9, "target": 2.0,
        },
        "beside": {"fashion_mnist.toml": {"autograd": 1.0, "vectorised": 0.3, "onnx": 1.25}},
    }
}  # fmt: skip
EMULATOR = {
    "emulator": [
        {
            "devices": 10_000, "cohort": 100, "cost_ms": 4.5, "device_rounds_per_s": 12.0,
            "peak_rss_bytes": 2_000_000_000,
        }
    ],
    "example": {
        "device_rounds": 3000, "wall_s": 100.2, "device_rounds_per_s": 29.9, "overhead": 0.081,
        "peak_rss_bytes": 2_600_000_000,
    },
}  # fmt: skip
CELL = {
    "setting": "up 4 %", "alpha": 0.1, "before_worst": 0.5, "after": 0.9, "after_worst": 0.7,
    "of_dense": 0.01,
}  # fmt: skip
COMPRESSION = {
    "rounds": 40,
    "cells": [
        {**CELL, "seed": 42, "before": 0.8, "up": 10_000, "down": 20_000, "newcomer_down": 320_000},
        {**CELL, "seed": 43, "before": 0.9, "up": 12_000, "down": 24_000, "newcomer_down": 340_000},
    ],
}
FOUND = {
    "compression": COMPRESSION,
    "flood": FLOOD, "codec": CODEC, "frameworks": FRAMEWORKS, "coordinator": COORDINATOR,
    "training": TRAINING, "emulator": EMULATOR, "outage": OUTAGE,
}  # fmt: skip


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for name, found in FOUND.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(found))
    return tmp_path


def lines(folder: Path, start: str) -> list[str]:
    return [line for line in results_page.page(folder).splitlines() if line.startswith(start)]


def test_the_pages_are_written_from_the_stored_results() -> None:
    stale = [path.name for path, text in pages.pages() if path.read_text() != text]
    assert not stale, "run: python -m tools.bench pages"


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("| up 4 %, Dir(0.1), 40 rounds, seed 42, 43", ["33.0 kB", "100 times", "(11.0 kB up", "330"]),
        ("| up 4 %, Dir(0.1)", ["85.0 % before (worst tenth 50.0 %)", "90.0 % after training (worst tent"]),
        ("| honest devices' rate", ["3,000 GETs", "3 messages are", "0.8: **missed**", "lines: **m"]),
        ("| one device cut off", ["9.8 s", "at most 10: met"]),
        ("| update of the largest 12 % in bf16", ["150 kB, 13.3 times", "12.0 ms", "10 ms: **missed**"]),
        ("| broadcast of the largest 5 % in bf16", ["13.3 times", "decoded in 3.0 ms |  |"]),
        ("| the whole model for a newcomer after 40", ["5 % in bf16", "500 kB", "400 kB: **missed**"]),
        ("| updates of the largest 0.5", ["190 a second (260", "200 a second: **missed**"]),
        ("| devices trained on one host, avgcnn", ["2.10 times", "times: met"]),
        ("| training of examples/fashion_mnist.toml by other", ["vectorised 0.30, onnx 1.25"]),
        ("| emulated devices, 10,000", ["4.5 ms", "2.00 GB", "5 ms: met"]),
        ("| examples/thousand.toml, 3,000", ["100 s", "8.1%", "5% besides training: **missed**"]),
        ("| ten devices of 256 images, one round of FedAvg by sedge", ["0.80 s", "5 ms: met"]),
        ("| ten devices of 256 images, one round of FedAvg by flower (flwr", ["is 2.5 times as fast"]),
        ("| ten devices of 256 images, one round of FedAvg by fedjax", ["exit status 1"]),
    ],
)  # fmt: skip
def test_a_figure_says_what_was_measured_and_whether_its_target_is_met(
    results: Path, start: str, expected: list[str]
) -> None:
    (line,) = lines(results, start)
    assert all(words in line for words in expected), line


def test_bytes_are_told_both_ways() -> None:
    """Dense is 8 MB both ways; see the sample in tests/vectors for the rest."""
    first, ways, new, update, _ = demo.figures(json.loads(SAMPLE.read_text()))
    assert first.what.startswith("a device and round of local after its first, both ways")
    assert first.measured == "3.03 MB, 3 times smaller"
    assert (ways.measured, new.measured) == ("30.0 kB and 3.00 MB", "20.0 kB and 2.00 MB")
    assert update.what.startswith("one update of local")
    older = json.loads(SAMPLE.with_name("result_format_1_first.json").read_text())
    assert [figure.what[:10] for figure in demo.figures(older)] == ["one update", "what leave"]


def test_the_table_of_the_demo_has_both_accuracies_and_bytes_both_ways() -> None:
    about, _, *table = readme.demo(read_json(SAMPLE))
    (row,) = (line for line in table if line.startswith("| fedobp "))
    assert row == "| fedobp | 89.9 % / 90.0 % | 94.2 % / 94.2 % | 80.0 % | 3.03 MB | 2.02 MB |"
    assert {line.count("|") for line in table} == {7}
    assert "Every device has at least 300 test examples" in about


def test_without_an_own_result_the_others_are_not_compared(results: Path) -> None:
    rows = {**FRAMEWORKS["frameworks"], "sedge": {"why": "sedge-emulate: exit status 2"}}
    (results / "frameworks.json").write_text(json.dumps({"frameworks": rows}))
    (line,) = lines(results, "| ten devices of 256 images, one round of FedAvg by flower")
    assert "times as fast" not in line


def test_a_result_that_is_missing_or_strange_is_left_out_with_its_command(results: Path) -> None:
    (results / "codec.json").write_text("no JSON")
    (results / "flood.json").write_text('{"flood": [{"kind": "get"}]}')
    (results / "demo.json").write_text('{"format": 1}')
    left = "\n".join(lines(results, "- "))
    assert "codec.json is not what this command writes now; `python -m tools.bench codec`" in left
    assert "flood.json is not" in left and "demo.json is not" in left
    assert "not measured yet; `python -m tools.bench disk`" in left
    assert not lines(results, "## Codec") and lines(results, "## Coordinator")


def test_the_machine_is_named(results: Path) -> None:
    assert "- The machine: not measured yet; `python -m tools.bench machine`" in (
        results_page.page(results)
    )
    found = {
        "cpu": machine.processor("processor : 0\nmodel name : Cortex-A76\nmodel name : other\n"),
        "cores": 4,
        "memory_gib": round(machine.memory_bytes("MemTotal:  8388608 kB\n") / 2**30),
        "platform": "Linux", "python": "3.11.2", "versions": {"numpy": "2.4.6"},
    }  # fmt: skip
    (results / "machine.json").write_text(json.dumps(found))
    assert "Machine: Cortex-A76, 4 cores, 8 GiB, Linux, Python 3.11.2; numpy 2.4.6." in (
        results_page.page(results)
    )
    assert machine.processor("Hardware : BCM2835\n") == "unknown"


def test_the_table_of_models_keeps_the_rows_that_are_not_measured(tmp_path: Path) -> None:
    page = tmp_path / "models.md"
    rows, seeds = models_page.read(models.PAGE)
    models_page.write(page, rows, seeds, models.ALL, 8)
    assert page.read_text() == models.PAGE.read_text()
    seeds["MLP", "1"] = models_page.line(("MLP", "1"), ["no: a | b", "", "", "", ""])
    models_page.write(page, rows, seeds, models.ALL, 8)
    assert models_page.read(page) == (rows, seeds)
