"""The batches that programs are verified on: random rows that resemble the sample, or the user's own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor

from sedge_protocol.wire.bundle import TensorSpec
from sedge_protocol.wire.objective import IGNORED
from sedge_protocol.wire.parts import InputPart, columns

DRAWN_BATCHES = 4  # the number of random rows, in batches


@dataclass(frozen=True)
class Samples:
    """Rows x (N, ...) and y (N, ...), from which batches are drawn."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class PaddedBatch:
    """One batch of fixed size. Rows from index ``rows`` on are padding and have weight 0.

    ``noise`` (K,) holds the random numbers that the model's forward pass uses in training.
    """

    x: Tensor
    y: Tensor
    w: Tensor
    rows: int
    noise: Tensor = field(default_factory=lambda: torch.empty(0))


def random_samples(
    sample: Tensor, target: TensorSpec | None, num_classes: int, batch_size: int, rng: Generator,
    parts: Sequence[InputPart] = (),
) -> Samples:  # fmt: skip
    """Draw random rows from the sample's values, so that indices stay valid.

    In every other row, one half is constant: real images have many equal neighbours, and these expose a
    faulty max pool. A constant float sample is replaced by normally distributed values. Without a
    target, y is x. Each of ``parts`` is drawn separately.
    """
    count = DRAWN_BATCHES * batch_size
    if parts:
        drawn = [
            _drawn(sample[:, places].reshape(-1, *part.shape), part.dtype == "int64", count, rng)
            for part, places in columns(parts)
        ]
        x = torch.cat([rows.reshape(count, -1) for rows in drawn], 1)
    else:
        x = _drawn(sample, not sample.is_floating_point(), count, rng)
    if target is None:
        y = x
    elif num_classes:
        y = torch.randint(num_classes, (count, *target.shape), generator=rng)
    else:
        y = torch.randn((count, *target.shape), generator=rng)
    return Samples(x, y)


def some_ignored(samples: Samples, rng: Generator) -> Samples:
    """Mask a random eighth of the labels y (N, ...), so that neither loss nor metric counts them."""
    left_out = torch.rand(samples.y.shape, generator=rng) < 1 / 8
    return Samples(samples.x, samples.y.masked_fill(left_out, IGNORED))


def whole_rows(sample: Tensor, like: Samples, rng: Generator) -> Samples:
    """Draw as many rows as ``like`` has, each taken unchanged from the sample (B, ...).

    This suits models whose columns hold different kinds of values, such as category codes, which would
    be invalid in another column.
    """
    x = sample[torch.randint(len(sample), (len(like.x),), generator=rng)]
    return Samples(x, x if like.y is like.x else like.y)


def _drawn(sample: Tensor, integers: bool, count: int, rng: Generator) -> Tensor:
    """Return random rows (count, ...) of one input."""
    shape = (count, *sample.shape[1:])
    pool = sample.reshape(-1)
    if not integers and bool((pool == pool[0]).all()):
        x = torch.randn(shape, generator=rng)
    else:
        x = pool[torch.randint(pool.numel(), shape, generator=rng)]
    if x.ndim > 1:
        x[::2, ..., : x.shape[-1] // 2] = pool[0]
    return x


def whole_batches(rows: Tensor, batch_size: int) -> list[Tensor]:
    """Cut rows (N, ...) into batches of equal size. The last batch is filled up with the first rows."""
    count = -(-len(rows) // batch_size)
    chosen = torch.arange(count * batch_size) % len(rows)
    return list(rows[chosen].reshape(count, batch_size, *rows.shape[1:]).unbind())


def draw(
    samples: Samples, batch_size: int, padded: bool, noise: int, rng: Generator
) -> PaddedBatch:
    """Draw a batch of random rows with ``noise`` random numbers; with ``padded``, two thirds are padding.

    Weights of real rows lie between 0.5 and 1.5, so that a program that ignores them fails the
    comparison.
    """
    chosen = torch.randint(len(samples.x), (batch_size,), generator=rng)
    rows = max(1, batch_size // 3) if padded else batch_size
    w = torch.rand(batch_size, generator=rng) + 0.5
    w[rows:] = 0.0
    numbers = torch.randint(2**16, (noise,), generator=rng) / 2**16  # as on a device
    return PaddedBatch(samples.x[chosen], samples.y[chosen], w, rows, numbers)
