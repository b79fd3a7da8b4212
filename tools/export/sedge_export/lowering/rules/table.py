"""The table that maps ATen operators to rules that replace them; the modules in this package fill it.

A rule has its ATen operator's arguments and computes the same result with simpler tensor operators. It is
only traced, never run on a device. It raises ``ExportError`` with only the reason if it does not support
its arguments; the caller adds the operator and the module.
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
    """Return torch's own decompositions, by operator."""
    return cast(dict[OpOverload, Rule], torch.export.default_decompositions().materialize())


def replaces(*operators: OpOverload) -> Callable[[Function], Function]:
    """Return a decorator that adds a function to the table for each of the given operators."""

    def enter(function: Function) -> Function:
        for operator in operators:
            RULES[operator] = function
        return function

    return enter
