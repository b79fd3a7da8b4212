"""What torch's layers say of their own width, after their tensors were cut."""

import pytest
import torch
from torch import Tensor, nn

from sedge_export.widths.resize import resizable, resize
from sedge_protocol.errors import ExportError


def cut(layer: nn.Module, *, outputs: int = 0, inputs: int = 0, prefix: int = 0) -> nn.Module:
    """The layer with its first outputs and inputs (weights), or of a prefix of every vector."""
    with torch.no_grad():
        for name, tensor in [*layer.named_parameters(), *layer.named_buffers()]:
            if tensor.ndim == 0:
                continue
            part: Tensor = tensor[: prefix or outputs or None]
            if inputs and tensor.ndim > 1:
                part = part[:, :inputs]
            kept = part.clone()
            setattr(layer, name, nn.Parameter(kept) if isinstance(tensor, nn.Parameter) else kept)
    resize("layer", layer)
    return layer


def conv(inputs: int, outputs: int, groups: int = 1) -> dict[str, object]:
    return {"in_channels": inputs, "out_channels": outputs, "groups": groups}


def groups(channels: int, count: int) -> dict[str, object]:
    return {"num_channels": channels, "num_groups": count}


CASES: dict[str, tuple[nn.Module, dict[str, object]]] = {
    "conv": (cut(nn.Conv2d(8, 6, 3), outputs=3, inputs=4), conv(4, 3)),
    "depthwise": (cut(nn.Conv2d(8, 16, 3, groups=8), outputs=6), conv(3, 6, 3)),
    "groups": (cut(nn.Conv1d(8, 16, 3, groups=4)), conv(8, 16, 4)),
    "transposed": (cut(nn.ConvTranspose2d(8, 6, 3, bias=False), outputs=4, inputs=3), conv(4, 3)),
    "linear": (cut(nn.Linear(8, 6), outputs=3, inputs=4), {"in_features": 4, "out_features": 3}),
    "batch norm": (cut(nn.BatchNorm2d(6), prefix=3), {"num_features": 3}),
    "instance norm": (cut(nn.InstanceNorm2d(6, affine=True), prefix=3), {"num_features": 3}),
    "layer norm": (cut(nn.LayerNorm([6, 4]), prefix=3), {"normalized_shape": (3, 4)}),
    "rms norm": (cut(nn.RMSNorm(6), prefix=3), {"normalized_shape": (3,)}),
    "prelu": (cut(nn.PReLU(6), prefix=3), {"num_parameters": 3}),
    "embedding": (cut(nn.Embedding(9, 6), inputs=3), {"num_embeddings": 9, "embedding_dim": 3}),
    # Of four channels, as before.
    "group norm": (cut(nn.GroupNorm(4, 16), prefix=12), groups(12, 3)),
    "group norm, less than a group": (cut(nn.GroupNorm(2, 16), prefix=4), groups(4, 1)),
    # Of six channels, no more than before.
    "group norm, groups that shrink": (cut(nn.GroupNorm(2, 16), prefix=12), groups(12, 2)),
    "group norm, not affine": (cut(nn.GroupNorm(2, 16, affine=False)), groups(16, 2)),
}


@pytest.mark.parametrize("case", CASES)
def test_attributes(case: str) -> None:
    layer, expected = CASES[case]
    assert {name: getattr(layer, name) for name in expected} == expected
    assert resizable(layer)


@pytest.mark.parametrize("channels", [7, 13])
def test_groups_that_are_not_whole(channels: int) -> None:
    with pytest.raises(ExportError, match=rf"module 'layer': {channels} channels in groups of 5"):
        cut(nn.GroupNorm(4, 20), prefix=channels)


class Own(nn.Module):
    """A module with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


class OwnBlock(nn.Sequential):
    """A container with a parameter of its own."""


class OwnAttention(nn.MultiheadAttention):
    """A layer of torch's under another name."""


class OwnLinear(nn.Linear):
    """A layer of the table under another name."""


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Own(), True),
        (OwnBlock(), True),
        (nn.ParameterList([torch.ones(3)]), True),
        (OwnLinear(4, 3), True),
        (nn.MultiheadAttention(4, 2), False),
        (OwnAttention(4, 2), False),
        (nn.LSTM(4, 3), False),
        (nn.Bilinear(4, 3, 2), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)).parametrizations, True),
    ],
)
def test_modules_that_may_be_cut(module: nn.Module, expected: bool) -> None:
    assert resizable(module) is expected
