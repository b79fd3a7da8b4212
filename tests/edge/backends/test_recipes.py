"""Each backend with each optimizer against torch.optim in float64, over a few steps."""

import copy
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from msgspec import structs
from numpy.typing import NDArray
from tests.emulate.training.trainings import CLASSES, MODELS
from torch import Tensor, nn

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.training.batches import batches
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainRequest
from sedge_export import export
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, TORCH, Bundle, load
from sedge_protocol.wire.training import Training

BATCH, STEPS, SEED = 8, 4, 11
# Of the L2 norm of the gradient, and of the change of the model.
LARGEST_ERROR = 1e-5

Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
SGD = Training(learning_rate=0.05, momentum=0.9, nesterov=True)
ADAM = Training(learning_rate=0.002, optimizer="adam", epsilon=1e-4)
RECIPES: dict[str, tuple[Training, Make]] = {
    "sgd": (SGD, lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True)),
    "clipped": (
        structs.replace(SGD, clip_norm=0.1),
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True),
    ),
    "adam": (ADAM, lambda p: torch.optim.Adam(p, 0.002, eps=1e-4)),
    "adamw": (
        structs.replace(ADAM, optimizer="adamw", weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, 0.002, eps=1e-4, weight_decay=0.1),
    ),
}


def mlp() -> nn.Module:
    """As the backend ``torch`` builds it."""
    return built("mlp")


def cnn() -> nn.Module:
    """The same of the CNN."""
    return built("cnn")


def batchnorm() -> nn.Module:
    """The same of the small residual network."""
    return built("batchnorm")


def built(name: str) -> nn.Module:
    """A model with fixed values."""
    torch.manual_seed(3)
    return MODELS[name][0]()


class Exported(NamedTuple):
    """A model's name, its bundle and its first theta (n,)."""

    name: str
    bundle: Bundle
    theta: Theta


@pytest.fixture(scope="module")
def exported(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    # ExecuTorch's compiler takes 10 s for a network, whose gradients the exporter itself compares; how they
    # are applied is seen on the smallest.
    backends = (ONNXRUNTIME, EXECUTORCH) if name == "mlp" else (ONNXRUNTIME,)
    export(
        built(name), torch.randn(BATCH, *MODELS[name][1]), batch_size=BATCH, name=name,
        num_classes=CLASSES, folder=folder, backends=backends,
    )  # fmt: skip
    return Exported(name, *load(folder))


def examples(name: str) -> Examples:
    """Random rows and labels."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((BATCH * STEPS, *MODELS[name][1]), np.float32)
    return Examples(x, rng.integers(0, CLASSES, len(x)))


def exact(name: str, recipe: str) -> Iterator[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    """After each step the gradients before it and the tensors after it, by torch.optim in float64."""
    training, make = RECIPES[recipe]
    model, data = built(name).double().train(), examples(name)
    parameters = list(model.parameters())
    optimizer = make(parameters)
    for batch in batches(len(data.targets), BATCH, 1, "pad", SEED, True):
        optimizer.zero_grad()
        x, y = (torch.from_numpy(a[batch.indices]) for a in (data.inputs, data.targets))
        torch.autograd.backward(nn.functional.cross_entropy(model(x.double()), y))
        gradients = {n: copy.deepcopy(p.grad) for n, p in model.named_parameters()}
        if training.clip_norm:
            torch.nn.utils.clip_grad_norm_(parameters, training.clip_norm)
        optimizer.step()
        yield {n: g for n, g in gradients.items() if g is not None}, dict(model.state_dict())


def flat(layout: Layout, tensors: dict[str, Tensor]) -> NDArray[np.float64]:
    """One vector (n,) of the tensors; 0 for those that are not there, as gradients of statistics are."""
    vector = np.zeros(layout.size)
    for tensor in layout.tensors:
        if tensor.name in tensors:
            vector[tensor.slice] = tensors[tensor.name].numpy().reshape(-1)
    return vector


def off(found: Theta, wanted: NDArray[np.float64]) -> float:
    """The L2 norm of the difference as a share of the norm."""
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.fleet  # it exports three models
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize(
    ("exported", "backend"),
    [("mlp", EXECUTORCH), *product(("mlp", "cnn", "batchnorm"), (ONNXRUNTIME, TORCH))],
    indirect=["exported"],
    scope="module",
)
@pytest.mark.usefixtures("executorch_libraries")
def test_steps_are_those_of_torch_in_float64(exported: Exported, backend: str, recipe: str) -> None:
    name, bundle, theta = exported
    layout = bundle.manifest.layout
    gradients, tensors = list(exact(name, recipe))[-1]
    code = UserCode(Path(__file__).parent, f"test_recipes:{name}")
    trainer = open_trainer(bundle, backend, 1, code)
    training = RECIPES[recipe][0]
    end = trainer.train(
        TrainRequest(theta, training, SEED, gradient=True), examples(name), lambda: False
    )
    assert end.steps == STEPS and end.gradient is not None
    assert off(end.gradient, flat(layout, gradients)) <= LARGEST_ERROR
    assert off(end.theta - theta, flat(layout, tensors) - theta) <= LARGEST_ERROR
