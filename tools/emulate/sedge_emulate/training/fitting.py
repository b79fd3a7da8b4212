"""Computes how many devices train at once: on a GPU as many as its memory holds, up to a limit.

Memory is proportional to the number of devices at once. Each takes, in vectors of 4 n bytes:

    training     12 vectors, or 8 plus twice all tensors that autograd keeps of a batch plus twice the
                 largest of them
    evaluation   1 vector plus three times the largest such tensor, at the batch size of an evaluation

The 12 are theta, start, anchor, correction, two moments, the gradient whole and in pieces, the final
theta and gradient, and two temporaries of an optimizer's step; this is the most that a training uses.
Kept tensors count twice, as torch.func also keeps the backward pass. The tests compare this with the live
bytes of every step (``on_a_card``).

The exact results of a device may depend on the number of devices at once. Therefore it follows from
model, batch size, GPU and number of processes alone, never from the memory that happens to be free.
"""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sedge_emulate.training.convolutions import forms
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.tasks import Convolutions, Unsupported
from sedge_export.subject.network import copied

# The most devices at once: more of them would only overflow a CPU's cache.
WIDTHS = {"cpu": 8, "cuda": 128}
# The smallest batch size of an evaluation.
EVALUATION_ROWS = 64
_VECTORS = 12
_VECTORS_BACKWARD = 8
# The GPU memory that a process takes before any tensor (context, cuBLAS), and the share of memory
# reserved for examples, cuDNN's workspaces, and fragmentation.
_CONTEXT_BYTES = 2**30
_LEFT = 0.1


def fitting_width(
    problem: Problem,
    device: torch.device,
    convolutions: Convolutions = "grouped",
    graphs: bool = False,
    processes: int = 1,
) -> int:
    """The number of devices to train at once if ``processes`` processes share ``device``.

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
    """The number of devices that fit at once into ``memory`` bytes of a GPU."""
    usable = (1 - _LEFT) * memory - _CONTEXT_BYTES
    return max(0, int(usable // place_bytes(problem, convolutions, graphs)))


def place_bytes(
    problem: Problem, convolutions: Convolutions = "grouped", graphs: bool = False
) -> int:
    """The bytes that one device takes in training or in an evaluation, whichever is larger.

    With graphs it is the sum of both, because a graph keeps its memory.
    """
    kept = kept_bytes(problem, convolutions)
    vector, largest = 4 * problem.network.layout.size, max(kept, default=0)
    rows = evaluation_rows(problem) / problem.batch_size
    training = max(_VECTORS * vector, _VECTORS_BACKWARD * vector + 2 * (sum(kept) + largest))
    evaluation = round(vector + 3 * rows * largest)
    return training + evaluation if graphs else max(training, evaluation)


def evaluation_rows(problem: Problem) -> int:
    """The batch size of an evaluation."""
    return max(problem.batch_size, EVALUATION_ROWS)


def kept_bytes(problem: Problem, convolutions: Convolutions) -> list[int]:
    """The size in bytes of each tensor, except parameters, that autograd keeps of a forward pass."""
    model, dtype = copied(problem.module).train(), getattr(torch, problem.input.dtype)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    x = torch.zeros(problem.batch_size, *problem.input.shape, dtype=dtype)
    with torch.enable_grad(), forms(convolutions), saved_tensors_hooks(pack, lambda kept: kept):
        output = model(x)  # held, so that no kept tensor reuses the memory of another one
    del output
    return list(sizes.values())
