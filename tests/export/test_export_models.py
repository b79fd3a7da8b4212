"""The reference models, and max pooling's ties, exactly."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tools.bench.zoo import deep
from torch import Tensor, nn

from sedge_edge.backends.rows import Objective
from sedge_export import export, models
from sedge_export.lowering.onnx.runtime import load_program
from sedge_export.lowering.onnx.to_onnx import to_onnx
from sedge_export.subject.network import Network
from sedge_export.tracing.trace import trace
from sedge_protocol.wire import bundle

torch.set_num_threads(1)

BATCH = 4


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 1, 0)])
@pytest.mark.parametrize("relu", [False, True])
def test_ties_go_to_the_first(kernel: int, stride: int, padding: int, relu: bool) -> None:
    """Small whole numbers make ties everywhere and all sums exact, so equality is too."""
    torch.manual_seed(0)
    between, pool = nn.ReLU() if relu else nn.Identity(), nn.MaxPool2d(kernel, stride, padding)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), between, pool, nn.Conv2d(2, 3, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape))
    x, w = torch.randint(-1, 2, (BATCH, 1, 9, 9)).float(), torch.ones(BATCH)
    y = torch.zeros(BATCH, dtype=torch.int64)

    def loss(output: Tensor, _y: Tensor) -> Tensor:
        return output.flatten(1).sum(1)

    network = Network(model, Objective(loss, loss))
    names, inputs = ["theta", "x", "y", "w"], [torch.from_numpy(network.theta), x, y, w]
    traced = trace(network.gradient, inputs)
    data = to_onnx(traced, "gradient", names, ["g", "l"], lambda _: "")
    feed = {name: value.numpy() for name, value in zip(names, inputs, strict=True)}
    found = load_program("gradient", data)(feed)["g"]
    torch.autograd.backward(loss(model(x), y).mean())
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    np.testing.assert_array_equal(found, expected.numpy())


def test_reference_model(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, 1, 28, 28), torch.randint(10, (BATCH,))
    model = models.avgcnn()
    manifest = export(model, x, batch_size=BATCH, name="m", num_classes=10, folder=tmp_path)
    assert manifest.layout.size == 582_026
    names = {tensor.name.partition(".")[0] for tensor in manifest.layout.tensors}
    assert names == {"conv1", "conv2", "fc1", "classifier"}
    assert sum(file.stat().st_size for file in tmp_path.glob("*.onnx")) < 50_000
    nodes = onnx.load(str(tmp_path / "predict.onnx")).graph.node
    assert [n.op_type for n in nodes if n.op_type in ("Conv", "MaxPool", "Relu", "Gemm")] == [
        *("Conv", "MaxPool", "Relu") * 2,  # the pool first: four times fewer numbers
        *("Gemm", "Relu", "Gemm"),
    ]
    made, theta = bundle.load(tmp_path)
    program = load_program("gradient", made.program("gradient", "onnxruntime"))
    fixed = {"x": x.numpy(), "y": y.numpy(), "w": np.ones(BATCH, np.float32)}
    losses: list[float] = []
    for _ in range(5):
        result = program({"theta": theta, **fixed})
        theta = theta - np.float32(0.01) * result["gradient"]
        losses.append(float(result["loss"]))
    assert losses == sorted(losses, reverse=True)


def test_resnet8(tmp_path: Path) -> None:
    torch.manual_seed(0)
    manifest = export(
        models.resnet8(), torch.randn(4, 1, 8, 8), batch_size=4, name="r", num_classes=10,
        folder=tmp_path, dropped=0.5,
    )  # fmt: skip
    assert manifest.uses_batch_statistics and manifest.axes is not None
    assert manifest.axes.channels == (32, 32, 64, 64, 128, 128)


DEEP: dict[str, Callable[[], nn.Module]] = {
    "ResNet-18": lambda: deep.resnet18(4),
    "MobileNetV2": lambda: deep.mobilenet_v2(0.25),
    "EfficientNet": lambda: deep.efficientnet(0.25, 1),
    "ShuffleNetV2": lambda: deep.shufflenet_v2(16, (2, 2, 2)),
    "DenseNet": lambda: deep.densenet(4, (2, 2, 2)),
}


# Each of their operators has a case in test_export_ops; one shows the errors that many layers add up.
SLOW = DEEP.keys() - {"DenseNet"}


@pytest.mark.parametrize(
    "network", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in DEEP]
)
def test_deep_networks_are_as_exact_as_torch(network: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    manifest = export(DEEP[network](), x, batch_size=4, name="d", num_classes=10, folder=tmp_path)
    found = manifest.verification
    assert found is not None
    assert 0 < found.epoch_error <= found.tolerance + 4 * found.torch_error


@pytest.mark.parametrize(("channels", "size"), [(1, 1_229_002), (3, 1_235_274)])
def test_resnet8_is_that_of_the_paper(channels: int, size: int) -> None:
    for build in (models.resnet8, models.resnet8_groupnorm):
        assert sum(parameter.numel() for parameter in build(channels).parameters()) == size
    norms = [m for m in models.resnet8(channels).modules() if isinstance(m, nn.BatchNorm2d)]
    assert sum(norm.weight.numel() + norm.bias.numel() for norm in norms) == 2_688


def test_convolutions_of_resnet8_begin_as_its_authors_have_them() -> None:
    torch.manual_seed(0)
    for name, weight in models.resnet8().named_parameters():
        if weight.ndim == 4:  # Kaiming, fan out: variance 2 / (outputs x kernel)
            expected = (2 / (weight.shape[0] * weight[0, 0].numel())) ** 0.5
            assert float(weight.detach().std()) == pytest.approx(expected, rel=0.05), name
