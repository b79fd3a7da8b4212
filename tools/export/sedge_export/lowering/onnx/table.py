"""The table from ATen operator to its lowering, filled by the other modules of this package.

A lowering is a function ``(graph, *arguments) -> Value | tuple[Value | None, ...]`` whose arguments are
those of the ATen schema, tensors as ``Value``. It raises ``ExportError`` with the bare reason when ONNX
cannot express its arguments; the caller adds the operator and the module.
"""

from collections.abc import Callable
from typing import TypeAlias, TypeVar

from torch._ops import OpOverload

from sedge_export.lowering.onnx.graph import Value

Lowered: TypeAlias = Value | tuple[Value | None, ...]
Lowering: TypeAlias = Callable[..., Lowered]
Function = TypeVar("Function", bound=Lowering)

LOWERINGS: dict[OpOverload, Lowering] = {}


def lowers(*operators: OpOverload) -> Callable[[Function], Function]:
    """Enter the decorated function into the table for each operator."""

    def enter(function: Function) -> Function:
        for operator in operators:
            LOWERINGS[operator] = function
        return function

    return enter
