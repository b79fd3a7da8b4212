"""Computes how many devices train at once: on a GPU as many as its memory holds, up to a limit.

Memory use grows in proportion to that number. In vectors of 4 n bytes, n being the number of parameters,
each device takes:

    training     12 vectors or, if that is more, 8 vectors plus twice all tensors that autograd saves for
                 a batch plus twice the largest of them
    evaluation   1 vector plus three times the largest such tensor, at the batch size for evaluation

The 12 vectors are theta, start, anchor, correction, two moments, the gradient whole and in pieces, the
final theta and gradient, and two temporaries of an optimizer's step; no training uses more. Saved tensors
count twice, because torch.func also keeps the backward pass. The tests compare these figures with the
bytes in use at every step (``on_a_card``).

The exact results of a device may depend on the number of devices at once. Therefore this number depends
only on the model, the batch size, the GPU and the number of processes, never on how much memory happens
to be free.
"""

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from sedge_emulate.training.convolutions import forms
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Convolutions, Unsupported
from sedge_export.subject.network import copied

# The maximum number of devices at once. On a CPU, more would only overflow its cache.
WIDTHS = {"cpu": 8, "cuda": 128}
# The smallest batch size for an evaluation.
EVALUATION_ROWS = 64
_VECTORS = 12
_VECTORS_BACKWARD = 8
# The GPU memory that a process takes before it creates any tensor (context, cuBLAS), and the share of
# memory reserved for examples, cuDNN's workspaces, and fragmentation.
_CONTEXT_BYTES = 2**30
_LEFT = 0.1


def fitting_width(
    problem: TrainingProblem,
    device: torch.device,
    convolutions: Convolutions = "grouped",
    graphs: bool = False,
    processes: int = 1,
) -> int:
    """Return the number of devices to train at once if ``processes`` processes share ``device``.

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
            f"{device} has {memory / 1e9:.1f} GB{shared}, and one device of this model needs"
            f" {needed / 1e9:.1f}"
        )
    return min(limit, most)


def most_devices(
    problem: TrainingProblem,
    memory: int,
    convolutions: Convolutions = "grouped",
    graphs: bool = False,
) -> int:
    """Return how many devices fit into ``memory`` bytes of a GPU at once."""
    usable = (1 - _LEFT) * memory - _CONTEXT_BYTES
    return max(0, int(usable // place_bytes(problem, convolutions, graphs)))


def place_bytes(
    problem: TrainingProblem, convolutions: Convolutions = "grouped", graphs: bool = False
) -> int:
    """Return the bytes that one device takes in training or in evaluation, whichever is larger.

    With graphs, return the sum of the two, because a graph keeps its memory.
    """
    kept = kept_bytes(problem, convolutions)
    vector, largest = 4 * problem.network.layout.size, max(kept, default=0)
    rows = evaluation_rows(problem) / problem.batch_size
    training = max(_VECTORS * vector, _VECTORS_BACKWARD * vector + 2 * (sum(kept) + largest))
    evaluation = round(vector + 3 * rows * largest)
    return training + evaluation if graphs else max(training, evaluation)


def evaluation_rows(problem: TrainingProblem) -> int:
    """Return the batch size for an evaluation."""
    return max(problem.batch_size, EVALUATION_ROWS)


def kept_bytes(problem: TrainingProblem, convolutions: Convolutions) -> list[int]:
    """Return the sizes in bytes of the tensors, excluding parameters, that autograd saves for backward."""
    model, dtype = copied(problem.module).train(), getattr(torch, problem.input.dtype)
    parameters = {parameter.data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in parameters:
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    x = torch.zeros(problem.batch_size, *problem.input.shape, dtype=dtype)
    with torch.enable_grad(), forms(convolutions), saved_tensors_hooks(pack, lambda kept: kept):
        output = model(x)  # kept alive, so that no saved tensor reuses another's memory
    del output
    return list(sizes.values())
