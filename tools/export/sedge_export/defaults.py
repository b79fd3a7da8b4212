"""Constants that both the commands and the Python functions need, without torch."""

from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

# The runtimes that a bundle's programs are compiled for.
BACKENDS = (ONNXRUNTIME, EXECUTORCH)
# The precisions that tensors which are not trained may be rounded to.
FROZEN_PRECISIONS = ("float32", "bf16", "int8")
# The largest error of a tensor's gradient beyond torch's own.
TOLERANCE = 1e-5
# The accuracy that int8 may cost, or the amount that it may add to a regression's relative error.
LARGEST_LOSS = 0.01
