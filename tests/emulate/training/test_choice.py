"""Which trainer a run has: by rule, and checked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.emulate.training.trainings import BATCH, problem
from tests.fleet import failing
from torch import nn

from sedge_edge.training.batches import permutations
from sedge_emulate.training import choice
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.checks import Wrong
from sedge_emulate.training.choice import open_trainer, ruled
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Convolutions, FleetTrainer, Precision, Task, Unsupported
from sedge_export import export
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import TensorSpec, load

OF = problem("mlp")


def opened(
    of: TrainingProblem = OF, name: str = "auto", precision: Precision = "fp32", device: str = "cpu",
    tf32: bool = False, graphs: bool = False, convolutions: Convolutions = "grouped",
) -> FleetTrainer:  # fmt: skip
    return open_trainer(
        of.module, of.objective, of.batch_size, of.input,
        name=name, precision=precision, device=device,
        tf32=tf32, graphs=graphs, convolutions=convolutions,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("device", "model", "programs", "name"),
    [
        ("cpu", "mlp", True, "onnx"),
        ("cpu", "mlp", False, "autograd"),
        ("cpu", "cnn", True, "autograd"),
        ("cuda", "mlp", True, "vectorised"),
        ("cuda", "cnn", False, "vectorised"),
    ],
)
def test_the_rule(device: str, model: str, programs: bool, name: str) -> None:
    assert ruled(device, problem(model).network.layout, programs) == name


def another(seed: int, num_examples: int, epochs: int) -> Iterator[NDArray[np.int64]]:
    """The order that somebody else's run had."""
    return iter([np.arange(num_examples)] * epochs)


def test_programs_train_where_there_are_any(tmp_path: Path) -> None:
    sample = torch.randn(OF.batch_size, *OF.input.shape)
    export(OF.module, sample, batch_size=BATCH, name="it", num_classes=5, folder=tmp_path)
    model = (OF.module, OF.objective, BATCH, OF.input)
    for shuffles, name in (permutations, "onnx"), (another, "autograd"):
        found = open_trainer(*model, bundle=load(tmp_path)[0], shuffles=shuffles)
        assert found.name == name


def unusable(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU that torch finds and cannot use."""
    right = torch.ones

    def ones(*size: int, device: torch.device | None = None) -> torch.Tensor:
        if device == torch.device("cuda"):
            raise error
        return right(*size, device=device)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", ones)


OLD = "The NVIDIA driver is too old (found version 11040). Please update your GPU driver."
UNUSABLE = {
    "no CUDA": (AssertionError("Torch not compiled with CUDA enabled"), "not compiled with CUDA"),
    "no driver": (RuntimeError("Found no NVIDIA driver on your system."), "Found no NVIDIA driver"),
    "an old driver": (RuntimeError(OLD), r"too old \(found version 11040\)"),
    "an old card": (
        RuntimeError("CUDA error: no kernel image is available\nFor debugging, pass\nCUDA_LAUNCH"),
        "no kernel image is available$",
    ),
    "a full card": (torch.OutOfMemoryError("CUDA out of memory."), "out of memory"),
}


@pytest.mark.parametrize(("error", "line"), UNUSABLE.values(), ids=UNUSABLE)
def test_a_gpu_that_cannot_be_used_is_one_line_and_auto_goes_on_with_the_cpu(
    error: Exception, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unusable(error, monkeypatch)
    expected = rf"^trainer\.device: found 'cuda', expected a device.*{line}"
    with pytest.raises(ConfigError, match=expected) as caught:
        opened(device="cuda")
    assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match=rf"^trainer\.device: training on the CPU: .*{line}"):
        assert opened(device="auto", tf32=True).name == "autograd"


def test_auto_goes_on_where_one_device_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    full = Unsupported("cuda has 2.1 GB, and one device of this model needs 3.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(choice, "_device", torch.device)
    with failing(choice, "VectorisedTrainer", full):
        with pytest.warns(UserWarning, match=r"training on the CPU: .*2\.1 GB, and one device"):
            assert opened(device="auto").name == "autograd"
        with pytest.raises(ConfigError, match=r"trainer: found 'vectorised', .*2\.1 GB"):
            opened(device="cuda")


def test_auto_does_not_hide_what_no_gpu_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(choice, "_device", torch.device)
    expected = r"trainer\.tf32: found True, expected false with precision"
    with pytest.raises(ConfigError, match=expected):
        opened(device="auto", precision="bf16", tf32=True)


def test_an_operator_that_torch_does_not_have_is_named() -> None:
    """torch 2.13 has no rule for a GRU of many devices in an evaluation."""
    expected = r"trainer: found 'vectorised', expected a backend that supports this model: torch \S+ cannot"
    with pytest.raises(ConfigError, match=rf"^{expected} run it on cpu: .*gru") as caught:
        opened(problem("recurrent"), name="vectorised")
    assert "\n" not in str(caught.value)


def test_device_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which none of what a GPU may do concerns."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    trainer = opened(device="auto", tf32=True, graphs=True, convolutions="unfold")
    assert trainer.name == "autograd"


def test_the_chosen_form_reaches_the_trainer() -> None:
    """It refuses what it does not have."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv3d(1, 2, 2), nn.Flatten(), nn.Linear(2, 2))
    of = TrainingProblem(module, OF.objective, 2, TensorSpec("float32", (1, 2, 2, 2)))
    with pytest.raises(ConfigError, match=r"trainer: found 'vectorised'.*3-D convolution"):
        opened(of, name="vectorised", convolutions="unfold")


CUDA = {"device": "cuda"}
BF16 = {"device": "cuda", "precision": "bf16"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "fast"}, "trainer: found 'fast', expected one of auto"),
        ({"name": "onnx"}, "there is no bundle"),
        ({"device": "abacus"}, "device: found 'abacus'"),
        ({"precision": "bf16"}, "precision: found 'bf16', expected fp32 on a CPU"),
        ({"tf32": True}, "tf32: found True, expected false on a CPU"),
        ({"name": "vectorised", "graphs": True}, "graphs: found True, expected false on a CPU"),
        ({"convolutions": "unfold"}, "convolutions: found 'unfold', expected grouped for the tra"),
        (BF16 | {"tf32": True}, "tf32: found True, expected false with precision"),
        (CUDA | {"name": "autograd", "graphs": True}, "graphs: found True, expected false for the"),
    ],
)
def test_no_choice(options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if options.get("device") == "cuda":
        monkeypatch.setattr(choice, "_device", torch.device)
    with pytest.raises(ConfigError, match=said):
        opened(**options)


def test_a_wrong_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that loses the gradient of a layer, after 1,000 tests were green."""
    right = AutogradTrainer._train

    def train(self: AutogradTrainer, task: Task) -> object:
        end = right(self, task)
        assert not isinstance(end, Exception)
        end.theta[:99] = task.request.theta[:99]
        return end

    monkeypatch.setattr(AutogradTrainer, "_train", train)
    with pytest.raises(Wrong, match=r"autograd: the gradient of '1\.weight' is wrong"):
        opened()


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["mlp", "avgcnn", "batchnorm"])
def test_on_a_gpu(model: str) -> None:
    of = problem(model)
    trainer = opened(of, device="cuda")
    assert trainer.name.startswith("vectorised, 128 devices at once on ")
    assert opened(of, device="cuda", tf32=True, graphs=True, convolutions="unfold").width > 1
    assert opened(of, device="cuda", precision="bf16", graphs=True).width > 1
