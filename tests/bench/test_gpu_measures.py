"""What the stages of ``make bench-gpu`` measure: limits, costs, fleets, the tests' report; and a run."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tests.fleet import failing
from tools.bench.emulator import EXAMPLE
from tools.bench.gpu import card, gpu_tests
from tools.bench.gpu.__main__ import main
from tools.bench.gpu.cells import Missing, Settings, Unusable, named
from tools.bench.gpu.costs import cost
from tools.bench.gpu.fleets import dressed, reason, text_of
from tools.bench.gpu.loop import Loop
from tools.bench.gpu.result import GpuResult, decoded
from tools.bench.gpu.sizes import FULL, SIZES, Fleet
from tools.bench.gpu.stages import CARD, STAGES
from tools.bench.gpu.subjects import built, problem, subject
from tools.bench.gpu.vectorised import Form, combined, single
from tools.bench.gpu_figures import gpu
from tools.bench.parts.environments import Unavailable, output

from sedge_emulate.config import load_emulation

TINY = SIZES["tiny"]


def elsewhere(value: float) -> Callable[..., torch.Tensor]:
    """A stand-in for torch.ones on a GPU."""

    def made(rows: int, columns: int, device: str) -> torch.Tensor:
        assert device == "cuda"
        return torch.full((rows, columns), value)

    return made


def memory(free: float) -> Callable[[], tuple[float, float]]:
    return lambda: (free * 2**30, 80 * 2**30)


def test_a_card_that_cannot_be_used_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    card.usable("cpu")
    expected = r"GPU that torch .* can use, or --device cpu: .* too old$"
    old = RuntimeError("The NVIDIA driver is too old\nPlease")
    with failing(torch, "ones", old), pytest.raises(Unusable, match=expected):
        card.usable("cuda")
    monkeypatch.setattr(torch, "ones", elsewhere(1.0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory(5.5))
    with pytest.raises(Unusable, match=r"5\.5 GiB of the card's memory is free, expected 6 GiB"):
        card.usable("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", memory(79.0))
    card.usable("cuda")
    monkeypatch.setattr(torch, "ones", elsewhere(2.0))
    with pytest.raises(Unusable, match="wrong product"):
        card.usable("cuda")


# Costs.


def test_the_cost_of_an_mlps_step() -> None:
    """784-200-10: products forward, for both weights' gradients, and for the hidden layer's."""
    found = cost(problem(subject("mlp", TINY, 1)))
    assert found.flops == 2 * (2 * (784 * 200 + 200 * 10) + 200 * 10)
    n, batch = 784 * 200 + 200 + 200 * 10 + 10, TINY.batch_size
    least = 24 * n / batch + 4 * 784
    assert least < found.bytes < least + 2 * 4 * (784 + 4 * 200 + 4 * 10 + 8)


def test_the_1d_network_has_some_60_000_parameters() -> None:
    model = built(subject("conv1d", TINY, 1))
    assert sum(parameter.numel() for parameter in model.parameters()) == 60_118


def test_the_loop_trains_every_device_from_the_same_model(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[float] = []
    step = torch.optim.SGD.step

    def noted(self: torch.optim.SGD) -> None:
        steps.append(float(self.param_groups[0]["params"][0].detach().sum()))
        step(self)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    Loop(subject("mlp", TINY, 2), "cpu", "fp32").train()
    each = TINY.epochs * TINY.rows // TINY.batch_size
    assert len(steps) == 2 * each
    assert steps[0] == steps[each] and len(set(steps)) == 2 * each - 1


@pytest.mark.fleet
def test_the_loop_and_the_limits_stay_on_the_card() -> None:
    """In a process of its own, as autograd asks once which devices there are."""
    words = [sys.executable, "-m", "tests.bench.gpu_on_a_card"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


# The matrix.


def test_the_matrix_has_every_choice_by_itself_first() -> None:
    settings = Settings("cuda", FULL, 100.0)
    first, rest = ([cell.setting for cell in cells(settings)] for cells in (single, combined))
    base = {"precision": "fp32", "launches": "no graphs", "convolutions": "grouped"}
    assert all(setting == setting | base | {"devices": 128} for setting in first[:4])
    everything = [*first, *rest]
    assert len({json.dumps(setting) for setting in everything}) == len(everything)
    for model, forms in (("avgcnn", 2), ("mlp", 1)):
        mine = [setting for setting in everything if setting["model"] == model]
        plain = [setting for setting in mine if setting["precision"] != "tf32"]
        assert len(plain) == 4 * 2 * 2 * forms, model
        assert {setting["devices"] for setting in plain} == {8, 32, 128, 512}


def test_a_form_says_what_it_is_made_of() -> None:
    assert Form().differences == 0
    assert Form("bf16", "graphs", "unfold").differences == 3
    assert (Form("tf32").rounding, Form("bf16").rounding) == ("fp32", "bf16")


# The fleets.


def test_the_fleets_files_are_valid_and_as_said(tmp_path: Path) -> None:
    path, text = tmp_path / "fleet.toml", EXAMPLE.read_text()
    path.write_text(text_of(dressed(text, SIZES[FULL].thousand, "fashion-mnist"), "cuda", 4))
    found, example = load_emulation(path), load_emulation(EXAMPLE)
    assert (found.workers, found.trainer.device) == (4, "cuda")
    for key in ("devices", "rounds", "training", "codec", "strategies", "data"):
        assert getattr(found, key) == getattr(example, key)
    path.write_text(text_of(dressed(text, Fleet(7, 0.5, 3), "digits"), "cpu", 0))
    found = load_emulation(path)
    assert (found.devices, found.rounds.num_rounds, found.data.dataset) == (7, 3, "digits")


def test_an_emulation_that_is_not_done_says_how_far_it_came(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "import time; print('round 1 of 2'); time.sleep(60)"
    with pytest.raises(Unavailable) as late:
        output("work", [sys.executable, "-c", code], log, 2.0)
    assert reason(late.value, log) == "work: not finished after 2 s: round 1 of 2"
    with pytest.raises(Unavailable) as failed:
        output("work", [sys.executable, "-c", "print('no data'); raise SystemExit(3)"], log, 60.0)
    assert reason(failed.value, log) == "work: exit status 3: no data"


# The tests' report.

REPORT = """<testsuites><testsuite>{}</testsuite></testsuites>"""
RIGHT = '<testcase name="right" time="1.5"/>'
SKIPPED = '<testcase name="skipped" time="0"><skipped message="no"/></testcase>'
WRONG = '<testcase name="wrong" time="2"><failure message="off by 3">long</failure></testcase>'


def test_the_tests_that_fail_are_named(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(REPORT.format(RIGHT + SKIPPED))
    assert gpu_tests.summed(path) == {"passed": 1, "failed": 0, "skipped": 1, "seconds": 1.5}
    path.write_text(REPORT.format(RIGHT + WRONG))
    with pytest.raises(Missing, match=r"failed: wrong \(off by 3\)") as failed:
        gpu_tests.summed(path)
    assert failed.value.figures["failed"] == 1
    path.write_text(REPORT.format(SKIPPED))
    with pytest.raises(Missing, match="none ran"):
        gpu_tests.summed(path)


def test_the_files_with_tests_for_a_gpu_are_found() -> None:
    files = [cell.setting["file"] for cell in gpu_tests.cells(Settings("cpu", "tiny", 1.0))]
    assert "tests/emulate/training/test_vectorised.py" in files


# The stages' plans.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_stage_plans_different_cells(device: str, size: str) -> None:
    for stage in STAGES:
        if stage is CARD and device == "cuda":
            continue  # it asks the card first
        module, _, function = stage.cells.partition(":")
        cells = getattr(import_module(module), function)(Settings(device, size, 0.0))
        names = [named(cell.setting) for cell in cells]
        assert names or size != "full", stage.name
        assert len(set(names)) == len(names), stage.name


# The command.


def run(capsys: pytest.CaptureFixture[str], out: Path, *stages: str) -> GpuResult:
    words = ["--device", "cpu", "--size", "tiny", "--out", str(out)]
    assert main([*words, *(f"--stage={name}" for name in stages)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert gpu(json.loads(line))
    return decoded(line)


def figures(result: GpuResult, stage: str) -> list[dict[str, float]]:
    (found,) = (each for each in result.stages if each.name == stage)
    assert all(row.figures or row.why or row.setting["what"] == "card" for row in found.rows)
    return [row.figures for row in found.rows if row.figures]


@pytest.mark.fleet
def test_the_command_runs_through(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run(capsys, tmp_path, "tests", "loop", "vectorised")
    assert [stage.name for stage in result.stages] == ["card", "tests", "loop", "vectorised"]
    assert len(figures(result, "card")) == 3
    for name, count in (("loop", 6), ("vectorised", 3)):
        found = figures(result, name)
        assert len(found) == count
        assert all(row["examples_s"] > 0 < row["of_bandwidth"] for row in found)


@pytest.mark.slow
def test_the_command_runs_whole_fleets(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run(capsys, tmp_path, "thousand", "fleet", "processes", "combined")
    assert [row["device_rounds"] > 0 for row in figures(result, "thousand")] == [True]
    assert figures(result, "fleet")[0]["workers"] == 1
    assert len(figures(result, "processes")) == 2
