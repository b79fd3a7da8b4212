"""The model is exported and its trainer checked once, and not again for the next emulation."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.emulate.workers.fleet_of_four import make_setup

from sedge_emulate.config import ModelConfig, TrainerConfig
from sedge_emulate.model import Sample
from sedge_emulate.training import choice
from sedge_emulate.training.checks import Wrong
from sedge_emulate.workers.preparation import prepare
from sedge_emulate.workers.setup import WorkerSetup, trainer_for
from sedge_protocol.wire.bundle import load

SAMPLE = Sample(np.random.default_rng(0).standard_normal((8, 6), np.float32), "")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> WorkerSetup:
    """A fleet whose model has been exported and whose trainer checked, both to its folder "first"."""
    folder = tmp_path_factory.mktemp("prepared")
    made = make_setup(folder, devices=1)
    setup = replace(made, trainer=TrainerConfig("autograd"), cache=folder / "cache")
    assert not prepare(setup, SAMPLE, 0, [(0.0, folder / "first")]).from_cache
    return setup


@pytest.fixture
def setup(prepared: WorkerSetup, tmp_path: Path) -> WorkerSetup:
    """The same with a cache of its own."""
    assert prepared.cache is not None
    shutil.copytree(prepared.cache, tmp_path / "cache")
    return replace(prepared, cache=tmp_path / "cache")


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def refused(*_: object) -> None:
    raise Wrong("checked again")


def test_what_was_exported_and_checked_once_is_taken_from_the_cache(
    setup: WorkerSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = (0.0, tmp_path / "second")
    monkeypatch.setattr("sedge_emulate.training.checks.check", refused)
    again = prepare(setup, SAMPLE, 0, [second])
    assert (again.from_cache, again.notes) == (True, [])
    assert files(setup.bundle.with_name("first")) == files(second[1])
    bundle, _ = load(second[1])
    assert trainer_for(setup, bundle, SAMPLE.rows, print).name == "autograd"  # as a worker does
    for other, seed in ((setup, 1), (replace(setup, trainer=TrainerConfig("vectorised")), 0)):
        with pytest.raises(Wrong, match="checked again"):
            prepare(other, SAMPLE, seed, [second])
    with pytest.raises(Wrong, match="checked again"):
        prepare(setup, SAMPLE, 0, [second], fresh=True)


def test_a_model_of_another_recipe_is_exported_anew(setup: WorkerSetup, tmp_path: Path) -> None:
    form = [(0.0, tmp_path / "bundle")]
    smoothed = replace(setup.model, config=ModelConfig(batch_size=8, label_smoothing=0.1))
    assert not prepare(replace(setup, model=smoothed), SAMPLE, 0, form).from_cache
    assert not prepare(setup, replace(SAMPLE, rows=SAMPLE.rows + 1), 0, form).from_cache


LATER = """
from torch import nn

class Net(nn.Linear):
    def forward(self, x):
        from helpers.ops import scaled
        return scaled(super().forward(x))

def made():
    return Net(6, 3)
"""


def test_what_a_model_imports_while_it_computes_is_not_missed(
    setup: WorkerSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net_that_imports.py").write_text(LATER)
    (tmp_path / "helpers").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    own = replace(setup.model, factory="net_that_imports:made", base=tmp_path)
    setup, found = replace(setup, model=own), []
    for scale in ("2", "1000"):  # pyc files tell sizes apart, within the same second
        for name in ("net_that_imports", "helpers", "helpers.ops"):
            sys.modules.pop(name, None)
        (tmp_path / "helpers/ops.py").write_text(f"def scaled(x):\n    return {scale} * x\n")
        made = prepare(setup, SAMPLE, 0, [(0.0, tmp_path / scale)])
        assert not made.from_cache
        assert "its code changes when it runs" in made.notes[0]
        found.append(files(tmp_path / scale))
    assert found[0] != found[1]


def test_without_a_folder_nothing_is_kept(setup: WorkerSetup, tmp_path: Path) -> None:
    found = prepare(replace(setup, cache=None), SAMPLE, 0, [(0.0, tmp_path / "bundle")])
    (line,) = found.notes
    assert not found.from_cache
    assert line.startswith("cache: not used: found neither $XDG_CACHE_HOME")


def test_damaged_entries_are_made_again(setup: WorkerSetup, tmp_path: Path) -> None:
    form = [(0.0, tmp_path / "bundle")]
    entries = list((tmp_path / "cache").iterdir())
    assert len(entries) == 2
    for entry in entries:
        entry.write_bytes(entry.read_bytes()[:-1] + b"?")
    found = prepare(setup, SAMPLE, 0, form)
    assert not found.from_cache
    assert len(found.notes) == 2 and "is damaged" in found.notes[0]
    assert prepare(setup, SAMPLE, 0, form).from_cache


def test_a_gpus_checks_are_left_to_its_workers(
    setup: WorkerSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "open_trainer", refused)
    card = replace(setup, trainer=TrainerConfig(device="cuda"))
    assert prepare(card, SAMPLE, 0, [(0.0, tmp_path / "bundle")]).from_cache
