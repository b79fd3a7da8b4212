"""Everything that trains runs on a card alone; what is planted on the host is found.

Run by test_on_a_card, in a process of its own (see ``card``).
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from tests.emulate.training import trainings
from tests.emulate.training.card import CARD, Host, Live, card
from tests.emulate.training.trainings import BATCH, PLAIN, PULLED, problem
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION, Objective, cross_entropy
from sedge_edge.training.steppers.model import Differentiated, ModelInTraining
from sedge_edge.training.trainer import SecondModel, Trained, TrainRequest
from sedge_emulate.training import vectorised as trainer_module
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.blocks import Block, Ends
from sedge_emulate.training.fitting import most_devices, place_bytes
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Convolutions, FleetTrainer, Task
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_export.models import avgcnn, resnet8
from sedge_export.models import mlp as large_mlp
from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics

TRAININGS = {
    "plain": PLAIN,
    "pulled": PULLED,
    "nesterov": Training(
        momentum=0.9, nesterov=True, weight_decay=0.01, clip_norm=1.0, last_batch="fill"
    ),
    "adam": Training(
        optimizer="adam", beta1=0.8, beta2=0.99, epsilon=1e-6, weight_decay=0.01, clip_norm=1.0,
        last_batch="drop",
    ),
    "adamw": Training(optimizer="adamw", weight_decay=0.01, warmup_steps=2, end_factor=0.1),
    "mean": Training(local_epochs=2, average=0.5),
    "kept": Training(optimizer="adam", optimizer_state="keep", freeze=("1.weight",)),
}  # fmt: skip


def vectorised(of: TrainingProblem, **options: Any) -> VectorisedTrainer:
    return VectorisedTrainer(of, options.pop("precision", "fp32"), CARD, 4, **options)


def one_by_one(of: TrainingProblem, **options: Any) -> AutogradTrainer:
    return AutogradTrainer(of, options.pop("precision", "fp32"), CARD, **options)


Opened = Callable[..., FleetTrainer]
TRAINERS: dict[str, Opened] = {"vectorised": vectorised, "autograd": one_by_one}


def dropping() -> TrainingProblem:
    """A model whose steps take random numbers."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.Dropout(0.5), nn.Linear(6, 5))
    return TrainingProblem(module, CLASSIFICATION, BATCH, TensorSpec("float32", (3, 4)))


def ready(name: str) -> TrainingProblem:
    """A problem, with all of it that is looked at before any training."""
    of = dropping() if name == "dropout" else problem(name)
    assert of.network.layout.size
    assert bool(of.noise) is (name == "dropout")
    return of


def tasks_for(of: TrainingProblem, training: Training) -> list[Task]:
    """A plain training, and one with all that an order asks for: anchor, correction, gradient."""
    plain, full = trainings.devices(of, training, (BATCH + 1, 3))
    (correction,) = trainings.corrections(of, 1)
    asked = {"anchor": full.request.theta, "correction": correction, "gradient": True}
    return [plain, trainings.with_(full, **asked)]


def trains(trainer: FleetTrainer, of: TrainingProblem, training: Training) -> None:
    for task in tasks_for(of, training):
        (end,) = trainer.train([task])
        assert isinstance(end, Trained), end
        assert (end.gradient is not None) is task.request.gradient
        assert (end.moments is not None) is training.keeps_state
        if training.keeps_state:
            (end,) = trainer.train([trainings.with_(task, moments=end.moments)])
            assert isinstance(end, Trained), end


def test_no_option_of_a_training_and_no_part_of_a_task_is_left_out() -> None:
    plain = Training()
    for name in structs.asdict(plain):
        assert any(getattr(t, name) != getattr(plain, name) for t in TRAININGS.values()), name
    _, full = tasks_for(ready("mlp"), PLAIN)
    asked = vars(full.request).items()
    given = {name for name, value in asked if value is not None and value is not False}
    # The tests below give the first two; guidance is of bundles with a guided loss, not tried here.
    elsewhere = {"moments", "second", "guidance"}
    assert given | elsewhere == {field.name for field in fields(TrainRequest)}


def no_step_waits(
    host: Host, trainer: FleetTrainer, of: TrainingProblem, training: Training
) -> None:
    """A training of two epochs makes the host wait as often as one of a single epoch."""
    counts: list[tuple[list[str], list[str]]] = []
    for epochs in (1, 2):
        del host.downloads[:], host.uploads[:]
        trainer.train(tasks_for(of, structs.replace(training, local_epochs=epochs)))
        counts.append((host.downloads[:], host.uploads[:]))
    (first_down, first_up), (down, up) = counts
    assert first_down, "the host reads the ends"
    assert len(down) == len(first_down), down
    assert len(up) == len(first_up), up


