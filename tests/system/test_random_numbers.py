"""A model with dropout: every backend and every trainer of the emulator drops the same elements."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.edge.backends.conftest import unpacked_wheel
from torch import Tensor, nn

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.training.batches import permutations
from sedge_edge.training.examples import Examples
from sedge_edge.training.noise import noise
from sedge_edge.training.trainer import Trained, TrainRequest
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Task
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_export import export
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, TORCH, Bundle, TensorSpec, load
from sedge_protocol.wire.training import Training

BATCH, SEED = 8, 2**63 - 1
TRAINING = Training(local_epochs=2, learning_rate=0.05, momentum=0.9)


class Model(nn.Module):
    """Dropout of elements and of channels, in attention, and of a whole branch (stochastic depth)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Dropout2d(0.5))
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True)
        self.out = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.conv(x).flatten(1, 2)  # (B, 24, 6)
        branch = self.encoder(hidden)
        if self.training:
            branch = branch * x.new_empty(len(x), 1, 1).bernoulli_(0.8) / 0.8
        output: Tensor = self.out(hidden + branch)
        return output


def small() -> nn.Module:
    """What ExecuTorch lowers in seconds."""
    return nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))


class Relaxed(nn.Module):
    """A relaxed choice, which takes the logarithm of exponential numbers, and normal noise."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(12, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        if self.training:
            hidden = nn.functional.gumbel_softmax(hidden) * (1 + 0.1 * torch.randn_like(hidden))
        output: Tensor = self.head(hidden)
        return output


def extremes(_seed: int, _step: int, count: int) -> NDArray[np.float32]:
    """The smallest and the largest of a device's random numbers, in turn."""
    return np.resize(np.array([0, 1 - 2**-16], np.float32), count)


def data(shape: tuple[int, ...]) -> Examples:
    """20 examples: the third batch of an epoch is filled up."""
    rng = np.random.default_rng(0)
    return Examples(rng.standard_normal((20, *shape), np.float32), rng.integers(0, 3, 20))


def exported(model: nn.Module, shape: tuple[int, ...], folder: Path, *backends: str) -> Bundle:
    sample = torch.randn(BATCH, *shape)
    export(
        model, sample, batch_size=BATCH, name="m", num_classes=3, folder=folder, backends=backends
    )
    return load(folder)[0]


def by_backend(bundle: Bundle, backend: str, theta: Theta, shape: tuple[int, ...]) -> Trained:
    trainer = open_trainer(bundle, backend, 1, UserCode(Path(__file__).parent, f"{__name__}:small"))
    return trainer.train(TrainRequest(theta, TRAINING, SEED), data(shape), lambda: False)


def check(found: Trained, wanted: Trained, theta: Theta) -> None:
    moved = np.abs(wanted.theta - theta).max()
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=0, atol=1e-4 * moved)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-4)


def test_the_emulator_drops_what_a_device_drops(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    bundle = exported(model, (1, 8, 8), tmp_path, ONNXRUNTIME)
    # Channels, attention's scores, its output, the feed-forward's inside and outside, branches.
    masks = BATCH * (4 + 2 * 24 * 24 + 24 * 6 + 24 * 8 + 24 * 6 + 1)
    assert bundle.manifest.noise == masks and not bundle.manifest.padding_is_safe
    problem = TrainingProblem(model, CLASSIFICATION, BATCH, TensorSpec("float32", (1, 8, 8)))
    theta = problem.network.theta
    wanted = by_backend(bundle, ONNXRUNTIME, theta, (1, 8, 8))
    task = Task(TrainRequest(theta, TRAINING, SEED), data((1, 8, 8)))
    for trainer in (
        AutogradTrainer(problem, "fp32", torch.device("cpu")),
        VectorisedTrainer(problem, "fp32", torch.device("cpu"), 2),
    ):
        (found,) = trainer.train([task])
        assert isinstance(found, Trained)
        check(found, wanted, theta)


@pytest.mark.parametrize(
    "backends", [(TORCH,), pytest.param((TORCH, EXECUTORCH), marks=pytest.mark.slow)], ids=str
)
def test_all_backends_drop_the_same(
    backends: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(unpacked_wheel())
    torch.manual_seed(0)
    bundle = exported(small(), (12,), tmp_path, ONNXRUNTIME, *backends[1:])
    theta = load(tmp_path)[1]
    wanted, *others = (by_backend(bundle, name, theta, (12,)) for name in (ONNXRUNTIME, *backends))
    for found in others:
        check(found, wanted, theta)


def test_the_smallest_and_the_largest_number_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in ("edge.backends.bundle_trainer", "emulate.training.autograd"):
        monkeypatch.setattr(f"sedge_{place}.noise", extremes)
    torch.manual_seed(0)
    model = Relaxed()
    bundle = exported(model, (12,), tmp_path, ONNXRUNTIME)
    problem = TrainingProblem(model, CLASSIFICATION, BATCH, TensorSpec("float32", (12,)))
    theta = problem.network.theta
    task = Task(TrainRequest(theta, TRAINING, SEED), data((12,)))
    (found,) = AutogradTrainer(problem, "fp32", torch.device("cpu")).train([task])
    assert isinstance(found, Trained)
    check(found, by_backend(bundle, ONNXRUNTIME, theta, (12,)), theta)


def test_a_step_is_that_of_plain_torch_with_the_same_mask(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = small()
    bundle = exported(model, (12,), tmp_path, ONNXRUNTIME)
    theta = load(tmp_path)[1]
    inputs, labels = data((12,)).inputs[:BATCH], data((12,)).targets[:BATCH]
    once = Training(learning_rate=0.1)
    found = open_trainer(bundle, ONNXRUNTIME, 1).train(
        TrainRequest(theta, once, 5), Examples(inputs, labels), lambda: False
    )
    (order,) = permutations(5, BATCH, 1)
    mask = torch.from_numpy(noise(5, 0, BATCH * 16).reshape(BATCH, 16) >= 0.3) / 0.7
    first, relu, _, last = model.children()
    output = last(relu(first(torch.from_numpy(inputs[order]))) * mask)
    loss = nn.functional.cross_entropy(output, torch.from_numpy(labels[order]))
    parts = torch.autograd.grad(loss, list(model.parameters()))
    gradient = np.concatenate([part.flatten().numpy() for part in parts])
    np.testing.assert_allclose(found.theta, theta - np.float32(0.1) * gradient, atol=1e-6)
