"""What the command and the functions share, without torch."""

from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME

# The runtimes that a bundle's programs are made for.
BACKENDS = (ONNXRUNTIME, EXECUTORCH)
# What the tensors that are not trained may be rounded to.
FROZEN_PRECISIONS = ("float32", "bf16", "int8")
# The largest error of a tensor's gradient beyond torch's own.
TOLERANCE = 1e-5
# What int8 may cost in accuracy, or add to a regression's relative error.
LARGEST_LOSS = 0.01
