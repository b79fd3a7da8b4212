"""Unrolls loops over time, because ExecuTorch has no loops."""

from torch import Tensor

from sedge_export.lowering.rules.table import replaces
from sedge_export.recurrent.loop import LOOP, Tensors, unrolled
from sedge_protocol.errors import ExportError

# The limit keeps compilation short: a GRU unrolled to 32 steps takes four times as long to compile as an
# MLP.
MAX_STEPS = 32


@replaces(LOOP)
def short_loop(
    step: str, states: Tensors, sequences: Tensors, constants: Tensors, reverse: bool
) -> list[Tensor]:
    """Unroll the loop into the graph. Raises ``ExportError`` if it has too many steps."""
    count = len(sequences[0])
    if count > MAX_STEPS:
        raise ExportError(
            f"{count} steps of {step}, expected at most {MAX_STEPS}: ExecuTorch has no loops,"
            " but onnxruntime does"
        )
    return unrolled(step, states, sequences, constants, reverse)
