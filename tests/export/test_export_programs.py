"""What the three programs promise, on the bytes that a device gets."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_export import cross_entropy, export
from sedge_export.lowering.onnx.runtime import load_program
from sedge_export.programs import Program
from sedge_protocol.layout import Role, Theta
from sedge_protocol.wire import bundle
from sedge_protocol.wire.bundle import BundleManifest, TensorSpec

torch.set_num_threads(1)

Array = NDArray[np.generic]
BATCH = 4


def small_model() -> nn.Module:
    """Convolution, pooling and a linear layer for (1, 6, 6) and three classes."""
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(16, 3))


def norm_model() -> nn.Module:
    """The same with batch normalisation."""
    torch.manual_seed(0)
    features = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=0.3))
    return nn.Sequential(*features, nn.Flatten(), nn.Linear(64, 3))


class Exported(NamedTuple):
    """An exported model: its folder, manifest, loaded programs, and initial theta (n,)."""

    folder: Path
    manifest: BundleManifest
    programs: dict[str, Program]
    theta: Theta


def exported(model: nn.Module, folder: Path) -> Exported:
    sample = torch.randn(2, 1, 6, 6)
    export(model, sample, batch_size=BATCH, name="m", num_classes=3, folder=folder)
    made, theta = bundle.load(folder)
    names = [program.name for program in made.manifest.programs]
    programs = {name: load_program(name, made.program(name, "onnxruntime")) for name in names}
    return Exported(folder, made.manifest, programs, theta)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(small_model(), tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="module")
def norm(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    return exported(norm_model(), tmp_path_factory.mktemp("norm"))


def batch(seed: int = 0) -> dict[str, Array]:
    """Random images, labels and unit weights."""
    rng = np.random.default_rng(seed)
    return {
        "x": rng.standard_normal((BATCH, 1, 6, 6)).astype(np.float32),
        "y": rng.integers(0, 3, BATCH),
        "w": np.ones(BATCH, np.float32),
    }


def step_feed(theta: Theta, **changes: Array) -> dict[str, Array]:
    """The inputs of a gradient program, with unit weights unless changed."""
    return {"theta": theta, **batch(), **changes}


def interface(file: Path) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Names and shapes of a program's inputs and outputs."""
    graph = onnx.load(str(file)).graph

    def shapes(values: Iterable[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
        dims = {value.name: value.type.tensor_type.shape.dim for value in values}
        return {name: tuple(d.dim_value for d in found) for name, found in dims.items()}

    return shapes(graph.input), shapes(graph.output)


def test_interface(small: Exported) -> None:
    n, folder = small.manifest.layout.size, small.folder
    rows = {"x": (BATCH, 1, 6, 6), "y": (BATCH,), "w": (BATCH,)}
    step = {"theta": (n,), **rows}
    sums: dict[str, tuple[int, ...]] = {"loss_sum": (), "metric_sum": (), "weight_sum": ()}
    assert interface(folder / "gradient.onnx") == (step, {"gradient": (n,), "loss": ()})
    assert interface(folder / "evaluate.onnx") == (step, sums)
    asked = {"theta": (n,), "x": rows["x"]}
    assert interface(folder / "predict.onnx") == (asked, {"logits": (BATCH, 3)})


def test_manifest(small: Exported) -> None:
    manifest, theta = small.manifest, small.theta
    assert [t.name for t in manifest.layout.tensors] == ["0.weight", "0.bias", "4.weight", "4.bias"]
    assert manifest.input == TensorSpec("float32", (1, 6, 6))
    assert manifest.target == TensorSpec("int64", ())
    assert (manifest.num_classes, manifest.batch_size) == (3, BATCH)
    assert not manifest.uses_batch_statistics
    assert manifest.verification is not None
    assert set(manifest.verification.versions) == {"torch", "onnx", "onnxruntime"}
    expected = torch.cat([p.reshape(-1) for p in small_model().parameters()]).detach()
    assert np.array_equal(theta, expected.numpy())


def test_rows_of_weight_zero_change_nothing(small: Exported) -> None:
    programs, theta = small.programs, small.theta
    rows = batch()
    weights = np.array([1, 2, 0, 0], np.float32)
    first = programs["gradient"](step_feed(theta, w=weights))
    rows["x"][2:] = 1e3
    rows["y"][2:] = 0
    second = programs["gradient"]({**step_feed(theta, w=weights), "x": rows["x"], "y": rows["y"]})
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])
    sums = programs["evaluate"]({"theta": theta, **rows, "w": weights})
    assert sums["weight_sum"] == 3
    result = programs["gradient"](step_feed(theta, w=np.zeros(BATCH, np.float32)))
    assert result["loss"] == 0 and not result["gradient"].any()


