"""Steps as CUDA graphs. Here a stand-in records a capture's operators and runs them again in its memory."""

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tests.emulate.training import trainings
from tests.emulate.training.trainings import PLAIN, PULLED, problem
from tests.fleet import failing
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sedge_emulate.training.graphs import Graphed
from sedge_emulate.training.tasks import Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer

CPU = torch.device("cpu")


class Recorded(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """``torch.cuda.CUDAGraph`` on a CPU: as there, nothing but the operators is seen again."""

    made: list["Recorded"]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []
        self.replays = 0
        Recorded.made.append(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        self._calls.append((func, args, kwargs or {}, outputs))
        return outputs

    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, outputs in self._calls:
            again = func(*args, **kwargs)
            for held, made in zip(tree_leaves(outputs), tree_leaves(again), strict=True):
                if isinstance(held, Tensor) and held.data_ptr() != made.data_ptr():
                    held.copy_(made)


class Stream:
    """``torch.cuda.Stream`` on a CPU."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def wait_stream(self, other: "Stream") -> None:
        """Nothing is under way."""


@contextmanager
def capturing(graph: Recorded) -> Generator[None]:
    with graph:
        yield


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recorded]:
    """The graphs that are captured."""
    Recorded.made = []
    stands = {"CUDAGraph": Recorded, "graph": capturing, "stream": nullcontext}
    for name, stand in {**stands, "Stream": Stream, "current_stream": Stream}.items():
        monkeypatch.setattr(torch.cuda, name, stand)
    return Recorded.made


@pytest.mark.parametrize("model", ["cnn", "batchnorm"])
def test_a_graph_changes_no_bit(model: str, made: list[Recorded]) -> None:
    of = problem(model)
    plain, graphed = (VectorisedTrainer(of, "fp32", CPU, 2, graphs=on) for on in (False, True))
    for training in (PLAIN, PULLED):
        tasks = [trainings.with_(task, gradient=True) for task in trainings.devices(of, training)]
        pairs = zip(trainings.trained(plain, tasks), trainings.trained(graphed, tasks), strict=True)
        for one, other in pairs:
            assert one.theta.tobytes() == other.theta.tobytes()
            assert one.loss == other.loss
            assert one.gradient is not None and other.gradient is not None
            assert one.gradient.tobytes() == other.gradient.tobytes()
    models = [(of.network.theta, trainings.examples(of.input.shape, 200, seed)) for seed in (0, 1)]
    assert plain.evaluate(models) == graphed.evaluate(models)
    # One of a step's gradients and one of an evaluation, whatever blocks there are.
    assert [graph.replays for graph in made] == [3 + 1 + 6 + 2, 4]


def doubled(x: Tensor) -> list[Tensor]:
    return [2 * x]


def test_each_shape_has_its_graph(made: list[Recorded]) -> None:
    graphed = Graphed(doubled, CPU)
    for x in (torch.ones(2), torch.ones(3), 3 * torch.ones(2)):
        (twice,) = graphed(x)
        assert twice.tolist() == (2 * x).tolist()
    assert [graph.replays for graph in made] == [2, 1]


@pytest.mark.usefixtures("made")
def test_a_step_that_cannot_be_captured_says_so_and_memory_that_runs_out_is_not_its_fault() -> None:
    expected = r"CUDA graph \(trainer.graphs = true\): .*not permitted"
    for error, kind, message in (
        (RuntimeError("operation not permitted when stream is capturing"), Unsupported, expected),
        (torch.OutOfMemoryError("full"), torch.OutOfMemoryError, "full"),
    ):
        with failing(torch.cuda, "graph", error), pytest.raises(kind, match=message):
            Graphed(doubled, CPU)(torch.ones(2))
