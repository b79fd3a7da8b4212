"""Computes how many devices train at once: on a GPU as many as its memory holds, up to a limit.

Memory is proportional to the number of places. A place has, in vectors of 4 n bytes:

training 12 vectors, or 8 and twice what autograd keeps of a batch and twice the largest of that evaluation
1 vector, and three times the largest tensor, at an evaluation's rows

12 are theta, start, anchor, correction, two moments, the gradient whole and in pieces, theta and gradient
as they end, and two that an optimizer's step needs temporarily, for a training that uses all of them. Kept
tensors count twice, as torch.func also keeps the backward pass. The tests compare this with the live bytes
of every step (``on_a_card``).

A device's bits may depend on the width, which therefore follows from model, batch, card and number of
processes alone, never from what is free at the moment.
"""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sedge_emulate.training.convolutions import forms
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Convolutions, Unsupported
from sedge_export.subject.network import copied

# The most devices at once: on a CPU more would only spill its cache.
WIDTHS = {"cpu": 8, "cuda": 128}
# The fewest rows in an evaluation's batch.
EVALUATION_ROWS = 64
_VECTORS = 12
_VECTORS_BACKWARD = 8
# The GPU memory that a process takes before any tensor (its context, cuBLAS), and the share left to
# examples, workspaces of cuDNN, and gaps.
_CONTEXT_BYTES = 2**30
_LEFT = 0.1


def fitting_width(
    problem: Problem,
    device: torch.device,
    convolutions: Convolutions = "grouped",
    graphs: bool = False,
    processes: int = 1,
) -> int:
    """The number of devices that train at once on a device shared by this many processes.

    Raises ``Unsupported`` if not even one fits.
    """
    limit = WIDTHS[device.type]
    if device.type == "cpu":
        return limit
    memory = torch.cuda.get_device_properties(device).total_memory
    most = most_devices(problem, memory // processes, convolutions, graphs)
    if most < 1:
        shared = f" for {processes} processes (workers)" if processes > 1 else ""
        place = place_bytes(problem, convolutions, graphs)
        needed = (place + _CONTEXT_BYTES) / (1 - _LEFT) * processes
        raise Unsupported(
            f"{device} has {memory / 1e9:.1f} GB{shared}, and one device of this model takes"
            f" {needed / 1e9:.1f}"
        )
    return min(limit, most)


def most_devices(
    problem: Problem, memory: int, convolutions: Convolutions = "grouped", graphs: bool = False
) -> int:
    """The number of devices that fit at once into this many bytes of GPU memory."""
    usable = (1 - _LEFT) * memory - _CONTEXT_BYTES
    return max(0, int(usable // place_bytes(problem, convolutions, graphs)))


def place_bytes(
    problem: Problem, convolutions: Convolutions = "grouped", graphs: bool = False
) -> int:
    """The bytes of one device in training, or in an evaluation if that takes more.

    A graph keeps its memory, so with graphs it is the sum of both.
    """
    kept = kept_bytes(problem, convolutions)
    vector, largest = 4 * problem.network.layout.size, max(kept, default=0)
    rows = evaluation_rows(problem) / problem.batch_size
    training = max(_VECTORS * vector, _VECTORS_BACKWARD * vector + 2 * (sum(kept) + largest))
    evaluation = round(vector + 3 * rows * largest)
    return training + evaluation if graphs else max(training, evaluation)


def evaluation_rows(problem: Problem) -> int:
    """The rows of an evaluation's batch."""
    return max(problem.batch_size, EVALUATION_ROWS)


def kept_bytes(problem: Problem, convolutions: Convolutions) -> list[int]:
    """The bytes of each tensor that autograd keeps of a batch's forward pass, parameters aside."""
    model, dtype = copied(problem.module).train(), getattr(torch, problem.input.dtype)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    x = torch.zeros(problem.batch_size, *problem.input.shape, dtype=dtype)
    with torch.enable_grad(), forms(convolutions), saved_tensors_hooks(pack, lambda kept: kept):
        output = model(x)  # held, so that the memory of kept tensors is not reused
    del output
    return list(sizes.values())
