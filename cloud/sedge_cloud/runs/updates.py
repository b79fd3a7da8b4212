"""The updates of a round, decoded one after another as a strategy reaches them."""

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from sedge_cloud.runs.run import Run
from sedge_cloud.runs.vectors import Vectors
from sedge_cloud.store.rows import OrderRow, UpdateRow
from sedge_cloud.strategy import Update
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import Report


@dataclass(frozen=True)
class RoundUpdates:
    """Accepted updates on the global model ``base`` (n,), each decoded when the iteration reaches it.

    They can be iterated more than once. A device counts with at most the examples in its hello, and with
    one if that says none. A late update counts as the same change, but from ``base``: so neither its change
    nor what the fleet has learned since is lost.
    """

    run: Run
    vectors: Vectors
    base: Theta
    accepted: tuple[tuple[UpdateRow, OrderRow], ...]

    def __iter__(self) -> Iterator[Update]:
        for row, order in self.accepted:
            report = msgspec.msgpack.decode(row.report, type=Report)
            size = self.run.layout(order.width).size
            yield Update(
                row.device,
                min(report.num_examples, max(1, order.num_train)),
                self.vectors.theta(order.model, size) if order.model else self.base,
                self.vectors.applied_patch(order, size, report.patched),
                self.vectors.delta(size, row.blob, order.context),
                order.width,
                report.mix,
                order.trusted,
                report.steps,
            )
