"""Which backend is taken, and that it stays the same one."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from tests.emulate import trainings
from tests.emulate.trainings import PULLED, problem

from sedge_edge.training.trainer import Trained
from sedge_emulate.training import choice
from sedge_emulate.training.checks import Wrong
from sedge_emulate.training.choice import NAMES, fastest, open_trainer
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import FleetTrainer, Precision
from sedge_protocol.errors import ConfigError, StorageError

OF = problem("mlp")


def opened(of: Problem = OF, name: str = "auto", cache: Path | None = None,
           precision: Precision = "fp32") -> FleetTrainer:  # fmt: skip
    return open_trainer(
        of.module, of.loss, of.classifies, of.batch_size, of.input,
        name=name, cache=cache, precision=precision,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_SECONDS", 0.1)


def rates(monkeypatch: pytest.MonkeyPatch, **found: float) -> list[list[str]]:
    """Let candidates have these rates; gives the lists of candidates that were measured."""
    measured: list[list[str]] = []

    def measure(trainers: Sequence[FleetTrainer], _: Problem, on_cpu: bool) -> dict[str, float]:
        measured.append([trainer.name for trainer in trainers])
        return {trainer.name: found.get(trainer.name, 1.0) for trainer in trainers}

    monkeypatch.setattr(choice, "measure", measure)
    return measured


@pytest.mark.parametrize(
    ("found", "name"),
    [
        ({"a": 10.0, "b": 10.9, "c": 9.0}, "a"),
        ({"a": 10.0, "b": 11.1, "c": 12.0}, "b"),
        ({"a": 10.0, "b": 10.9, "c": 11.1}, "c"),
        ({"a": 1.0}, "a"),
    ],
)
def test_a_tenth_faster_than_the_best_before(found: dict[str, float], name: str) -> None:
    assert fastest(found) == name


def test_the_fastest_is_found_and_trains() -> None:
    trainer = opened()
    assert trainer.name in NAMES
    trainings.check_like_torch(trainer, OF, PULLED, 2e-4)


def test_real_rates() -> None:
    found = [choice._open(name, choice._Site(OF, "fp32", torch.device("cpu"), None), None)
             for name in ("sequential", "stacked")]  # fmt: skip
    measured = choice.measure(found, OF)
    assert list(measured) == ["sequential", "stacked"]
    assert min(measured.values()) > 0
    assert min(choice.measure(found[:1], OF, on_cpu=False).values()) > 0


def test_candidates_are_those_that_can(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = rates(monkeypatch)
    opened()
    opened(problem("wide_cnn"))
    opened(problem("batchnorm"))
    assert measured == [
        ["sequential", "stacked", "vectorised", "autograd"],
        ["sequential", "winograd", "vectorised", "autograd"],
        ["sequential", "vectorised", "autograd"],
    ]


@pytest.mark.parametrize("name", ["sequential", "stacked", "vectorised", "autograd"])
def test_a_name_is_taken_at_its_word(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = rates(monkeypatch)
    assert opened(name=name).name == name
    assert measured == []


def test_names_that_are_none() -> None:
    with pytest.raises(ConfigError, match="trainer: found 'fast', expected one of auto"):
        opened(name="fast")
    with pytest.raises(ConfigError, match=r"found 'winograd'.* no convolution"):
        opened(name="winograd")
    with pytest.raises(ConfigError, match="there is no bundle"):
        opened(name="onnx")
    with pytest.raises(ConfigError, match="device: found 'abacus'"):
        open_trainer(OF.module, OF.loss, True, 8, OF.input, device="abacus")


def test_a_choice_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    measured = rates(monkeypatch, stacked=5.0)
    folder = tmp_path / "kept"
    assert opened(cache=folder).name == "stacked"
    rates(monkeypatch, autograd=5.0)
    assert opened(cache=folder).name == "stacked"
    assert len(measured) == 1
    (path,) = folder.iterdir()
    kept = json.loads(path.read_text())
    assert kept["name"] == "stacked"
    assert kept["examples_per_second"]["stacked"] == 5
    assert kept["for"]["layout"] == OF.network.layout.hash.hex()


def test_what_a_choice_depends_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates(monkeypatch, stacked=5.0)
    opened(cache=tmp_path)
    opened(problem("mlp", batch_size=4), cache=tmp_path)
    opened(problem("cnn"), cache=tmp_path)
    opened(cache=tmp_path, precision="bf16")
    assert len(list(tmp_path.iterdir())) == 4


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"name": "fast", "width": 1}',
                                    '{"name": "stacked", "width": "8"}'])  # fmt: skip
def test_a_damaged_file_is_replaced(
    damage: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rates(monkeypatch, stacked=5.0)
    opened(cache=tmp_path)
    (path,) = tmp_path.iterdir()
    path.write_text(damage)
    assert opened(cache=tmp_path).name == "stacked"
    assert json.loads(path.read_text())["name"] == "stacked"
    assert list(tmp_path.iterdir()) == [path]


def test_the_first_of_several_processes_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure(trainers: Sequence[FleetTrainer], _: Problem, on_cpu: bool) -> dict[str, float]:
        rates(monkeypatch, vectorised=9.0)
        opened(cache=tmp_path)  # another process chooses while this one still measures
        return {trainer.name: 1.0 for trainer in trainers}

    monkeypatch.setattr(choice, "measure", measure)
    trainer = opened(cache=tmp_path)
    assert trainer.name == "vectorised"
    assert opened(cache=tmp_path).width == trainer.width
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates(monkeypatch)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        opened(cache=tmp_path / "file" / "folder")


def broken(monkeypatch: pytest.MonkeyPatch, names: set[str]) -> None:
    """Let these backends lose the gradient of a layer, after 1,000 tests were green."""
    whole = choice._open

    def opening(name: str, site: choice._Site, width: int | None) -> FleetTrainer:
        trainer = whole(name, site, width)
        if name in names:
            right = trainer.train

            def train(tasks):  # type: ignore[no-untyped-def]
                ends = right(tasks)
                for task, end in zip(tasks, ends, strict=True):
                    assert isinstance(end, Trained)
                    end.theta[:99] = task.theta[:99]
                return ends

            monkeypatch.setattr(trainer, "train", train)
        return trainer

    monkeypatch.setattr(choice, "_open", opening)


def test_a_wrong_one_is_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rates(monkeypatch, sequential=2.0, stacked=9.0)
    broken(monkeypatch, {"stacked"})
    with caplog.at_level(logging.ERROR):
        assert opened().name == "sequential"
    assert "backend stacked is out: stacked: 1.weight is off by" in caplog.text


def test_no_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rates(monkeypatch)
    broken(monkeypatch, set(NAMES))
    with pytest.raises(Wrong):
        opened()
    with pytest.raises(Wrong, match="sequential"):
        opened(name="sequential")


def test_a_backend_that_breaks_is_no_candidate() -> None:
    trainer = opened(name="sequential")
    other = opened(name="autograd")

    def train(tasks: object) -> list[Trained]:
        raise RuntimeError("no kernel")

    trainer.train = train  # type: ignore[method-assign,assignment]
    assert list(choice.measure([trainer, other], OF)) == ["autograd"]


def test_no_backend_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(trainers: Sequence[FleetTrainer], _: Problem, on_cpu: bool) -> dict[str, float]:
        return {}

    monkeypatch.setattr(choice, "measure", nothing)
    with pytest.raises(Wrong, match="no backend trains this model on cpu"):
        opened()


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["mlp", "avgcnn", "batchnorm"])
def test_on_a_gpu(model: str) -> None:
    of = problem(model)
    trainer = open_trainer(of.module, of.loss, True, of.batch_size, of.input, device="cuda")
    trainings.check_like_torch(trainer, of, PULLED, 1e-3)
    with pytest.raises(ConfigError):
        open_trainer(of.module, of.loss, True, 8, of.input, device="cuda", name="winograd")
