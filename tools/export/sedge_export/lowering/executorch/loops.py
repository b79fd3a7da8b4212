"""Unrolls loops over time, because ExecuTorch has none."""

from torch import Tensor

from sedge_export.lowering.rules.table import replaces
from sedge_export.recurrent.loop import LOOP, Tensors, unrolled
from sedge_protocol.errors import ExportError

# A GRU of 32 steps takes the compiler four times as long as an MLP.
MAX_STEPS = 32


@replaces(LOOP)
def short_loop(
    step: str, states: Tensors, sequences: Tensors, constants: Tensors, reverse: bool
) -> list[Tensor]:
    """Every step in the graph. Raises ``ExportError`` if there are too many."""
    count = len(sequences[0])
    if count > MAX_STEPS:
        raise ExportError(
            f"{count} steps of {step}, expected at most {MAX_STEPS}: ExecuTorch has no loops,"
            " onnxruntime has"
        )
    return unrolled(step, states, sequences, constants, reverse)
