"""Verification: every program against plain eager torch, on steps, a whole epoch, and evaluation.

The reference is autograd and torch.optim.SGD on the user's own model, not on what was traced. Errors are
max |difference of theta| / max |change of theta|. Compilers do lose gradients silently, so each tensor's
gradient is compared on its own as well.

A float32 network has a few activations so near the kink of ReLU or a tie of max pooling that two orders of
summation decide them differently; one such activation moved a step of ResNet-8 by 7e-4 where 1e-6 is
usual. So a disagreement counts when it repeats on other batches: a wrong program fails on all.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from sedge_protocol.bundle import TensorSpec, Verification
from sedge_protocol.errors import ExportError
from sedge_protocol.layout import Layout, Theta
from torch import Tensor, nn

from sedge_export.network import Network, RowLoss, copied

Feed: TypeAlias = Mapping[str, NDArray[np.generic]]
Program: TypeAlias = Callable[[Feed], dict[str, NDArray[np.generic]]]

ATTEMPTS = 6
STEPS = 4
MOMENTUM = 0.9
PROX = 0.1
# The first step moves the largest parameter by this share of the largest: far above the rounding of
# theta itself (6e-8), far below where training becomes chaotic.
FIRST_MOVE = 0.02
# A tensor's own gradient may err by this many tolerances of its own largest element: small gradients
# carry more rounding, and lost ones are off by 1.
OWN_GRADIENT_FACTOR = 100
GRADIENT_FLOOR = 1e-6


@dataclass(frozen=True)
class Samples:
    """Rows to draw batches from: x (N, ...), y (N, ...)."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Batch:
    """One padded batch: the first ``rows`` rows are real, the others have weight 0."""

    x: Tensor
    y: Tensor
    w: Tensor
    rows: int


def load_program(data: bytes) -> Program:
    """A program in onnxruntime on one thread, from named arrays to named arrays."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]

    def run(feed: Feed) -> dict[str, NDArray[np.generic]]:
        return dict(zip(names, session.run(names, dict(feed)), strict=True))

    return run


def verify(
    programs: Mapping[str, bytes], model: nn.Module, network: Network, samples: list[Samples],
    batch_size: int, tolerance: float, seed: int,
) -> Verification:  # fmt: skip
    """The measured errors. Raises ``ExportError`` when one is above the tolerance every time."""
    loaded = {name: load_program(data) for name, data in programs.items()}
    worst = (0.0, 0.0)
    for source in samples:
        errors = _settled(loaded, model, network, source, batch_size, tolerance, seed)
        worst = max(worst[0], errors[0]), max(worst[1], errors[1])
    versions = {
        "onnx": _version("onnx"),
        "onnxruntime": _version("onnxruntime"),
        "torch": _version("torch"),
    }
    return Verification(*worst, tolerance, versions)
