"""Functions with integers, masks, ties and margins: exported for both runtimes, equal to eager torch.

``export`` itself compares every program with eager torch in float64, and raises when one differs. The
functions are branches of one network, behind one linear layer, whose outputs z are (B, 16).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from sedge_export import export
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

torch.set_num_threads(1)

Function = Callable[[Tensor], Tensor]


def image(z: Tensor) -> Tensor:
    return z.reshape(-1, 1, 4, 4)


def masked(z: Tensor) -> Tensor:
    """Writes through masks of elements, columns, rows, and of a part of the axes."""
    z = z.clone()
    z[z < 0] = 0.0
    z[:, torch.arange(16) > 12] = 0.5
    z[z[:, 0] > 0] = torch.arange(16.0)
    grid = z.reshape(-1, 4, 4).clone()
    grid[..., 0, :][grid[..., 1, :] > 0] = -1.0
    grid[grid[:, :, 1] > 0.5, 2] = 3
    return grid


def short_frames(z: Tensor) -> Tensor:
    options: dict[str, Any] = {"center": False, "normalized": True, "return_complex": True}
    return torch.view_as_real(torch.stft(z, 8, win_length=6, window=WINDOW, **options)).tanh()


fft: Any = torch.fft
FILTER = torch.randn(9, 2, generator=torch.Generator().manual_seed(2))
WINDOW, COLUMN, real = torch.hann_window(6), torch.arange(4.0)[:, None], torch.view_as_real
FOR_EXECUTORCH = {"integers": "counts", "masks": "scattered", "products": "with a repeated column"}
GROUPS: dict[str, dict[str, Function]] = {
    "integers": {
        "counts": lambda z: z * (z > 0).cumsum(1) + z * (z > 0).int().sum(1, keepdim=True),
        "int16": lambda z: z * (z > 0).short().cumsum(1),
        "int32": lambda z: z * ((z * 3).int() * 2 - 1).float(),
        "quotients": lambda z: z * ((z * 10).int() // 3 + (z * 10).long() % -3),
        "of floats": lambda z: z % 0.7 + (z // 0.3).detach() + z.div(0.5, rounding_mode="trunc"),
        "one of two": lambda z: z * ((z > 0) ^ (z > 1)),
        "uint8 wraps": lambda z: z * ((z > 0).to(torch.uint8) * 200 + 100) / 100,
        "int8 wraps": lambda z: z * ((z > 0).to(torch.int8) * 100 + 100) / 100,
        "constant uint8": lambda z: z * torch.arange(16, dtype=torch.uint8),
    },
    "masks": {"written": masked, "scattered": lambda z: z.masked_scatter(z < 0, z.flip(1) * 0.3)},
    "extremes": {
        "of each row": lambda z: z * (z.min(1, keepdim=True)[0] + z.argmin(1, keepdim=True)),
        "of all": lambda z: torch.stack([r * r.min() * r.max() + r.argmax() for r in z.unbind()]),
        "running": lambda z: z.relu().cummax(1)[0] * z.cummin(1).values + z.cummin(1).indices,
    },
    "order": {
        "largest": lambda z: z.topk(4, 1)[0] * z.gather(1, z.topk(4, 1, largest=False).indices),
        "sorted": lambda z: z.relu().sort(1, descending=True)[0] * z.argsort(1),
        "sorted columns": lambda z: z.reshape(-1, 4, 4).sort(dim=1, stable=True)[0].cumsum(1),
        "sorted booleans": lambda z: z * (z > 0).sort(1)[0],
        "middle": lambda z: z * z.median(1, keepdim=True)[0] * z.kthvalue(3, 1, keepdim=True)[0],
    },
    "Fourier": {
        "magnitudes": lambda z: fft.rfft(z.relu() * (z > 0.5)).abs(),
        "filtered": lambda z: fft.irfft(fft.rfft(z) * torch.view_as_complex(FILTER), n=16),
        "parts of an odd number": lambda z: real(fft.rfft(z, n=15, norm="ortho")).tanh(),
        "of two axes": lambda z: fft.fftn(z.reshape(-1, 4, 4), dim=(1, 2)).real,
        "and back": lambda z: fft.irfft2(fft.rfft2(z.reshape(-1, 4, 4))[..., :2] * 2),
        "of two axes by place": lambda z: fft.irfft2(
            fft.rfft2(z.reshape(-1, 4, 4), None, (-1, -2)), (4, 4), (-1, -2)
        ),
        "of one axis": lambda z: fft.fftn(z.reshape(-1, 4, 4), dim=1).real,
        "of three axes": lambda z: fft.irfftn(
            fft.rfftn(z.reshape(-1, 4, 2, 2), s=(4, 2, 3), dim=(1, 2, 3)) * 2, dim=(1, 2, 3)
        ),
        "of frames": lambda z: abs(
            torch.stft(z.repeat(1, 3), 16, 8, window=torch.hann_window(16), return_complex=True)
        ),
        "of short frames": short_frames,
    },
    "products": {
        "of each row": lambda z: z * z.prod(1, keepdim=True) + (z > -2).prod(1, keepdim=True),
        "with zeros": lambda z: z.relu()[:, 1:].reshape(-1, 5, 3).prod(2),
        "running": lambda z: z.relu().cumprod(1),
        "with a repeated column": lambda z: z.view(-1, 4, 4) @ COLUMN.expand(4, 3),
    },
    "margins": {
        "replicated": lambda z: functional.pad(image(z), (2, 1, 1, 3), mode="replicate"),
        "and cut": lambda z: functional.pad(image(z), (2, -1, 1, -2), mode="replicate"),
    },
}
FEW = {name: GROUPS[group][name] for group, name in FOR_EXECUTORCH.items()}
EVERY = {name: each for group in GROUPS.values() for name, each in group.items()}


class Branches(nn.Module):
    """Functions side by side, each of a linear layer of its own, and a classifier."""

    def __init__(self, functions: dict[str, Function]) -> None:
        super().__init__()
        self.functions = list(functions.values())
        self.layers = nn.ModuleDict({name: nn.Linear(8, 16) for name in functions})
        width = sum(function(torch.ones(1, 16)).numel() for function in self.functions)
        self.last = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, 3) of x (B, 8)."""
        pairs = zip(self.functions, self.layers.values(), strict=True)
        logits: Tensor = self.last(torch.cat([f(layer(x)).flatten(1) for f, layer in pairs], 1))
        return logits


@pytest.mark.parametrize(
    ("functions", "backend"),
    [
        *((group, ONNXRUNTIME) for group in GROUPS.values()),
        pytest.param(FEW, EXECUTORCH, marks=pytest.mark.slow),
        pytest.param(EVERY, EXECUTORCH, marks=pytest.mark.slow),
    ],
    ids=[*GROUPS, "few", "every"],
)
def test_values_and_gradients(functions: dict[str, Function], backend: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
    model = Branches(functions)
    export(model, x, batch_size=4, name="f", num_classes=3, folder=tmp_path, backends=(backend,))
