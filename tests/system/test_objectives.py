"""What else than plain classifiers can be trained: the same numbers in every backend, and in torch."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.system import objective_models
from tests.system.objective_models import FEATURES, OUTPUTS
from torch import Tensor, nn
from torch.nn import functional

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.backends.rows import Rows, row_loss
from sedge_edge.training.examples import Examples, fitting
from sedge_edge.training.trainer import Trainer, TrainRequest
from sedge_export import export
from sedge_export.subject.objective import OwnMetric
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, TORCH, TensorSpec, load
from sedge_protocol.wire.objective import Loss, Metric, TargetKind
from sedge_protocol.wire.training import Training

BATCH, ROWS = 8, 20
SMOOTH = Loss("cross_entropy", 0.1, (1.0, 2.0, 0.5))


JUDGED = OwnMetric(Metric("objective_models:judged", "lower"), objective_models.judged)


def _same(values: Tensor, y: Tensor) -> Tensor:
    return (values - y).abs().mean()


@dataclass(frozen=True)
class Case:
    """A choice, and torch's own loss and metric for it."""

    loss: Loss | Rows | None
    target: TargetKind | TensorSpec
    truth: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], Tensor]
    metric_name: str
    factory: str = "model"
    judged: OwnMetric | str | None = None


def _mean_of_rows(output: Tensor, y: Tensor) -> Tensor:
    """Weighted and smoothed: the mean over the labels that count of all rows."""
    weights = torch.tensor(SMOOTH.class_weights)
    losses = functional.cross_entropy(output, y, weights, label_smoothing=0.1, reduction="none")
    return losses.sum() / (y != -100).sum()


def _right(output: Tensor, y: Tensor) -> Tensor:
    return (output.argmax(1) == y)[y != -100].float().mean()


CASES = {
    "regression": Case(None, "float", functional.mse_loss, _same, "mean_absolute_error"),
    "huber": Case(Loss("huber"), "float", functional.huber_loss, _same, "mean_absolute_error"),
    "several labels": Case(
        Loss("bce_with_logits"), "float", functional.binary_cross_entropy_with_logits,
        lambda output, y: ((output > 0) == (y == 1)).float().mean(), "label_accuracy",
    ),
    "smooth and weighted": Case(
        SMOOTH, "class",
        lambda output, y: functional.cross_entropy(
            output, y, torch.tensor(SMOOTH.class_weights), label_smoothing=0.1, reduction="none"
        ).mean(),
        lambda output, y: (output.argmax(1) == y).float().mean(), "accuracy",
    ),
    "autoencoder": Case(None, "none", functional.mse_loss, functional.mse_loss, "loss", "autoencoder"),
    "three outputs": Case(
        objective_models.bound, "none", lambda output, x: objective_models.bound(output, x).mean(),
        lambda output, x: objective_models.bound(output, x).mean(), "loss", "variational",
    ),
    "own metric": Case(
        objective_models.own, "float", lambda output, y: ((output - y) ** 4).mean(),
        lambda output, y: (output - y).abs().amax(1).mean(), JUDGED.metric.name, "with_both", JUDGED,
    ),
    # As torch's means over all labels that count, whichever row they are in.
    "pixels": Case(
        SMOOTH, TensorSpec("int64", (2, 2)), _mean_of_rows, _right, "accuracy", "pixels"
    ),
    "tokens": Case(
        None, TensorSpec("int64", (4,)),
        lambda output, y: functional.cross_entropy(output.mT, y),
        lambda output, y: functional.cross_entropy(output.mT, y).exp(),
        "perplexity", "tokens", "perplexity",
    ),
}  # fmt: skip


