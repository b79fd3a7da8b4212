"""Convolutions as products of unfolded patches: torch's own numbers, in float64 and for many devices."""

from collections.abc import Callable

import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PULLED, problem
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sedge_emulate.training.checks import check, references
from sedge_emulate.training.convolutions import Unfolded
from sedge_emulate.training.tasks import Convolutions, Precision, Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer

CPU = torch.device("cpu")
LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "plain": (lambda: nn.Conv2d(3, 4, 3), (3, 7, 8)),
    "uneven": (lambda: nn.Conv2d(2, 4, (3, 2), (2, 1), (1, 2), (1, 3)), (2, 9, 8)),
    "groups": (lambda: nn.Conv2d(6, 9, 3, padding=1, groups=3, bias=False), (6, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(4, 8, 5, stride=2, padding=2, groups=4), (4, 9, 9)),
    "one by one": (lambda: nn.Conv2d(4, 3, 1, stride=2), (4, 6, 6)),
    "same": (lambda: nn.Conv2d(2, 3, (4, 3), padding="same", dilation=2), (2, 8, 7)),
    "valid": (lambda: nn.Conv2d(2, 3, 3, padding="valid"), (2, 8, 7)),
    "circular": (lambda: nn.Conv2d(2, 3, 3, padding=2, padding_mode="circular"), (2, 6, 6)),
    "one axis": (lambda: nn.Conv1d(3, 4, 5, stride=2, padding=2, dilation=2), (3, 17)),
    "one axis, same": (lambda: nn.Conv1d(4, 4, 4, padding="same", groups=2), (4, 9)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 2, 3, stride=2), (3, 4, 4)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch on its own form
@pytest.mark.parametrize("name", LAYERS)
def test_the_numbers_are_torchs(name: str) -> None:
    """Outputs and gradients of two devices' filters, in float64, for filters and inputs alike."""
    make, shape = LAYERS[name]
    torch.manual_seed(4)
    layer = make().double()
    weights = {n: torch.randn(2, *p.shape).double() for n, p in layer.named_parameters()}
    x = torch.randn(2, 3, *shape).double()

    def squares(values: dict[str, Tensor], given: Tensor) -> tuple[Tensor, Tensor]:
        output = functional_call(layer, values, (given,))
        return (output.sin() * output).sum(), output

    each = vmap(grad(squares, argnums=(0, 1), has_aux=True))
    wanted = each(weights, x)
    with Unfolded():
        outcome = each(weights, x)
    torch.testing.assert_close(outcome, wanted, rtol=1e-12, atol=1e-12)


def test_what_cannot_be_unfolded_is_refused() -> None:
    with Unfolded(), pytest.raises(Unsupported, match="3-D convolution has no unfolded form"):
        nn.Conv3d(1, 1, 2)(torch.zeros(1, 1, 4, 4, 4))


@pytest.mark.parametrize(
    ("model", "precision"),
    [("cnn", "fp32"), ("batchnorm", "fp32"), ("cnn", "bf16")],
)
def test_they_train_like_float64(model: str, precision: Precision) -> None:
    """As grouped ones do: test_checks.py."""
    of = problem(model)
    trainer = VectorisedTrainer(of, precision, CPU, 2, convolutions="unfold")
    check(trainer, of, precision, references(of))


def test_the_forms_differ_in_rounding_alone(capfd: pytest.CaptureFixture[str]) -> None:
    """So the option reaches the model; and no operator is done device by device."""
    of = problem("cnn")
    tasks = trainings.devices(of, PULLED)
    forms: tuple[Convolutions, ...] = ("grouped", "unfold")
    one, other = (
        trainings.trained(VectorisedTrainer(of, "fp32", CPU, 4, convolutions=form), tasks)[0]
        for form in forms
    )
    assert one.theta.tobytes() != other.theta.tobytes()
    trainings.agree(of, tasks[0].request.theta, other.theta, one.theta, 1e-4)
    assert "batching rule" not in capfd.readouterr().err
