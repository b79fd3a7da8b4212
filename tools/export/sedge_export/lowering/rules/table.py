"""The table from ATen operator to the rule that replaces it, filled by the other modules of this package.

A rule has the ATen operator's arguments and computes its result with simpler operators, in tensors: it is
traced, never run on a device. It raises ``ExportError`` with the bare reason when it does not cover its
arguments; the caller adds the operator and the module.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import torch
from torch._ops import OpOverload

Rule: TypeAlias = Callable[..., Any]
Function = TypeVar("Function", bound=Rule)

RULES: dict[OpOverload, Rule] = {}


@functools.cache
def decompositions() -> dict[OpOverload, Rule]:
    """torch's own decompositions, by operator."""
    return cast(dict[OpOverload, Rule], torch.export.default_decompositions().materialize())


def replaces(*operators: OpOverload) -> Callable[[Function], Function]:
    """Enter the decorated function into the table for each operator."""

    def enter(function: Function) -> Function:
        for operator in operators:
            RULES[operator] = function
        return function

    return enter