def test_evaluate_and_predict(small: Exported) -> None:
    programs, theta = small.programs, small.theta
    rows = batch()
    weights = np.array([1, 0, 1, 1], np.float32)
    logits = programs["predict"]({"theta": theta, "x": rows["x"]})["logits"]
    sums = programs["evaluate"]({"theta": theta, **rows, "w": weights})
    assert sums["metric_sum"] == ((logits.argmax(1) == rows["y"]) * weights).sum()
    losses = cross_entropy(torch.from_numpy(logits), torch.from_numpy(rows["y"])).numpy()
    np.testing.assert_allclose(sums["loss_sum"], (losses * weights).sum(), rtol=1e-6)
    assert all(value.dtype == np.float32 and value.shape == () for value in sums.values())


def test_batch_statistics(norm: Exported) -> None:
    model, manifest, programs, theta = norm_model(), norm.manifest, norm.programs, norm.theta
    assert manifest.uses_batch_statistics
    assert manifest.layout.statistics == ("1.running_mean", "1.running_var")
    roles = [tensor.role for tensor in manifest.layout.tensors]
    assert roles[2:6] == [Role.PARAMETER, Role.PARAMETER, Role.STATISTIC, Role.STATISTIC]
    feed = step_feed(theta)
    result = programs["gradient"](feed)
    model.train()(torch.from_numpy(feed["x"]))
    buffers = dict(model.named_buffers())
    left = [buffers[name].numpy() for name in manifest.layout.statistics]
    np.testing.assert_allclose(result["statistics"], np.concatenate(left), rtol=1e-5)
    for name in manifest.layout.statistics:
        assert not result["gradient"][manifest.layout.by_name[name].slice].any()


class Odd(nn.Module):
    """Two uses of one matrix, by assignment; a frozen bias; and a layer that takes no part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.second.bias.requires_grad_(False)
        self.extra = nn.Linear(4, 4)
        self.last = nn.Linear(36, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of (B, 1, 6, 6)."""
        output: Tensor = self.last(self.second(torch.tanh(self.first(x))).flatten(1))
        return output


def test_tied_frozen_and_unused_parameters(tmp_path: Path) -> None:
    odd = exported(Odd(), tmp_path)
    manifest, programs, theta = odd.manifest, odd.programs, odd.theta
    tied, stay = ["first.weight", "first.bias"], ["extra.weight", "extra.bias"]
    names = [t.name for t in manifest.layout.tensors]
    assert names == [*tied, *stay, "last.weight", "last.bias"]
    assert manifest.frozen is not None
    assert [t.name for t in manifest.frozen.layout.tensors] == ["second.bias"]
    feed = {**step_feed(theta), "frozen": np.ones(6, np.float32)}
    gradient = programs["gradient"](feed)["gradient"]
    for name, tensor in manifest.layout.by_name.items():
        assert gradient[tensor.slice].any() == (name not in stay), name


def test_stock_runtime_says_nothing(norm: Exported, capfd: pytest.CaptureFixture[str]) -> None:
    program = load_program("gradient", (norm.folder / "gradient.onnx").read_bytes())
    program(step_feed(norm.theta))
    assert capfd.readouterr() == ("", "")


def test_same_model_gives_same_bytes(small: Exported, tmp_path: Path) -> None:
    exported(small_model(), tmp_path)
    files = list(small.folder.glob("*.onnx"))
    assert len(files) == 3
    for file in files:
        assert file.read_bytes() == (tmp_path / file.name).read_bytes()
