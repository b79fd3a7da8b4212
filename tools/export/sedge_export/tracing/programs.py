"""The second stage: traces the graphs of a model's programs."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from sedge_export.stages import Inspected, Traced, Where
from sedge_export.subject.source import bare_name
from sedge_export.tracing.constants import Origins
from sedge_export.tracing.trace import Function, multiply_adds, trace
from sedge_protocol.wire.objective import CONSTANTS, COUNTS
from sedge_protocol.wire.programs import GUIDED


def trace_programs(inspected: Inspected) -> Traced:
    """Trace the graphs of all programs. Raises the same errors as ``trace``."""
    network, x = inspected.subject.network, inspected.subject.x
    functions: dict[str, Function] = {
        "gradient": network.gradient,
        "evaluate": network.evaluate,
        "predict": network.predict,
        GUIDED: network.guided,
    }
    theta = torch.from_numpy(network.theta)
    inputs = {
        "theta": theta,
        "x": x,
        "y": inspected.sources[0].y[: len(x)],
        "w": torch.ones(len(x)),
        "noise": torch.full((inspected.noise,), 0.5),
        "start": theta.clone(),  # a separate tensor, because a trace tells tensors apart by identity
        "previous": theta.clone(),
        CONSTANTS: torch.ones(0 if inspected.guide is None else inspected.guide.constants),
        COUNTS: torch.ones(inspected.subject.num_classes),
        **{name: torch.from_numpy(values) for name, values in inspected.constant.items()},
    }
    graphs: dict[str, fx.GraphModule] = {}
    origins: Origins = {}
    for name, signature in inspected.signatures.items():
        network.model.train(name in ("gradient", GUIDED))
        names, function = signature.inputs, functions[name]
        with network.unchanged():
            graphs[name] = trace(_ordered(function, names), [inputs[key] for key in names], origins)
    costs = {name: multiply_adds(graph) for name, graph in graphs.items()}
    return Traced(graphs, inspected.signatures, costs, _where(inspected.where, origins))


def _where(model: Where, origins: Origins) -> Where:
    """Locate an operator in the model or, failing that, in the user's loss or metric."""
    lines = {bare_name(operator): line for operator, line in origins.items() if line}

    def where(operator: OpOverload) -> str:
        line = lines.get(bare_name(operator))
        return model(operator) or (f" ({line})" if line else "")

    return where


def _ordered(
    function: Callable[..., Tensor | tuple[Tensor, ...]], names: Sequence[str]
) -> Function:
    """Wrap a function of keyword arguments so that it takes them by position, in the order of ``names``."""
    return lambda *inputs: function(**dict(zip(names, inputs, strict=True)))
