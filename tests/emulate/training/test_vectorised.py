"""Many devices at once, any model, through torch.func."""

import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PLAIN, PULLED, problem

from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Convolutions, Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.wire.training import LastBatch, Training

CPU = torch.device("cpu")


def opened(of: Problem, width: int = 2) -> VectorisedTrainer:
    return VectorisedTrainer(of, "fp32", CPU, width)


@pytest.mark.parametrize("model", ["mlp", "cnn", "groupnorm", "batchnorm", "recurrent"])
def test_the_numbers_are_torchs(model: str) -> None:
    of = problem(model)
    trainings.check_like_torch(opened(of), of, PULLED, 2e-4)


@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
@pytest.mark.parametrize("last_batch", ["fill", "drop"])
def test_the_last_batch(model: str, last_batch: LastBatch) -> None:
    of = problem(model)
    training = Training(learning_rate=0.05, last_batch=last_batch)
    trainings.check_like_torch(opened(of), of, training, 2e-4)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_evaluation_bits_and_divergence(model: str) -> None:
    of = problem(model)
    trainer = opened(of)
    trainings.check_evaluation(trainer, of)
    trainings.check_repeats(trainer, opened(of), of)
    trainings.check_divergence(trainer, of)


def test_bf16_is_near() -> None:
    of = problem("mlp")
    trainer = VectorisedTrainer(of, "bf16", CPU, 2)
    trainings.check_like_torch(trainer, of, PLAIN, 0.3)
    trainings.check_evaluation(trainer, of, 2e-2)


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_frozen_anchored_gradient_and_mixed(model: str) -> None:
    of = problem(model)
    trainer = opened(of)
    trainings.check_frozen_and_anchored(trainer, of, 3e-4)
    trainings.check_gradient(trainer, of, 3e-4)
    trainings.check_mixed(trainer, of, 3e-4)
    trainings.check_mean(trainer, of, 3e-4)


def test_a_memory_that_is_too_small_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never another width half-way: a device's bits may depend on it."""
    of = problem("mlp")
    trainer = opened(of)

    def never(*arguments: object) -> None:
        raise torch.OutOfMemoryError("no memory at all")

    monkeypatch.setattr(trainer, "_run", never)
    with pytest.raises(Unsupported, match=r"2 devices at once do not fit.*autograd.*at all"):
        trainer.train(trainings.devices(of, PLAIN))


def test_nothing_is_done_one_by_one_in_the_dark(capfd: pytest.CaptureFixture[str]) -> None:
    """torch says so where vmap has no rule for an operator; a batch normalisation has one here."""
    for name in ("cnn", "groupnorm", "batchnorm"):
        of = problem(name)
        trainer = opened(of)
        trainings.trained(trainer, trainings.devices(of, PULLED))
        trainer.evaluate([(of.network.theta, trainings.examples(of.input.shape, 9, 0))])
    assert "batching rule" not in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["avgcnn", "batchnorm"])
@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("convolutions", ["grouped", "unfold"])
def test_on_a_gpu(model: str, graphs: bool, convolutions: Convolutions) -> None:
    of = problem(model)
    gpu = torch.device("cuda")

    def opened() -> VectorisedTrainer:
        return VectorisedTrainer(of, "fp32", gpu, graphs=graphs, convolutions=convolutions)

    trainer = opened()
    trainings.check_like_torch(trainer, of, PULLED, 1e-3)
    trainings.check_frozen_and_anchored(trainer, of, 1e-3)
    trainings.check_gradient(trainer, of, 1e-3)
    trainings.check_mixed(trainer, of, 1e-3)
    trainings.check_repeats(trainer, opened(), of)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["avgcnn", "batchnorm"])
def test_a_graph_changes_no_bit_of_a_gpu(model: str) -> None:
    of = problem(model)
    trainers = [
        VectorisedTrainer(of, "fp32", torch.device("cuda"), graphs=graphs)
        for graphs in (False, True)
    ]
    plain, graphed = (
        [end.theta.tobytes() for end in trainings.trained(trainer, trainings.devices(of, PULLED))]
        for trainer in trainers
    )
    assert plain == graphed
