"""FedSelect (Tamirisa et al. 2024, Algorithm 1): each device's set of personal elements grows every round.

For a device with mask m (1: personal), start th and trained model th+:

    start      th = its own last values on m, the global model elsewhere
    cloud      th_g[k] = mean of th+[k] over the devices with m[k] = 0
    GradSelect m' = m and, in each weight tensor, the share ``rate`` of the elements outside m that changed
               most, |th+ - th|, until m holds the share ``limit`` of the tensor

Here the cloud does the selection, as it gets th+ - th in the update. As in the authors' code, selection is
by tensor, vectors (biases) stay shared, an element that nobody shares keeps its value, and the mask during
the round decides which devices are averaged. Differences: personal and shared elements are trained
together, not in turn; devices are weighted by ``num_examples``; a mask never exceeds its limit. Elements
that a codec leaves out count as unchanged. n is the number of parameters, b the number of 16-bit words.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import shared_mean_change
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.codec.top_k import largest
from sedge_protocol.decimal_shares import floor_of
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Layout, Role

Mask = NDArray[np.bool_]  # (n,)

# The key of a device's mask in ``ClientModel.arrays``, with 16 bits per number, exact in float32.
MASK = "mask"


class FedSelect(FedAvg, frozen=True):
    """The FedSelect strategy."""

    name: ClassVar[str] = "fedselect"

    rate: Annotated[float, Meta(gt=0, le=1)] = 0.05
    """Share of a tensor's shared elements that become personal each round; the paper's p."""
    limit: Annotated[float, Meta(ge=0, le=1)] = 0.3
    """Maximum share of a tensor that is personal; the paper's alpha."""

    @property
    def coordinate_rules(self) -> bool:
        """Return False: only the devices that share an element are averaged.

        A coordinate-wise rule would use every device's value for every element.
        """
        return False

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Return a remark if no tensor is large enough to get a personal element."""
        layout = layouts[0]
        everything = np.ones(layout.size, np.float32)
        if self.grown(np.zeros(layout.size, np.bool_), everything, layout).any():
            return ()
        return (
            f"{self.name}: with rate {self.rate:g} and limit {self.limit:g}, no tensor gets a personal "
            "element, so this is FedAvg",
        )

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return the device's own values on its mask, extended by the elements that changed most."""
        layout = context.layout
        if client.trained is None:
            return Assignment()
        mask = read_mask(client.arrays.get(MASK), layout.size)
        if client.sent is not None:
            mask = self.grown(mask, client.sent.dense(), layout)
        indices = np.flatnonzero(mask).astype(np.uint32)
        if indices.size == 0:
            return Assignment()
        patch = SparseVector(layout.size, indices, client.trained[indices])
        return Assignment(patch, arrays={MASK: write_mask(mask)})

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the mean of every element over the devices that share it."""
        return context.moved(shared_mean_change(updates, context.theta))

    def grown(self, mask: Mask, change: NDArray[np.float32], layout: Layout) -> Mask:
        """Return ``mask`` (n,) plus, in each weight tensor, the elements outside it that changed most."""
        mask = mask.copy()
        for tensor in layout.tensors:
            if tensor.role is not Role.PARAMETER or len(tensor.shape) < 2:
                continue
            shared = np.flatnonzero(~mask[tensor.slice]) + tensor.offset
            room = floor_of(self.limit, tensor.size) - (tensor.size - shared.size)
            count = min(room, round(self.rate * shared.size))
            if count > 0:
                mask[shared[largest(change[shared], count)]] = True
        return mask


def write_mask(mask: Mask) -> NDArray[np.float32]:
    """Encode the mask (n,) as numbers (b,)."""
    packed = np.packbits(mask, bitorder="little")
    return np.pad(packed, (0, packed.size % 2)).view("<u2").astype(np.float32)


def read_mask(words: NDArray[np.float32] | None, size: int) -> Mask:
    """Decode the mask (n,) from numbers (b,); an all-False mask if there are none.

    Raises ``StrategyError`` if the numbers encode a mask of another size.
    """
    if words is None:
        return np.zeros(size, np.bool_)
    if words.shape != (-(-size // 16),):
        raise StrategyError(f"{MASK}: shape {words.shape} in memory, expected ({-(-size // 16)},)")
    bits = np.unpackbits(words.astype("<u2").view(np.uint8), count=size, bitorder="little")
    return bits.view(np.bool_)
