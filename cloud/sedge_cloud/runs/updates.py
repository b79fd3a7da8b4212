"""Decodes a round's updates one after another, as a strategy iterates over them."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import msgspec

from sedge_cloud.algorithms.outliers import Measured, measure
from sedge_cloud.runs.vectors import StoredVectors
from sedge_cloud.store.rows import OrderRow, UpdateRow
from sedge_cloud.strategy import Update, Width
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Report


@dataclass(frozen=True)
class RoundUpdates:
    """Accepted updates to the global model ``base`` (n,), each decoded when the iteration reaches it.

    They can be iterated more than once. A device's update is weighted by at most the number of examples in
    its hello, or by one if the hello gives none. A late update keeps its change, but is applied to
    ``base``, so neither its change nor the fleet's progress since is lost.
    """

    widths: tuple[Width, ...]
    vectors: StoredVectors
    base: Theta
    accepted: tuple[tuple[UpdateRow, OrderRow], ...]

    def __iter__(self) -> Iterator[Update]:
        return map(self._update, range(len(self.accepted)))

    def measured(self) -> list[Measured]:
        """Return the inputs of the outlier filter, reading a vector only if a receipt lacks its lengths."""
        return list(map(self._measure, range(len(self.accepted))))

    @cached_property
    def _known(self) -> list[tuple[UpdateRow, OrderRow, Report, int, int]]:
        """Return each update's row, report, number of examples and size, without decoding its vector."""
        known: list[tuple[UpdateRow, OrderRow, Report, int, int]] = []
        for row, order in self.accepted:
            report = msgspec.msgpack.decode(row.report, type=Report)
            examples = min(report.num_examples, max(1, order.num_train))
            known.append((row, order, report, examples, self.widths[order.width].layout.size))
        return known

    def _measure(self, i: int) -> Measured:
        row, order, _, examples, size = self._known[i]
        patch, delta = row.patch_length, row.delta_length
        # A late update's patch was measured relative to another model, so it is measured again.
        if patch is None or delta is None or (row.late and order.patch_hash):
            return measure(self._update(i))
        return Measured(row.device, examples, order.width, size, order.trusted, patch, delta)

    def _update(self, i: int) -> Update:
        row, order, report, examples, size = self._known[i]
        vectors, chose_none = self.vectors, report.patched is False
        return Update(
            row.device,
            examples,
            vectors.theta(order.model, size) if order.model else self.base,
            None if chose_none else vectors.patch(order, size),
            vectors.delta(size, row.blob, order.context),
            order.width,
            report.mix,
            order.trusted,
            report.steps,
            self.vectors.arrays(row.blob) if report.arrays else {},
        )
