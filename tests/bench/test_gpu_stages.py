"""``make bench-gpu``: whatever becomes of a stage, the others' results and a named reason are there."""

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from tests.bench.gpu_stages import stage
from tests.fleet import is_alive
from tools.bench.gpu.__main__ import Run, main
from tools.bench.gpu.cells import Row
from tools.bench.gpu.goals import Goal, judged
from tools.bench.gpu.result import GpuResult, Journal, StageResult, decoded, encoded, save
from tools.bench.gpu.stages import STAGES, TOTAL_S, Stage
from tools.bench.gpu_figures import gpu
from tools.bench.parts.real_fleet import wait_until

pytestmark = pytest.mark.fleet  # a process or two for each test

CARD = stage("card")
Ran = Callable[..., tuple[int, GpuResult, list[str]]]


@pytest.fixture
def ran(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ran:
    """Runs stages on the CPU: exit status, result, and all lines but the last."""
    monkeypatch.setenv("SEDGE_TEST_FOLDER", str(tmp_path))

    def run(*stages: Stage, budget: float = 600.0) -> tuple[int, GpuResult, list[str]]:
        saved = tmp_path / "gpu.json"
        status = Run(stages, budget, Journal(tmp_path)).run(None, "tiny", saved)
        *lines, last = capsys.readouterr().out.splitlines()
        assert saved.read_text() == last + "\n"
        return status, decoded(last), lines

    return run


def whys(result: GpuResult, name: str) -> list[str]:
    (found,) = (each for each in result.stages if each.name == name)
    return [row.why for row in found.rows]


def test_a_lost_stage_loses_itself_alone(ran: Ran, tmp_path: Path) -> None:
    names = ("raises", "crashes", "exits", "loop")
    status, result, lines = ran(CARD, *map(stage, names))
    assert status == 1
    assert [each.name for each in result.stages] == ["card", *names]
    assert whys(result, "raises") == ["MemoryError: CUDA out of memory", "half", ""]
    assert whys(result, "crashes") == ["", "ended by SIGSEGV", "ended by SIGSEGV"]
    assert [each.why for each in result.stages] == [
        "", "", "ended by SIGSEGV", "exit status 3: the driver says no", "",
    ]  # fmt: skip
    (row,) = result.stages[-1].rows
    assert row.figures["of_peak"] == 0.5 and row.figures["of_bandwidth"] == 0.25
    assert "exits failed: exit status 3: the driver says no" in lines
    assert "loop        avgcnn, fp32: 100 examples/s, 50.0 % of the matrix peak" in "\n".join(lines)
    (journal,) = tmp_path.glob("*.jsonl")
    assert f"rows are saved in {journal}" in lines
    *kept, last = journal.read_text().splitlines()
    assert decoded(last) == result
    assert sum(len(each.rows) for each in result.stages) == len(kept)
    assert {msgspec.json.decode(line)["stage"] for line in kept} == {"card", *names} - {"exits"}


def test_a_stage_that_hangs_ends_with_all_that_it_has_started(ran: Ran, tmp_path: Path) -> None:
    _, result, _ = ran(stage("card", 5.0), stage("hangs", 3.0), stage("loop"), budget=68.0)
    first, *lost = whys(result, "hangs")
    assert first == "" and all("not finished after" in why for why in lost) and len(lost) == 2
    assert whys(result, "loop") == [""]
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), 10, "its child ends")


def test_what_a_budget_has_no_time_for_says_so(ran: Ran) -> None:
    status, result, _ = ran(stage("card", 3.0), stage("slow", 1.0), budget=4.0)
    assert whys(result, "slow") == ["", "no time left"]
    assert status == 0


def test_an_interrupted_run_keeps_its_rows(ran: Ran) -> None:
    status, result, lines = ran(CARD, stage("interrupts"), stage("loop"))
    assert status == 130
    assert [each.why for each in result.stages] == ["", "interrupted", "interrupted"]
    assert whys(result, "interrupts") == [""]
    assert any("all rows are in" in line for line in lines)


