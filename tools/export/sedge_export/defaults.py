"""Constants that both the commands and the Python functions need, without torch."""

from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

# The runtimes that a bundle's programs are compiled for.
BACKENDS = (ONNXRUNTIME, EXECUTORCH)
# The precisions to which tensors that are not trained may be rounded.
FROZEN_PRECISIONS = ("float32", "bf16", "int8")
# How far a tensor's gradient may be off in addition to torch's own float32 error.
TOLERANCE = 1e-5
# The accuracy that int8 may cost, or how much it may add to the relative error of a regression.
LARGEST_LOSS = 0.01
