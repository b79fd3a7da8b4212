"""Narrower forms: slices of the whole model, with the whole model's function where the rest is zero."""

import copy
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sedge_edge.backends.rows import REGRESSION
from sedge_export import models
from sedge_export.subject.network import Network
from sedge_export.widths.axes import find_axes
from sedge_export.widths.narrow import narrowed
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout

torch.set_num_threads(1)

DROPPED = (0.25, 0.75)


class Residual(nn.Module):
    """Two blocks on one stream of 8 channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Conv2d(8, 12, 3, padding=1)
        self.outer = nn.Conv2d(12, 8, 1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, 5) of images."""
        x = self.stem(x)
        for _ in range(2):
            x = x + self.norm(self.outer(torch.relu(self.inner(x))))
        output: Tensor = self.head(x.mean((2, 3)))
        return output


def depthwise() -> nn.Module:
    """Depthwise and pointwise convolutions, as MobileNets have them."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU6(),
        nn.Conv2d(8, 16, 3, groups=8), nn.InstanceNorm2d(16, affine=True), nn.Hardswish(),
        nn.Conv2d(16, 12, 1), nn.PReLU(12), nn.Flatten(), nn.Linear(12 * 64, 20), nn.GELU(),
        nn.Linear(20, 5),
    )  # fmt: skip


def tied() -> nn.Module:
    """One layer under two names."""
    inner = nn.Linear(8, 8)
    parts = [nn.Flatten(), nn.Linear(432, 8), inner, nn.Tanh(), inner, nn.Linear(8, 5)]
    return nn.Sequential(*parts)


BUILDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "avgcnn": (models.avgcnn, (1, 28, 28)),
    "mlp": (models.mlp, (1, 28, 28)),
    "resnet8": (models.resnet8, (1, 20, 20)),
    "resnet8_groupnorm": (models.resnet8_groupnorm, (1, 20, 20)),
    "residual": (Residual, (3, 12, 12)),
    "depthwise": (depthwise, (3, 12, 12)),
    "tied": (tied, (3, 12, 12)),
}


def made(case: str) -> tuple[nn.Module, Tensor]:
    """A model with statistics of its own, and a batch."""
    torch.manual_seed(0)
    build, shape = BUILDS[case]
    model, x = build(), torch.randn(4, *shape)
    with torch.no_grad():
        model.train()(x)
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    return model, x


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: tensor.detach()
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
        if tensor.ndim
    }


def prefix(whole: Tensor, part: Tensor) -> Tensor:
    return whole[tuple(slice(extent) for extent in part.shape)]


def outputs(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        found: Tensor = copy.deepcopy(model).eval()(x)
    return found


def layout(model: nn.Module) -> Layout:
    return Network(model, REGRESSION).layout


@pytest.mark.parametrize("case", BUILDS)
def test_a_form_is_slices_with_the_function_of_the_whole_model(case: str) -> None:
    """Where the rest of that is zero: every slice is of the channels that belong together."""
    model, x = made(case)
    whole, before = copy.deepcopy(model), tensors(copy.deepcopy(model))
    network = Network(model, REGRESSION)
    axes = find_axes(network, x).axes
    for dropped in DROPPED:
        part = narrowed(model, x, dropped)
        with torch.no_grad():
            for name, tensor in tensors(whole).items():
                held = tensors(part)[name]
                assert torch.equal(held, prefix(before[name], held)), name
                tensor.fill_(1.0 if name.endswith("running_var") else 0.0)
                prefix(tensor, held).copy_(held)
        assert layout(part) == axes.layout(network.layout, axes.narrowed(dropped))
        expected = outputs(whole, x)
        assert float(expected.std()) > 0
        torch.testing.assert_close(outputs(part, x), expected, atol=1e-5, rtol=1e-4)
    # The model itself is as it was, and whole it is one of its forms.
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(model).items())
    same = narrowed(model, x, 0.0)
    assert same is not model and layout(same) == layout(model)
    assert torch.equal(outputs(same, x), outputs(model, x))


def test_half_of_avgcnn_trains() -> None:
    model, x = made("avgcnn")
    part = narrowed(model, x, 0.5).train()
    assert sum(parameter.numel() for parameter in part.parameters()) == 147_146
    optimizer = torch.optim.SGD(part.parameters(), lr=1e-2)
    losses: list[float] = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = part(x).square().mean()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert all(parameter.grad is not None for parameter in part.parameters())


def test_what_is_frozen_and_how_it_is_used_stay() -> None:
    model, x = made("residual")
    model.eval()
    model.get_parameter("stem.weight").requires_grad_(False)
    part = narrowed(model, x, 0.5)
    assert not part.get_parameter("stem.weight").requires_grad
    assert part.get_parameter("stem.bias").requires_grad
    assert not any(module.training for module in part.modules())
    tied_part = narrowed(*made("tied"), 0.5)
    assert tied_part.get_parameter("2.weight") is tied_part.get_parameter("4.weight")


class Written(nn.Module):
    """A forward pass with a size of its own."""

    def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.last = last
        self.head = nn.Linear(8 * 16, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, 5) of images of 4 x 4."""
        x = self.last(self.conv(x))
        output: Tensor = self.head(x)
        return output


