"""Normalisation for XNNPACK: axes are in its order, channels last, and sums are products with ones."""

from torch import Tensor

from sedge_export.lowering.executorch.products import column_sums, example_sums
from sedge_export.lowering.rules.channels import channels_first, channels_last
from sedge_export.lowering.rules.normalization import Normalization, NormOperations
from sedge_export.lowering.rules.table import RULES


def _each(values: Tensor, x: Tensor) -> Tensor:
    if values.ndim == 1:
        return values
    return values.reshape(len(values), *[1] * (x.ndim - 2), x.shape[-1])


def _scaled(x: Tensor, factor: Tensor, offset: Tensor | None) -> Tensor:
    scaled = x * _each(factor, x)
    return scaled if offset is None else scaled + _each(offset, x)


NORMALIZATION = Normalization(
    NormOperations(channels_last, channels_first, column_sums, example_sums, _each, _scaled)
)
RULES.update(NORMALIZATION.rules)
