"""Decides which devices learn from each other: those whose critical elements overlap most.

After round t, with m_i the set of critical elements of device i and |m_i| its size (Wu et al. 2023,
FedCAC):

    O_ij = 1 - |m_i xor m_j| / (2 |m_i|)         not symmetric where |m_i| and |m_j| differ
    T    = O_avg + t/beta (O_max - O_avg)        mean and largest over ordered pairs, i != j
    C_i  = {j != i : O_ij >= T}                  t = beta: the best pairs only; t > beta: nobody
    d_i  = the mean over i and C_i               on m_i; the strategy decides what is averaged

In the papers every device takes part in every round. Here only devices with an update in the round are
compared. An absent device keeps its last group, whose trusted members (``strategy.ClientModel``) contribute
their last updates. After round beta no device has a group. A device without critical elements gets no
group, and no new group includes it.

Masks are bitmaps of n bits in words of 64, compared by XOR and popcount. With n = 582,026, this takes 0.06
s for 100 devices and 6 s for 1000; with about 1500 devices or more, a cluster can help (``slices.py``).
Models of more than ``sample`` elements are compared only at ``sample`` places, which are the same for all
devices and rounds: one is drawn from each of ``sample`` equal stretches. For masks of equal size, the
standard error of the overlap is then at most 1 / (2 d sqrt(sample)), where d is the fraction of critical
elements. With 65,536 samples and d = .5 it is at most .004, and 1000 devices take 0.7 s.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, TypeAlias

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.slices import IN_PLACE, Compute
from sedge_cloud.strategy import EVERY_ELEMENT, ClientModel, Context, Groups, Strategy, Update
from sedge_protocol.codec import SparseVector, ValueCoding
from sedge_protocol.layout import MAX_PARAMETERS, Theta
from sedge_protocol.wire.work import Codec

Places: TypeAlias = NDArray[np.intp]
Words: TypeAlias = NDArray[np.uint64]

# The number of words of each mask to compare at once: 4 MB with 1000 devices, which fits in a CPU's cache.
_BLOCK = 512
# A cluster pays off once the number of pairs times words reaches _LARGE (tools/bench/overlaps.py). _SLICES
# is the number of slices to divide the work into.
_LARGE = 2 * 10**10
_SLICES = 32
_SEED = 5


class Grouped(Strategy, frozen=True):
    """The options of strategies that form groups; the defaults are those of the papers' authors."""

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Share of each tensor that is critical; the paper's tau."""
    beta: Annotated[int, Meta(ge=1, le=10**6)] = 100
    """Last round in which devices collaborate; half of all rounds in the papers."""
    overlap_sample: Annotated[int, Meta(ge=64, le=MAX_PARAMETERS)] = 2**21
    """Maximum number of elements to compare two devices by; larger models are sampled."""

    @property
    def codec(self) -> Codec:
        """Encode every element sent. The order or the update says which elements are sent or critical."""
        return EVERY_ELEMENT

    @property
    def patch_values(self) -> ValueCoding:
        """Return int8, because a patch holds about half of the model's elements."""
        return ValueCoding.INT8

    def masks(self, context: Context) -> "Masks":
        """Return a mask collector for a new round. It holds no masks yet."""
        return Masks(context.layout.size, self.overlap_sample)


@dataclass
class Masks:
    """Collects each device's mask in a round, packed into words, while the updates are iterated."""

    size: int
    sample: int
    words: dict[str, Words] = field(default_factory=dict[str, Words])

    def __post_init__(self) -> None:
        self._drawn = sampled_places(self.size, self.sample)

    def add(self, device: str, critical: Places) -> None:
        """Add a device's mask, given the places of its critical elements."""
        bits = np.zeros(self.size, np.bool_)
        bits[critical] = True
        self.words[device] = packed(bits if self._drawn is None else bits[self._drawn])


@dataclass(frozen=True)
class MaskRecorder:
    """Wraps a round's updates; iterating it also records each update's ``critical`` elements in ``masks``.

    It can be iterated as often as ``updates`` can. An update without a delta gets no mask.
    """

    updates: Iterable[Update]
    masks: Masks
    critical: Callable[[Update, SparseVector], Places]

    def __iter__(self) -> Iterator[Update]:
        for update in self.updates:
            if update.delta is not None and update.device not in self.masks.words:
                self.masks.add(update.device, self.critical(update, update.delta))
            yield update


def sampled_places(size: int, sample: int) -> Places | None:
    """Return, in ascending order, the places at which models of ``size`` elements are compared.

    Returns None if all elements are compared.
    """
    if size <= sample:
        return None
    edges = np.arange(sample + 1) * size // sample
    places: Places = np.random.default_rng(_SEED).integers(edges[:-1], edges[1:]).astype(np.intp)
    return places