@pytest.mark.parametrize(
    ("trainer", "training"),
    [*(("vectorised", name) for name in TRAININGS), ("autograd", "plain"), ("autograd", "kept")],
)
def test_every_training_is_done_there_and_no_step_waits(trainer: str, training: str) -> None:
    """The steps are the same code in both; each trainer has a loop of its own around them."""
    of = ready("mlp")
    with card() as host:
        opened = TRAINERS[trainer](of)
        trains(opened, of, TRAININGS[training])
        no_step_waits(host, opened, of, TRAININGS[training])


@pytest.mark.parametrize(
    ("trainer", "model"),
    [
        *(("vectorised", name) for name in ("cnn", "batchnorm", "groupnorm")),
        ("autograd", "batchnorm"),
    ],
)
def test_so_is_every_models_with_tensors_frozen(trainer: str, model: str) -> None:
    of = ready(model)
    frozen = structs.replace(PULLED, freeze=trainings.frozen(of, 1))
    with card() as host:
        no_step_waits(host, TRAINERS[trainer](of), of, frozen)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_steps_random_numbers_alone_go_there(trainer: str) -> None:
    of = ready("dropout")
    with card() as host:
        opened = TRAINERS[trainer](of)
        counts: list[int] = []
        for epochs in (1, 2):
            host.uploads.clear()
            opened.train(tasks_for(of, structs.replace(PLAIN, local_epochs=epochs)))
            counts.append(len(host.uploads))
    assert counts[1] - counts[0] == 2 + 1  # steps of an epoch of both


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("adaptive", [False, True])
def test_two_models_are_trained_there(trainer: str, adaptive: bool) -> None:
    of = ready("batchnorm")
    task = trainings.devices(of, PULLED, (3,))[0]
    mixed = trainings.with_(task, second=SecondModel(task.request.theta, 0.6, adaptive))
    with card():
        (end,) = TRAINERS[trainer](of).train([mixed])
    assert isinstance(end, Trained) and end.second is not None, end


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_evaluation_is_read_once(trainer: str) -> None:
    of = ready("batchnorm")
    models = [(of.network.theta, trainings.examples(of.input.shape, 200, 0))]
    with card() as host:
        opened = TRAINERS[trainer](of)
        host.downloads.clear()
        (found,) = opened.evaluate(models)
        assert len(host.downloads) == 1
    assert isinstance(found, Metrics), found


BF16 = pytest.param(
    {"precision": "bf16"},
    marks=pytest.mark.skipif(CARD.type != "cuda", reason="no other device has autocast here"),
)


@pytest.mark.parametrize("options", [{"convolutions": "unfold"}, {"tf32": True}, BF16], ids=str)
def test_every_option_is_computed_there(options: dict[str, Any]) -> None:
    of = ready("cnn")
    with card() as host:
        no_step_waits(host, vectorised(of, **options), of, PLAIN)


# Memory.

EIGHTY_GB = 80 * 10**9
# All vectors that a training can have.
FULL = Training(optimizer="adam", prox=0.1, weight_decay=0.1, clip_norm=1.0)
PLACES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "cnn": (lambda: avgcnn(), (1, 28, 28), 32),
    "resnet8, few rows": (lambda: resnet8(3, 10), (3, 32, 32), 4),
    "mlp": (lambda: large_mlp(784, 200, 10), (1, 28, 28), 32),
}


def peak_bytes(
    of: TrainingProblem,
    convolutions: Convolutions,
    width: int,
    work: str,
    monkeypatch: pytest.MonkeyPatch,
) -> int:
    """The most that lives on the card in a training or an evaluation of so many devices."""
    theta, size = of.network.theta, of.network.layout.size
    examples = trainings.examples(of.input.shape, 2 * of.batch_size, 0)
    plain = Task(TrainRequest(theta, Training(momentum=0.9), 1), examples)
    asked = {"anchor": theta, "correction": theta, "gradient": True}
    tasks = {"plain": plain, "full": trainings.with_(plain, training=FULL, **asked)}

    def stacked(vectors: object, width: int, device: torch.device) -> Tensor:
        return torch.empty(width, size, device=device)  # no such memory on the host

    monkeypatch.setattr(trainer_module, "stacked_thetas", stacked)
    with card(), Live() as live:
        trainer = VectorisedTrainer(of, "fp32", CARD, width, convolutions=convolutions)
        if work == "evaluation":
            trainer.evaluate([(theta, examples)])
        else:
            trainer.train([tasks[work]])
    peak: int = live.peak
    return peak