def examples(case: Case) -> Examples:
    """Rows with targets of the case's kind."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ROWS, FEATURES), np.float32)
    if isinstance(case.target, TensorSpec):
        y = rng.integers(0, OUTPUTS, (ROWS, *case.target.shape))
        y[rng.random(y.shape) < 0.4] = -100
        y.reshape(ROWS, -1)[:, 0] = 1
        return Examples(x, y)
    if case.target == "class":
        return Examples(x, rng.integers(0, OUTPUTS, ROWS))
    if case.loss == Loss("bce_with_logits"):
        return Examples(x, rng.integers(0, 2, (ROWS, OUTPUTS)).astype(np.float32))
    return Examples(x, rng.standard_normal((ROWS, OUTPUTS), np.float32))


# ExecuTorch's compiler takes seconds: it gets two losses of many operators, and in `make test-slow` all.
ONNX_ALONE, BOTH = (ONNXRUNTIME,), (ONNXRUNTIME, EXECUTORCH)
COMPILED = ("several labels", "pixels")
SLOW = ("huber", "smooth and weighted", "three outputs", "tokens")


@pytest.mark.parametrize(
    ("name", "backends"),
    [
        *(pytest.param(name, BOTH if name in COMPILED else ONNX_ALONE, id=name) for name in CASES),
        *(
            pytest.param(name, BOTH, id=f"{name}, ExecuTorch", marks=pytest.mark.slow)
            for name in SLOW
        ),
    ],
)
def test_every_backend_trains_it_as_torch_does(
    name: str, backends: tuple[str, ...], tmp_path: Path
) -> None:
    case = CASES[name]
    made = getattr(objective_models, case.factory)()
    module: nn.Module = made if isinstance(made, nn.Module) else made[0]
    manifest = export(
        module, torch.randn(BATCH, FEATURES), batch_size=BATCH, name="m", folder=tmp_path,
        num_classes=0 if case.target in ("float", "none") else OUTPUTS,
        loss=case.loss, target=case.target,
        backends=backends, metric=case.judged,
    )  # fmt: skip
    assert manifest.metric.name == case.metric_name
    bundle, theta = load(tmp_path)
    data = fitting(examples(case), bundle.manifest)
    code = UserCode(Path(__file__).parent, f"objective_models:{case.factory}")
    training = Training(2, 0.1, 0.5, optimizer="sgd")

    def ended(trainer: Trainer) -> tuple[list[float], np.ndarray[tuple[int], np.dtype[np.float32]]]:
        trained = trainer.train(TrainRequest(theta, training, 0), data, lambda: False).theta
        found = trainer.evaluate(trained, data)
        return [found.loss, found.metric], trained

    values, trained = ended(open_trainer(bundle, ONNXRUNTIME, 1))
    runs = backends if find_spec("sedge_executorch") else ONNX_ALONE
    for backend in (TORCH, *runs[1:]):
        others, again = ended(open_trainer(bundle, backend, 1, code))
        np.testing.assert_allclose(again, trained, atol=1e-5)
        np.testing.assert_allclose(others, values, rtol=1e-4)
    held = {**dict(module.named_parameters())}
    for key, tensor in bundle.manifest.layout.views(trained).items():
        held[key].data.copy_(torch.from_numpy(tensor.copy()))
    output, y = module(torch.from_numpy(data.inputs)).detach(), torch.from_numpy(data.targets)
    expected = [float(function(output, y)) for function in (case.truth, case.metric)]
    np.testing.assert_allclose(values, expected, rtol=1e-4)


def test_the_torch_backend_wants_a_loss_that_the_bundle_only_names(tmp_path: Path) -> None:
    export(
        objective_models.model(), torch.randn(BATCH, FEATURES), batch_size=BATCH, name="m",
        num_classes=0, folder=tmp_path, loss=objective_models.own,
    )  # fmt: skip
    code = UserCode(Path(__file__).parent, "objective_models:model")
    named = "tests.system.objective_models:own"
    with pytest.raises(
        ConfigError, match=rf"a tuple \(module, loss\): the bundle's loss is {named}"
    ):
        open_trainer(load(tmp_path)[0], TORCH, 1, code)


def test_the_plain_losses_are_torchs() -> None:
    output, y = torch.randn(4, 2, 3), torch.randn(4, 2, 3)
    for name, truth in (("mse", functional.mse_loss), ("l1", functional.l1_loss)):
        rows = row_loss(Loss(name))
        assert rows is not None
        expected = truth(output, y, reduction="none").flatten(1).mean(1)
        torch.testing.assert_close(rows(output, y), expected)
