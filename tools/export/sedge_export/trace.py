"""Tracing: a pure function of tensors becomes one ATen graph, with the rewrites that pay on any runtime."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, fx
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from sedge_export.lowering.table import LOWERINGS
from sedge_export.rewrite import pool_before_relu

aten = torch.ops.aten
Function: TypeAlias = Callable[..., Tensor | tuple[Tensor, ...]]


def trace(function: Function, inputs: Sequence[Tensor]) -> fx.GraphModule:
    """The ATen graph of function(*inputs): static shapes, no in-place operators, nothing dead.

    An operator is decomposed only when the table has no lowering for it.
    """
    decompositions = {
        op: how for op, how in torch.export.default_decompositions().items() if op not in LOWERINGS
    }

    def call(*tensors: Tensor) -> Tensor | tuple[Tensor, ...]:  # make_fx counts a method's self
        return function(*tensors)

    traced = make_fx(
        functionalize(call, remove="mutations"),
        decomposition_table=decompositions,
        tracing_mode="fake",
        _allow_non_fake_inputs=True,
    )(*inputs)
    pool_before_relu(traced.graph)
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced
