"""Many devices at once, any model, through torch.func."""

import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PLAIN, PULLED, problem
from tests.fleet import failing

from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import check, references
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Convolutions, Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer

CPU = torch.device("cpu")


def opened(of: TrainingProblem, width: int = 2) -> VectorisedTrainer:
    return VectorisedTrainer(of, "fp32", CPU, width)


def test_a_memory_that_is_too_small_is_an_error() -> None:
    """Never another width half-way: a device's bits may depend on it."""
    trainer, full = opened(of := problem("mlp")), torch.OutOfMemoryError("no memory at all")
    expected = r"2 devices at once do not fit.*autograd.*at all"
    with failing(trainer, "_run", full), pytest.raises(Unsupported, match=expected):
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
    check(trainer, of, "fp32", references(of))
    trainings.check_agreement(trainer, AutogradTrainer(of, "fp32", CPU), of, 1e-3)
    tasks = trainings.devices(of, PULLED)
    one, two = (trainings.trained(each, tasks) for each in (trainer, opened()))
    assert [end.theta.tobytes() for end in one] == [end.theta.tobytes() for end in two]


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["avgcnn", "batchnorm"])
def test_a_graph_changes_no_bit_of_a_gpu(model: str) -> None:
    of, gpu, ends = problem(model), torch.device("cuda"), list[list[bytes]]()
    for graphs in (False, True):
        trainer = VectorisedTrainer(of, "fp32", gpu, graphs=graphs)
        trained = trainings.trained(trainer, trainings.devices(of, PULLED))
        ends.append([end.theta.tobytes() for end in trained])
    assert ends[0] == ends[1]