# Tensors in reference cycles live until Python's collector comes, soon or late: a few per cent, of the ten
# of the card that the planner leaves free.
COLLECTED = 1.05


@pytest.mark.parametrize(
    ("model", "convolutions", "width"),
    [("cnn", "grouped", 512), ("cnn", "unfold", 512), ("mlp", "grouped", 512),
     ("resnet8, few rows", "grouped", 512)],
)  # fmt: skip
def test_what_fits_into_80_gb(
    model: str, convolutions: Convolutions, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither more than the card has, nor less than half of what it could."""
    make, shape, batch_size = PLACES[model]
    of = TrainingProblem(make(), CLASSIFICATION, batch_size, TensorSpec("float32", shape))
    assert of.network.layout.size and not of.noise
    planned, works = place_bytes(of, convolutions), ("full", "plain", "evaluation")
    peaks = {work: peak_bytes(of, convolutions, width, work, monkeypatch) for work in works}
    assert max(peaks.values()) <= COLLECTED * width * planned, peaks
    could = EIGHTY_GB / max(peaks["plain"], peaks["evaluation"]) * width
    assert could / 2 <= most_devices(of, EIGHTY_GB, convolutions) <= could


# What is planted.


def leaving(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """A tensor of every block stays on the host."""

    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = Block.of

        def of(*given: Any) -> Block:
            block = right(*given)
            return replace(block, **{name: getattr(block, name).cpu()})

        monkeypatch.setattr(Block, "of", of)

    return plant


def state_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ModelInTraining.__init__

    def init(self: ModelInTraining, *given: Any) -> None:
        right(self, *given)
        self._optimizer.vectors = tuple(v.cpu() for v in self._optimizer.vectors)  # type: ignore

    monkeypatch.setattr(ModelInTraining, "__init__", init)


def noisy(output: Tensor, y: Tensor) -> Tensor:
    """A loss that draws by a generator of the host."""
    drawn = torch.rand(output.shape, generator=torch.Generator(), device=output.device)
    return cross_entropy(output + drawn, y)


def table_on_the_host(output: Tensor, y: Tensor) -> Tensor:
    """A loss that looks up the labels in a table of the host."""
    return cross_entropy(output, torch.arange(5, device="cpu")[y])


def after_each_step(extra: Callable[[Differentiated], object]) -> Callable[..., None]:
    def plant(monkeypatch: pytest.MonkeyPatch) -> None:
        right = ModelInTraining.advance

        def advance(self: ModelInTraining, outcome: Differentiated, rate: Any) -> None:
            extra(outcome)
            right(self, outcome, rate)

        monkeypatch.setattr(ModelInTraining, "advance", advance)

    return plant


def reading_at_each_end(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Ends.add

    def add(self: Ends, values: Tensor, losses: Tensor, *wanted: Tensor | None) -> None:
        right(self, values, losses.cpu(), *wanted)

    monkeypatch.setattr(Ends, "add", add)


@pytest.mark.parametrize(
    "plant",
    [leaving("rows"), leaving("weights"), leaving("y"), state_on_the_host],
    ids=["index", "mask", "labels", "optimizer"],
)
def test_a_tensor_left_behind_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = ready("mlp")
    plant(monkeypatch)
    with card(), pytest.raises(RuntimeError, match="same device, but found"):
        trains(vectorised(of), of, PLAIN)


@pytest.mark.parametrize(
    ("loss", "trainer", "error"),
    [
        (noisy, "autograd", "a generator on cpu"),
        (noisy, "vectorised", "called random operation"),
        (table_on_the_host, "autograd", "same device, but found"),
        (table_on_the_host, "vectorised", "same device, but found"),
    ],
)
def test_a_loss_that_stays_behind_is_found(
    loss: Callable[[Tensor, Tensor], Tensor], trainer: str, error: str
) -> None:
    of = replace(ready("mlp"), objective=Objective(loss, CLASSIFICATION.metric))
    assert of.network.layout.size
    with card(), pytest.raises(RuntimeError, match=error):
        trains(TRAINERS[trainer](of), of, PLAIN)


@pytest.mark.parametrize(
    "plant",
    [
        after_each_step(lambda outcome: float(outcome.loss.sum())),
        after_each_step(lambda outcome: torch.from_numpy(np.ones(3)).to(CARD)),
        reading_at_each_end,
    ],
    ids=["item", "upload", "reading"],
)
def test_a_step_that_waits_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    of = ready("mlp")
    plant(monkeypatch)
    with card() as host, pytest.raises(AssertionError):
        no_step_waits(host, vectorised(of), of, PLAIN)