def viewed(x: Tensor) -> Tensor:
    return x.view(-1, 128)


def refused(model: nn.Module, dropped: float = 0.5) -> str:
    with pytest.raises(ExportError) as caught:
        narrowed(model, torch.randn(4, 3, 4, 4), dropped)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_size_in_the_forward_pass() -> None:
    message = refused(Written(viewed))
    place = r"narrower by 0\.5 fails in Linear at test_narrow\.py:\d+, `output: Tensor = self\.head\(x\)`"
    assert re.search(place, message)
    assert "x.flatten(1), not x.view(-1, 1024)" in message
    message = refused(Written(lambda x: x.view(4, 128)))
    assert re.search(r"test_narrow\.py:\d+, `.*x\.view\(4, 128\).*`: RuntimeError", message)
    layers = [nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Unflatten(1, (8, 2, 2)), nn.Flatten()]
    message = refused(nn.Sequential(*layers, nn.Linear(32, 5)))
    assert "narrower by 0.5 fails in Unflatten: " in message
    assert narrowed(Written(lambda x: x.flatten(1)), torch.randn(4, 3, 4, 4), 0.5)


class Rows(nn.Module):
    """A forward pass that gives fewer rows when it is narrower, and runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(48, 8)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        return x.view(-1, 8).mean(1, keepdim=True) * self.scale


def test_outputs_of_another_shape() -> None:
    assert "narrower by 0.5 gives (2, 5), expected (4, 5); sizes in" in refused(Rows())


def test_nothing_to_narrow() -> None:
    message = refused(nn.Sequential(nn.Flatten(), nn.Linear(48, 5)))
    assert re.search(r"nothing can be narrowed: .*'1\.\w+' is one of the outputs", message)
    joined = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ChannelShuffle(2), nn.Flatten(), nn.Linear(24, 5))
    assert re.search(r"dimension 0 of '0\.weight' must stay for aten\.\w+", refused(joined))
    assert re.search(r"; and \d+ more$", refused(joined))


@pytest.mark.parametrize("dropped", [-0.1, 1.0, float("nan")])
def test_rates_that_are_none(dropped: float) -> None:
    assert f"dropped: {dropped}, expected 0 to below 1" in refused(Residual(), dropped)


def test_groups_of_a_normalisation() -> None:
    def grouped(channels: int) -> nn.Module:
        layers = [nn.Conv2d(3, channels, 3), nn.GroupNorm(4, channels), nn.Flatten()]
        return nn.Sequential(*layers, nn.Linear(4 * channels, 5))

    part = narrowed(grouped(16), torch.randn(4, 3, 4, 4), 0.25)
    norm = part.get_submodule("1")
    assert isinstance(norm, nn.GroupNorm)
    assert (norm.num_channels, norm.num_groups) == (12, 3)
    assert "module '1': 7 channels in groups of 5" in refused(grouped(20), 0.65)


def branching(x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def selected(x: Tensor) -> Tensor:
    return x[x > 0][:4].expand(4, 128)


def test_what_depends_on_the_data() -> None:
    assert "cannot be traced in Written at test_narrow.py" in refused(Written(branching))
    assert "x[mask] at test_narrow.py" in refused(Written(selected))
