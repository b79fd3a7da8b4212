"""Constants that both the commands and the Python functions need, without torch."""

from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

# The runtimes that a bundle's programs are compiled for.
BACKENDS = (ONNXRUNTIME, EXECUTORCH)
# The precisions to which frozen tensors may be rounded.
FROZEN_PRECISIONS = ("float32", "bf16", "int8")
# The error that a gradient may have beyond torch's own in float32, as a share of its largest element.
TOLERANCE = 1e-5
# How much accuracy int8 may cost, or how much it may add to a regression's relative error.
LARGEST_LOSS = 0.01
