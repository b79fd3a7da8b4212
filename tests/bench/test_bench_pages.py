"""The pages follow from the stored results; and what becomes of a missing result."""

import json
from pathlib import Path

from tools.bench import codec, frameworks, machine, models, models_page, pages, results_page
from tools.bench.harness import RESULTS


def test_the_pages_are_written_from_the_stored_results() -> None:
    stale = [path.name for path, text in pages.pages() if path.read_text() != text]
    assert not stale, "run: python -m tools.bench pages"


def test_without_an_own_result_the_others_are_not_compared() -> None:
    found = json.loads((RESULTS / "frameworks.json").read_text())
    found["frameworks"]["sedge"] = {"why": "sedge-emulate: exit status 2"}
    own, *others = frameworks.figures(found)
    assert own.measured == "sedge-emulate: exit status 2" and others
    assert not any("times as fast" in other.measured for other in others)


def test_a_whole_model_that_is_too_large_is_marked() -> None:
    found = json.loads((RESULTS / "codec.json").read_text())
    found["rows"] = [{**row, "bytes": 400_001} for row in found["rows"]]
    assert codec.figures(found)[-1].judged == "at most 400 kB: **missed**"


def test_a_result_that_is_missing_or_strange_is_left_out_with_its_command(tmp_path: Path) -> None:
    (tmp_path / "coordinator.json").write_bytes((RESULTS / "coordinator.json").read_bytes())
    (tmp_path / "codec.json").write_text("no JSON")
    (tmp_path / "flood.json").write_text('{"flood": [{"kind": "get"}]}')
    (tmp_path / "demo.json").write_text('{"format": 1}')
    page = results_page.page(tmp_path)
    assert "codec.json is not in this command's format; `python -m tools.bench codec`" in page
    assert "flood.json is not" in page and "demo.json is not" in page
    assert "- The machine: not measured yet; `python -m tools.bench machine`" in page
    assert "\n## Codec" not in page and "\n## Coordinator" in page


def test_the_machine_is_read_from_proc() -> None:
    cpuinfo = "processor : 0\nmodel name : Cortex-A76\nmodel name : other\n"
    assert machine.processor(cpuinfo) == "Cortex-A76"
    assert machine.processor("Hardware : BCM2835\n") == "unknown"
    assert machine.memory_bytes("MemTotal:  8388608 kB\n") == 8 * 2**30


def test_the_table_of_models_keeps_the_rows_that_are_not_measured(tmp_path: Path) -> None:
    page = tmp_path / "models.md"
    rows, seeds = models_page.read(models.PAGE)
    models_page.write(page, rows, seeds, models.ALL, 8)
    assert page.read_text() == models.PAGE.read_text()
    seeds["MLP", "1"] = models_page.line(("MLP", "1"), ["no: a | b", "", "", "", ""])
    models_page.write(page, rows, seeds, models.ALL, 8)
    assert models_page.read(page) == (rows, seeds)
