"""Captures a function of tensors as a CUDA graph, so that one driver call launches all its kernels.

A graph always reads and writes the memory that it was captured with. So each call copies its inputs
there, and the next call overwrites the outputs. The function must neither wait for the GPU nor read a
tensor's values. Source: torch's notes on CUDA semantics, "CUDA Graphs", which also recommend the warm-up
runs.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from sedge_emulate.training.tasks import Unsupported

Function: TypeAlias = Callable[..., Sequence[Tensor]]

# The number of warm-up runs before a capture. During warm-up, libraries choose kernels and allocate
# workspaces.
_WARM_UP = 3


class Graphed:
    """A function of tensors on one GPU, captured once for each combination of shapes."""

    def __init__(self, function: Function, device: torch.device) -> None:
        self._function, self._device = function, device
        self._captures: dict[tuple[torch.Size, ...], _Capture] = {}

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor]:
        """Call the function. The next call overwrites the returned outputs.

        Raises ``Unsupported`` for a function that cannot be captured.
        """
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._captures:
            self._captures[shapes] = _Capture(self._function, inputs, self._device)
        return self._captures[shapes].run(inputs)


class _Capture:
    """One captured graph of a function, for inputs of fixed shapes."""

    def __init__(self, function: Function, inputs: Sequence[Tensor], device: torch.device) -> None:
        self._inputs = [tensor.clone() for tensor in inputs]
        self._graph = torch.cuda.CUDAGraph()
        try:
            aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
            aside.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(aside):
                for _ in range(_WARM_UP):
                    function(*self._inputs)
            torch.cuda.current_stream(device).wait_stream(aside)
            with torch.cuda.graph(self._graph):
                self._outputs = function(*self._inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as exc:
            raise Unsupported(
                f"its step cannot run as a CUDA graph (trainer.graphs = true): {exc}"
            ) from exc

    def run(self, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
        """Replay the graph with these inputs. Returns the same output tensors on every call."""
        for held, given in zip(self._inputs, inputs, strict=True):
            held.copy_(given)
        self._graph.replay()
        return self._outputs
