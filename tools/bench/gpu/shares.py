"""Reads the GPU's measured limits and expresses rates as shares of them. Does not import torch."""

from collections.abc import Iterable

import msgspec
from tools.bench.gpu.cells import Row

# Values of "what" in the rows of the stage "card".
CARD, PRODUCT, COPY = "card", "matrix product", "copy"


class Limits(msgspec.Struct, frozen=True):
    """The GPU's measured limits: operations per second for each precision, and bytes per second."""

    flops_s: dict[str, float] = {}
    bytes_s: float | None = None

    @classmethod
    def of(cls, rows: Iterable[Row]) -> "Limits":
        """Return the limits in the rows of the stage "card"."""
        rows = list(rows)
        products = [row for row in rows if row.setting["what"] == PRODUCT and row.figures]
        copies = [row for row in rows if row.setting["what"] == COPY and row.figures]
        flops = {str(row.setting["precision"]): row.figures["flops_s"] for row in products}
        return cls(flops, copies[0].figures["bytes_s"] if copies else None)

    def shared(self, row: Row) -> Row:
        """Return the row, with any rates in it also expressed as shares of the limits."""
        found = dict(row.figures)
        if "examples_s" not in found:
            return row
        peak = self.flops_s.get(str(row.setting.get("precision")))
        if peak and "flops_s" in found:
            found["of_peak"] = found["flops_s"] / peak
        if self.bytes_s and "bytes_s" in found:
            found["of_bandwidth"] = found["bytes_s"] / self.bytes_s
        return Row(row.setting, found, row.why)
