"""A loop over time as one operator of a traced graph, ``sedge::loop``, which a runtime can run as a loop.

A step takes the states, a slice of each sequence and the constants. It returns the next states and the
values to collect. A graph refers to a step by its name in ``STEPS``; the step itself is a function of
ordinary torch, which each target traces separately. The operator has no gradient of its own: ``cells``
defines one for each kind of layer.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode, register_flop_formula

Tensors: TypeAlias = Sequence[Tensor]
Shape: TypeAlias = tuple[int, ...]
Step: TypeAlias = Callable[[Tensors, Tensors, Tensors], tuple[Tensors, Tensors]]

STEPS: dict[str, Step] = {}

torch.library.define(
    "sedge::loop",
    "(str step, Tensor[] states, Tensor[] sequences, Tensor[] constants, bool reverse) -> Tensor[]",
)
LOOP = torch.ops.sedge.loop.default


def step(name: str) -> Callable[[Step], Step]:
    """Return a decorator that adds a function to ``STEPS`` under ``name``."""

    def enter(function: Step) -> Step:
        STEPS[name] = function
        return function

    return enter


def loop(
    step: str, states: Tensors, sequences: Tensors, constants: Tensors, reverse: bool
) -> list[Tensor]:
    """Run a loop, as one operator of a graph that is being traced.

    Returns the states after the last step, then everything that the steps collected, each (T, ...).
    With ``reverse``, steps run backwards through ``sequences`` (T, ...) and through the collected
    values.
    """
    found: list[Tensor] = LOOP(step, states, sequences, constants, reverse)
    return found


def unrolled(
    step: str, states: Tensors, sequences: Tensors, constants: Tensors, reverse: bool
) -> list[Tensor]:
    """Compute the same as ``loop`` with ordinary operators, step by step."""
    collected: list[Tensors] = []
    for at in range(len(sequences[0]))[:: -1 if reverse else 1]:
        states, given = STEPS[step](states, [each[at] for each in sequences], constants)
        collected.append(given)
    ordered = collected[:: -1 if reverse else 1]
    return [*states, *(torch.stack(list(each)) for each in zip(*ordered, strict=True))]


def _shapes(
    step: str, states: Tensors, sequences: Tensors, constants: Tensors, reverse: bool
) -> list[Tensor]:
    after, given = STEPS[step](states, [each[0] for each in sequences], constants)
    return [*after, *(each.new_empty(len(sequences[0]), *each.shape) for each in given)]


torch.library.impl("sedge::loop", "CompositeExplicitAutograd", unrolled)
torch.library.register_fake("sedge::loop", _shapes)


@register_flop_formula(torch.ops.sedge.loop, get_raw=True)
def _operations(
    step: str, states: Tensors, sequences: Tensors, constants: Tensors, reverse: bool, **_: Any
) -> int:
    with FlopCounterMode(display=False) as counter:
        STEPS[step](states, [each[0] for each in sequences], constants)
    return len(sequences[0]) * int(counter.get_total_flops())


def traced_step(
    step: str, states: int, moving: Sequence[Shape], constants: Sequence[Shape]
) -> fx.GraphModule:
    """Trace a step. Its results are the next states and the collected values, in order.

    ``moving`` lists the shapes of its ``states`` states, followed by the shapes of its slices.
    """

    def call(*tensors: Tensor) -> tuple[Tensor, ...]:
        given, held = tensors[: len(moving)], tensors[len(moving) :]
        after, collected = STEPS[step](given[:states], given[states:], held)
        return *after, *collected

    examples = [torch.zeros(shape) for shape in (*moving, *constants)]
    return make_fx(call, tracing_mode="fake")(*examples)