def packed(bits: NDArray[np.bool_]) -> Words:
    """Pack bits (n,) into ceil(n / 64) words, padded with zeros."""
    words = np.zeros(-(-bits.size // 64), np.uint64)
    octets = np.packbits(bits, bitorder="little")
    words.view(np.uint8)[: octets.size] = octets
    return words


def overlaps(masks: list[Words], compute: Compute = IN_PLACE) -> NDArray[np.float64]:
    """Compute the overlaps O (N, N) of non-empty masks; the diagonal is 1."""
    count = len(masks)
    apart = np.zeros((count, count), np.int32)
    is_large = count * count * masks[0].size >= _LARGE
    slices = _of_equal_work(count, _SLICES if is_large else 1)
    where = compute if is_large else IN_PLACE
    for (low, high), found in zip(slices, where.map(_apart, masks, slices), strict=True):
        apart[low:high, low:] = found
    apart += apart.T
    ones = np.array([np.bitwise_count(words).sum(dtype=np.int64) for words in masks])
    overlap: NDArray[np.float64] = 1 - apart / (2 * ones[:, None])
    return overlap


def _of_equal_work(count: int, slices: int) -> list[tuple[int, int]]:
    """Split rows 0 to ``count`` into slices of about equal work; higher rows have fewer pairs."""
    ends = [count - round(count * (1 - part / slices) ** 0.5) for part in range(slices + 1)]
    return [(low, high) for low, high in pairwise(ends) if low < high]


def _apart(masks: list[Words], rows: tuple[int, int]) -> NDArray[np.int32]:
    """Count the differing bits |m_i xor m_j|, as an array (rows, N - low), for i in ``rows`` and j >= low.

    Entries with j <= i are 0 because each pair is counted only once.
    """
    low, high = rows
    apart = np.zeros((high - low, len(masks) - low), np.int32)
    for start in range(0, masks[0].size, _BLOCK):
        block = np.stack([words[start : start + _BLOCK] for words in masks[low:]])
        for i in range(high - low):
            differing = np.bitwise_count(block[i] ^ block[i + 1 :])
            # A block has at most 2**15 bits, which fits in uint16; a wider type would take three
            # times as long to sum.
            apart[i, i + 1 :] += differing.sum(axis=1, dtype=np.uint16)
    return apart


def threshold(overlap: NDArray[np.float64], number: int, beta: int) -> float:
    """Return the minimum overlap for two devices to collaborate after round ``number``, from 1 to beta.

    It rises linearly from the mean of the off-diagonal overlaps in O (N, N) to their maximum.
    """
    pairs = overlap[~np.eye(len(overlap), dtype=np.bool_)]
    mean, largest = float(pairs.mean()), float(pairs.max())
    return min(mean + number / beta * (largest - mean), largest)


def collaborators(
    masks: Mapping[str, Words], number: int, beta: int, compute: Compute = IN_PLACE
) -> dict[str, tuple[str, ...]]:
    """Return C_i of each device with collaborators after round ``number``, in the order of ``masks``."""
    names = [name for name, words in masks.items() if words.any()]
    if number > beta or len(names) < 2:
        return {}
    overlap = overlaps([masks[name] for name in names], compute)
    together = overlap >= threshold(overlap, number, beta)
    np.fill_diagonal(together, False)
    return {
        name: tuple(names[j] for j in np.flatnonzero(row))
        for name, row in zip(names, together, strict=True)
        if row.any()
    }


def next_groups(context: Context, masks: Masks, beta: int) -> Groups:
    """Return the groups that apply once the round after ``context`` has closed."""
    number = context.round + 1
    if number > beta:
        return {}
    new = collaborators(dict(sorted(masks.words.items())), number, beta, context.compute)
    absent = {name: group for name, group in context.groups.items() if name not in masks.words}
    return absent | new


def places(vector: SparseVector) -> Places:
    """Return the places of a vector's elements, in ascending order."""
    where = vector.where
    return np.arange(vector.size, dtype=np.intp) if isinstance(where, slice) else where


def trained_models(clients: Iterable[ClientModel]) -> Iterator[tuple[Theta, SparseVector]]:
    """Yield the trained model (n,) and the sent change of each client that has sent an update."""
    for client in clients:
        if client.trained is not None and client.sent is not None:
            yield client.trained, client.sent


def group_mean(
    critical: Places, models: Iterable[tuple[Theta, Places | slice | None]], counted: bool
) -> NDArray[np.float32]:
    """Compute d (k,), the mean of models (n,) at the places (k,) ``critical`` for the first one.

    Each model comes with the places that its device sent; None means all of them. With ``counted``, a place
    that a device did not send is left out of the mean; otherwise it counts as zero. The first device must
    have sent all of its critical elements.
    """
    total, count = np.zeros(critical.size, np.float64), np.zeros(critical.size, np.float64)
    for theta, sent in models:
        if sent is None:
            total += theta[critical]
            count += 1
            continue
        mark = np.zeros(theta.size, np.bool_)
        mark[sent] = True
        total += (theta * mark)[critical]  # this is five times as fast as intersecting the places
        count += mark[critical] if counted else 1
    return (total / count).astype(np.float32)