def test_without_a_gpu_the_cpu_does_it_loudly_or_not_at_all(
    ran: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, result, lines = ran(CARD, stage("loop"))
    assert "no GPU here: --device cuda: expected a GPU" in lines
    assert sum("CPU ONLY" in line for line in lines) == 2
    assert result.device == "cpu" and result.remark.startswith("CPU only")
    assert {goal.met for goal in result.goals} == {None}
    assert Run([CARD], 60.0, Journal(tmp_path)).run("cuda", None, None) == 2
    out, err = capsys.readouterr()
    assert err == "--device cuda: expected a GPU\n" and '"gpu"' not in out


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("--budget=0", "--budget 0, expected more than 0 seconds"),
        ("--stage=lop", "invalid choice: 'lop'"),
        ("--device=tpu", "invalid choice: 'tpu'"),
    ],
)
def test_bad_options_are_refused(word: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([word])
    assert said in capsys.readouterr().err


def test_all_stages_together_take_less_than_six_minutes() -> None:
    assert TOTAL_S < 360
    assert len({each.name for each in STAGES}) == len(STAGES)


def test_a_result_of_a_cpu_never_replaces_one_of_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    cpu = GpuResult("cpu", "small", "", 1.0, [], [])
    cuda = GpuResult("cuda", "full", "", 1.0, [], [])
    assert save(cpu, path) and save(cuda, path)
    assert not save(cpu, path)
    assert decoded(path.read_bytes()) == cuda


# The goals.

_LOOP = Row({"model": "avgcnn", "precision": "default"}, {"examples_s": 100.0})
_CNN: dict[str, str | int] = {"model": "avgcnn", "precision": "fp32"}
_RESNET: dict[str, str | int] = {"model": "resnet8", "precision": "fp32"}
_ALL: dict[str, str | int] = {"devices": 10_000, "a round": 10_000}


def test_a_goal_is_met_by_the_best_right_figure_of_both_stages() -> None:
    rows = [Row(_CNN, {"examples_s": 1900.0}), Row(_CNN, {"examples_s": 9000.0}, "wrong: off")]
    more = [Row(_CNN, {"examples_s": 2000.0}), Row(_RESNET, {"of_peak": 0.24})]
    cnn, resnet, *_ = judged({"loop": [_LOOP], "vectorised": rows, "combined": more}, "")
    assert (cnn.measured, cnn.met) == (20.0, True) and "met, 20" in str(cnn)
    assert (resnet.measured, resnet.met) == (24.0, False) and "NOT MET, 24" in str(resnet)


def test_a_goal_without_a_figure_names_the_reason() -> None:
    lost = [Row(_ALL, why="not finished after 40 s")]
    cnn, _, fleet = judged({"fleet": lost}, "")
    assert cnn.met is None and cnn.why == "vectorised: nothing was measured"
    assert fleet.met is None and fleet.why == "fleet: not finished after 40 s"
    done = [Row(_ALL, {"command_s": 200.0})]
    *_, fleet = judged({"fleet": done}, "")
    assert fleet.met and fleet.measured == 200.0
    assert all(goal.met is None for goal in judged({"fleet": done}, "small sizes"))


# The page.


def test_the_page_reads_the_line() -> None:
    form: dict[str, str | int] = {"devices": 128, "launches": "graphs", "convolutions": "unfold"}
    slow = Row(_CNN | form, {"examples_s": 1000.0})
    best = Row(_CNN | form | {"devices": 512}, {"examples_s": 2000.0, "of_peak": 0.2})
    wrong = Row(_CNN | form | {"devices": 8}, {"examples_s": 9000.0}, "wrong: fc is off")
    card = Row({"what": "card", "name": "H100", "driver": "570"}, {"memory_bytes": 80 * 2.0**30})
    stages = [
        StageResult("card", "the card", 1.0, [card, Row({"what": "copy"}, {"bytes_s": 3e12})]),
        StageResult("tests", "the tests", 1.0, [Row({"file": "a"}, {"passed": 3}), Row({}, why="x")]),
        StageResult("loop", "eager", 1.0, [_LOOP]),
        StageResult("vectorised", "many devices", 1.0, [slow]),
        StageResult("combined", "many devices", 1.0, [best, wrong]),
        StageResult("fleet", "a fleet", 1.0, [], "ended by SIGSEGV"),
        StageResult("processes", "several", 1.0, [Row({"model": "mlp"}, why="no room")]),
    ]  # fmt: skip
    met = Goal("vectorised", "a round", "at least 2 times", 2.5, True)
    found = json.loads(encoded(GpuResult("cuda", "full", "", 7.0, stages, [met])))
    page = {figure.what: figure for figure in gpu(found)}
    assert page["where"].measured == "H100; driver 570; 80.0 GiB; copy 3e+03 GB/s"
    assert page["the tests, in 2 files"].measured == "3 passed; 0 failed; x"
    assert page["eager, avgcnn, default"].measured == "100 examples/s"
    rates = page["many devices, avgcnn, fp32"].measured
    best_first = "2,000 examples/s, 20.0 % of the matrix peak (512 devices, graphs, unfold)"
    assert rates.startswith(best_first)
    assert "; 1,000 (128 devices" in rates and "9,000, wrong: fc is off (8 devices" in rates
    assert page["a fleet"].measured == "not measured: ended by SIGSEGV"
    assert page["several: mlp"].measured == "no room"
    assert page["goal: a round"].met == (("at least 2 times", True),)
