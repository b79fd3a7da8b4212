"""Idioms of people's models: what ``forward`` makes without its input, writes, draws and differentiates.

Each is a branch of one network. ``export`` compares every branch's gradients with autograd's in float64.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from tests.export.layers import Beside, Lambda
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sedge_export import export

torch.set_num_threads(1)

BATCH, UNITS = 4, 16
TABLE = torch.zeros(UNITS)


class Idiom(nn.Module):
    """A function of itself and of z (B, 16); ``table`` is a buffer (16, 16)."""

    def __init__(self, function: "Function") -> None:
        super().__init__()
        self.layer = nn.Linear(8, UNITS)
        self.function = function
        self.table: Tensor
        self.register_buffer("table", torch.rand(UNITS, UNITS))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x[:, 0]))


Function: TypeAlias = Callable[[Idiom, Tensor], Tensor]


def causal() -> Tensor:
    return nn.Transformer.generate_square_subsequent_mask(6)


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


def questioned(_: Idiom, z: Tensor) -> Tensor:
    """A path that depends on a constant's values."""
    mask = torch.tril(torch.ones(UNITS, UNITS)).bool()
    if mask.all():
        return z + 1
    return z.masked_fill(~mask[3], 0)


def diagonal(m: Idiom, z: Tensor) -> Tensor:
    """A copy of a buffer that is written into, by places."""
    table, places = m.table.clone(), torch.arange(UNITS)
    table[places, places] = 2.0
    return z @ table


def written(m: Idiom, z: Tensor) -> Tensor:
    """Copies of a buffer and of a global that are written into, by slices."""
    table, row = m.table.clone(), TABLE.clone()
    table[:, :4] = 0.5
    row[2:] = 1.0
    return z @ table * row


def placed(_: Idiom, z: Tensor) -> Tensor:
    """One value for each element of a known mask, and numpy's integer beside a mask of data."""
    z, mask = z.clone(), torch.arange(UNITS) < 3
    z[:, mask] = z[:, 3:6]
    z[:, mask.flip(0)] = torch.arange(3.0)
    z[z[:, 0] > 0, np.int64(5)] = 0.5
    return z


def relative(m: Idiom, z: Tensor) -> Tensor:
    """A bias by clipped distance."""
    places = torch.arange(4)
    distance = (places[:, None] - places).abs().clamp(max=2)
    return z.view(-1, 4, 4) + m.table[:3, 0][distance]


def read(_: Idiom, z: Tensor) -> Tensor:
    """A constant's values, in numpy and in Python."""
    places = torch.arange(UNITS)
    scale = torch.from_numpy(places.numpy() * 2).float() + np.asarray(places).max()
    found: Tensor = z[:, places[:3].tolist()] * scale[:3] * float(places[1])
    return found


def interpolated(m: Idiom, z: Tensor) -> Tensor:
    """A table that is resized before it is added."""
    table = F.interpolate(m.table[None, None], size=(4, 4), mode="bicubic", antialias=True)
    found: Tensor = z.view(-1, 4, 4) + table[0]
    return found


def mapped(m: Idiom, z: Tensor) -> Tensor:
    """A mask and a product by torch.vmap."""
    places = torch.arange(UNITS)

    def product(row: Tensor) -> Tensor:
        later: Tensor = torch.vmap(places.__le__)(places)
        return row @ (m.table * later)

    found: Tensor = torch.vmap(product)(z)
    return found


def checkpointed(_: Idiom, z: Tensor) -> Tensor:
    """A layer that is computed again in the backward pass."""
    found: Tensor = checkpoint(torch.tanh, z, use_reentrant=False)
    return found


class Rectified(torch.autograd.Function):
    """The old form of a function: one ``forward`` with its context."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gradient = gradients[0].clone()
        gradient[x < 0] = 0
        return gradient


# Bound here, where nothing that is replaced later can reach it.
rectified: Callable[[Tensor], Tensor] = Rectified.apply


def hooked(layer: Any, x: Tensor) -> Tensor:
    """Installs a hook when it is first called and remembers that it has, as transformers' models do."""

    def doubled(_layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return 2 * output

    if "is_hooked" not in vars(layer):
        layer.register_forward_hook(doubled)
        vars(layer)["is_hooked"] = True
    found: Tensor = layer(x)
    return found


def drawn(draw: Function) -> Function:
    """A function that draws random numbers, in training alone."""
    return lambda m, z: draw(m, z) if m.training else z


# Bound here, as by ``from torch.nn.functional import dropout``.
dropout = F.dropout

FUNCTIONS: dict[str, Function] = {
    "a constant's path": questioned,
    "one-hot constants": lambda m, z: F.one_hot(torch.arange(UNITS) % 4).sum(1) * z,
    "identity": lambda m, z: z @ torch.eye(UNITS),
    "index arithmetic": lambda m, z: z[:, (torch.arange(UNITS) // 4 * 4 ^ 3) % UNITS],
    "diagonal": diagonal,
    "written": written,
    "placed by a known mask": placed,
    "relative positions": relative,
    "read": read,
    "interpolated": interpolated,
    "mapped": mapped,
    "function": lambda m, z: rectified(z),
    "checkpoint": checkpointed,
    "one-hot classes": lambda m, z: F.one_hot(z.argmax(1), UNITS) * z,
    "chosen by a mask": lambda m, z: z[:, torch.arange(UNITS) % 3 == 0],
    "bicubic": lambda m, z: F.interpolate(z.view(-1, 1, 4, 4), size=(7, 6), mode="bicubic"),
    "uniform": drawn(lambda m, z: z * torch.empty(len(z), 1).uniform_(0.8, 1.2)),
    "normal": drawn(lambda m, z: z + 0.1 * torch.randn_like(z)),
    "exponential": drawn(lambda m, z: F.gumbel_softmax(z)),
    "alpha dropout": drawn(lambda m, z: F.alpha_dropout(z, 0.3, training=True)),
    "dropout bound at import": lambda m, z: dropout(z, 0.2, m.training),
}


def over_time() -> list[nn.Module]:
    """Layers over time, with keyword arguments that are made in ``forward``."""
    transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    lstm = nn.LSTM(8, 8, 2, dropout=0.2, batch_first=True)
    return [
        Lambda(hooked, nn.Linear(8, 2)),
        Lambda(lambda layer, x: layer(x, mask=causal()), encoder()),
        Lambda(lambda layer, x: layer(x, x, tgt_mask=causal()), transformer),
        Lambda(lambda layer, x: layer(x)[0][:, -1], lstm),
    ]


def test_idioms(tmp_path: Path) -> None:
    torch.manual_seed(0)
    compiled: Callable[[Tensor], Tensor] = torch.compile(torch.sin, backend="eager")
    functions: list[Function] = [*FUNCTIONS.values(), lambda m, z: compiled(z)]
    model = nn.Sequential(Beside(*map(Idiom, functions), *over_time()), nn.LazyLinear(3))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        model.eval()(torch.zeros(BATCH, 6, 8))
    manifest = export(
        model, torch.randn(BATCH, 6, 8), batch_size=BATCH, name="idioms", num_classes=3,
        folder=tmp_path,
    )  # fmt: skip
    assert manifest.verification is not None
    assert manifest.verification.step_error <= manifest.verification.tolerance
