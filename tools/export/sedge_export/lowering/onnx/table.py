"""The table that maps ATen operators to their lowerings; the other modules in this package fill it.

A lowering is a function ``(graph, *arguments) -> Value | tuple[Value | None, ...]``. Its arguments are
those of the ATen schema, with tensors as ``Value``. It raises ``ExportError`` with only the reason if
ONNX cannot express its arguments; the caller adds the operator and the module.
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
    """Return a decorator that adds a function to the table for each of the given operators."""

    def enter(function: Function) -> Function:
        for operator in operators:
            LOWERINGS[operator] = function
        return function

    return enter
