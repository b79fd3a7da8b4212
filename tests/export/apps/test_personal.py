"""A device's model as a file for apps: right in both runtimes, int8 behind its gate, refusals."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from tests.edge.home import make_home, put_models
from tests.export.layers import Lambda
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.prediction import personal_model
from sedge_export import export
from sedge_export.__main__ import main
from sedge_export.apps.formats import FORMATS
from sedge_export.apps.personal import export_personal, with_weights
from sedge_export.lowering.executorch import runtime
from sedge_export.lowering.onnx import inference
from sedge_export.lowering.onnx.pooling import max_pool
from sedge_export.subject.network import Network
from sedge_protocol.errors import ExportError
from sedge_protocol.host.model_files import write_model
from sedge_protocol.host.onnx_runtime import library
from sedge_protocol.wire import bundle as bundles

torch.set_num_threads(1)

HERE = "tests.export.apps.test_personal"
SHAPE = (1, 8, 8)


def build() -> nn.Module:
    """Convolution, batch normalisation, pooling and a linear layer, for three classes."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def trained() -> nn.Module:
    """Other values than ``build`` gives, statistics included."""
    torch.manual_seed(5)
    model = build()
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) - (0.3 if value.ndim > 1 else 0.0))
    return model.eval()


def rows(count: int = 60) -> Tensor:
    return torch.randn((count, *SHAPE), generator=torch.Generator().manual_seed(3))


def labelled() -> tuple[Tensor, Tensor]:
    """Rows with the labels that the trained model gives them."""
    with torch.no_grad():
        return rows(), trained()(rows()).argmax(1)


def few() -> tuple[Tensor, Tensor]:
    return rows(10), torch.zeros(10, dtype=torch.int64)


def misshapen() -> tuple[Tensor, Tensor]:
    return torch.zeros(60, 8, 8), torch.zeros(60, dtype=torch.int64)


def strange_labels() -> tuple[Tensor, Tensor]:
    return rows(), torch.full((60,), 3)


def save(path: Path, model: nn.Module, **changes: NDArray[np.generic] | None) -> Path:
    """The model's tensors as ``sedge-edge export`` writes them; a change of None leaves one out."""
    network = Network(model, CLASSIFICATION)
    tensors = {**network.layout.views(network.theta), **changes}
    np.savez(path, **{k: v for k, v in tensors.items() if v is not None})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return path


def command(weights: Path, out: Path, *words: str, model: str = f"{HERE}:build") -> list[str]:
    shape = ",".join(map(str, SHAPE))
    options = [f"--weights={weights}", f"--out={out}", f"--sample-shape={shape}"]
    return ["personal", model, *options, *words]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("weights") / "pi-1.npz", trained())


def test_a_devices_model_runs_in_both_runtimes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """From the device's folder to its labels, as an app would get them."""
    export(build(), rows(4), batch_size=4, name="m", num_classes=3, folder=tmp_path / "bundle")
    bundle, _ = bundles.load(tmp_path / "bundle")
    home = make_home(tmp_path / "home")
    theta = Network(trained(), CLASSIFICATION).theta
    put_models(home, bundles.pack(bundle), {"first": theta})
    personal = personal_model(tmp_path / "home" / "state")
    write_model(personal.bundle, personal.theta, tmp_path / "pi-1.npz")
    x, y = labelled()
    capfd.readouterr()
    for ending, name in ((".onnx", "ONNX Runtime"), (".pte", "ExecuTorch")):
        out = tmp_path / f"model{ending}"
        assert main(command(tmp_path / "pi-1.npz", out)) == 0
        printed, complaints = capfd.readouterr()
        assert complaints == ""
        size, error = printed.splitlines()
        assert size == f"{out}: {out.stat().st_size:,} bytes for {name}"
        assert re.fullmatch(r"largest difference from torch: \S+ of .*", error)
        run = FORMATS[ending].load(out.read_bytes())
        found = np.concatenate([run(row.numpy()) for row in x[:, None]])
        assert (found.argmax(1) == y.numpy()).all()
    assert sorted(p.suffix for p in tmp_path.glob("model*")) == [".onnx", ".pte"]
    check_constants(tmp_path / "model.onnx", len(theta))


def check_constants(path: Path, size: int) -> None:
    """The file takes x alone, holds no flat vector, and has only operators that every runtime has."""
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    assert [node.name for node in model.graph.input] == ["x"]
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 20)]
    kinds = [node.op_type for node in model.graph.node]
    assert sorted(kinds) == ["Conv", "Gemm", "MaxPool", "Relu", "Reshape"]
    assert all(list(tensor.dims) != [size] for tensor in model.graph.initializer)


class Indexed(nn.Module):
    """A pooling whose indices the model uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        values, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        output: Tensor = (values * self.scale + indices).flatten(1)
        return output


def transposed() -> nn.Module:
    return nn.Sequential(nn.ConvTranspose2d(1, 2, 3, 2), nn.BatchNorm2d(2), nn.Flatten())


def twice_used() -> nn.Module:
    """A convolution whose output goes to a normalisation and elsewhere."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.conv(x)
            output: Tensor = (y + self.norm(y)).flatten(1)
            return output

    return Model()


def regularised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3), nn.BatchNorm1d(3))


def parametrised() -> nn.Module:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 2, 3))
    return nn.Sequential(layer, nn.BatchNorm2d(2), nn.Flatten())


@pytest.mark.parametrize(
    "make", [Indexed, transposed, twice_used, regularised, parametrised], ids=lambda f: f.__name__
)
def test_models_out_of_the_ordinary(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = make()
    with torch.no_grad():
        model(rows())  # for statistics that are not 0 and 1
    path = save(tmp_path / "w.npz", model)
    made = export_personal(make(), rows(2), weights=path, out=tmp_path / "m.onnx", batch_size=2)
    session = library().InferenceSession(made.path)
    (found,) = session.run(None, {"x": rows(2).numpy()})
    np.testing.assert_allclose(found, model.eval()(rows(2)).detach(), rtol=1e-4, atol=1e-5)


def test_the_global_model_of_a_bundle(tmp_path: Path) -> None:
    model = trained()
    export(model, rows(4), batch_size=4, name="m", num_classes=3, folder=tmp_path)
    torch.testing.assert_close(with_weights(build(), tmp_path).state_dict(), model.state_dict())
    other = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    with pytest.raises(ExportError, match=r"tensor '1.weight' is float32 \(4,\), expected"):
        with_weights(other, tmp_path)


def test_frozen_tensors_of_a_bundle(tmp_path: Path) -> None:
    model, other = trained(), build()
    for module in (model, other):
        next(module.parameters()).requires_grad_(False)
    export(model, rows(4), batch_size=4, name="m", num_classes=3, folder=tmp_path)
    torch.testing.assert_close(with_weights(other, tmp_path).state_dict(), model.state_dict())


@pytest.mark.parametrize("ending", [".onnx", pytest.param(".pte", marks=pytest.mark.slow)])
def test_int8(
    ending: str, weights: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"model{ending}"
    words = ("--int8", "--data", f"{HERE}:labelled", "--largest-loss=0.1", "--batch-size=8")
    assert main(command(weights, out, *words)) == 0
    printed, complaints = capfd.readouterr()
    assert complaints == ""
    found = re.search(r"^accuracy float32 1.0000, int8 (.*) on 30 held-out rows$", printed, re.M)
    assert found is not None and float(found[1]) >= 0.9
    cost = r"[\d,]+ bytes, [\d.e-]+ ms per batch"
    assert re.search(rf"^float32 {cost}; int8 {cost}: [\d.]+ of the size", printed, re.M)
    expected = trained()(rows(8)).detach().numpy()
    outputs = FORMATS[ending].load(out.read_bytes())(rows(8).numpy())
    error = np.abs(outputs - expected).max() / np.abs(expected).max()
    assert 1e-4 < error < 0.05  # int8 has steps, of about one in 256
    if ending == ".onnx":
        kinds = {node.op_type for node in onnx.load(out).graph.node}
        assert {"QuantizeLinear", "DequantizeLinear"} < kinds


def test_int8_of_a_recurrent_layer(tmp_path: Path) -> None:
    torch.manual_seed(0)
    last = Lambda(lambda gru, x: gru(x)[0][:, -1], nn.GRU(16, 64, batch_first=True))
    model = nn.Sequential(last, nn.Linear(64, 3)).eval()
    x = torch.randn(60, 5, 16)
    weights = tmp_path / "weights.npz"
    np.savez(weights, **{name: value.numpy() for name, value in model.state_dict().items()})
    made = export_personal(
        model, x[:1], weights=weights, out=tmp_path / "m.onnx", data=(x, model(x).argmax(1)),
        largest_loss=0.2,
    )  # fmt: skip
    assert made.costs is not None and made.costs[1].size == made.size
    assert made.size < 0.45 * made.costs[0].size


def test_int8_of_a_regression(weights: Path, tmp_path: Path) -> None:
    with torch.no_grad():
        options: dict[str, Any] = {"weights": weights, "data": (rows(), trained()(rows()))}
    made = export_personal(build(), rows(1), **options, out=tmp_path / "m.onnx", largest_loss=0.05)
    quality = made.quality
    assert quality is not None
    assert str(quality).startswith("relative error float32 0.0000, int8 0.0")
    assert quality.float32 < 1e-5 < quality.int8 == pytest.approx(quality.loss, abs=1e-5)
    expected = r"int8: relative error .*, expected a loss of at most 0$"
    with pytest.raises(ExportError, match=expected):
        export_personal(build(), rows(1), **options, out=tmp_path / "n.onnx", largest_loss=0.0)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("last", [False, True])
def test_int8_of_a_class_for_each_pixel(last: bool, tmp_path: Path) -> None:
    """-100 does not count, as nothing else would have let the accuracy be 1."""
    torch.manual_seed(0)
    shape = (4, 3) if last else (3, 4)
    model = nn.Sequential(nn.Conv2d(1, 12, 8), nn.Flatten(), nn.Unflatten(1, shape))
    with torch.no_grad():
        y = model(rows()).argmax(2 if last else 1)
    y[::2, 1] = -100
    made = export_personal(
        model, rows(1), weights=save(tmp_path / "w.npz", model), out=tmp_path / "m.onnx",
        data=(rows(), y), largest_loss=0.1,
    )  # fmt: skip
    assert made.quality is not None
    assert made.quality.float32 == 1.0 and made.quality.int8 > 0.9


class OneHugeChannel(nn.Module):
    """The channel that says nothing takes all of int8's steps."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 3)
        self.factor: Tensor
        self.register_buffer("factor", torch.ones(64))
        self.factor[0] = 1e5

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.linear(x.flatten(1) * self.factor)
        return logits


def ruined() -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return rows(), deaf()(rows()).argmax(1)


def deaf() -> nn.Module:
    torch.manual_seed(0)
    model = OneHugeChannel()
    with torch.no_grad():
        model.linear.weight[:, 0] = 0
    return model


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """The one line on stderr of a command that writes nothing."""

    def complaint(words: list[str], status: int = 2) -> str:
        before = sorted(tmp_path.iterdir())
        assert main(words) == status
        printed, said = capfd.readouterr()
        assert printed == "" and re.fullmatch(r"sedge-export: .*\n", said)
        assert sorted(tmp_path.iterdir()) == before
        return said

    return complaint


def test_int8_that_ruins_the_model_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = save(tmp_path / "w.npz", deaf())
    words = ("--int8", f"--data={HERE}:ruined", "--largest-loss=0.05")
    model = f"{HERE}:OneHugeChannel"
    complaint = refused(command(path, tmp_path / "m.onnx", *words, model=model), 3)
    pattern = r"int8: accuracy float32 1\.0000, int8 0\.[3-8]\d+ on 30 held-out rows, expected"
    assert re.search(pattern, complaint) and complaint.endswith(" a loss of at most 0.05\n")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"0.bias": None}, "tensor '0.bias' of the model is missing"),
        ({"1.running_var": None}, "tensor '1.running_var' of the model is missing"),
        ({"6.bias": np.zeros(3, "f4")}, "the model has no tensor '6.bias'"),
        ({"5.bias": np.zeros(4, "f4")}, "'5.bias' is float32 (4,), expected float32 (3,)"),
        ({"5.bias": np.zeros(3)}, "tensor '5.bias' is float64 (3,), expected float32 (3,)"),
        ({"5.bias": np.array([0, np.nan, 0], "f4")}, "tensor '5.bias' holds NaN or inf"),
    ],
)
def test_weights_of_another_model(
    changes: dict[str, NDArray[np.generic] | None], message: str, tmp_path: Path, refused: Refused
) -> None:
    path = save(tmp_path / "w.npz", trained(), **changes)
    complaint = refused(command(path, tmp_path / "m.onnx"), 3)
    assert f"weights {path}: " in complaint and message in complaint


def test_files_that_hold_no_weights(weights: Path, tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "cut.npz").write_bytes(weights.read_bytes()[:-30])
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "folder").mkdir()
    for name, status, message in (
        ("cut.npz", 3, "expected .npz or a bundle's folder"),
        ("one.npy", 3, "expected .npz or a bundle's folder"),
        ("nothing.npz", 3, "No such file"),
        ("folder", 2, "expected a folder that sedge-export wrote"),
    ):
        words = command(tmp_path / name, tmp_path / "m.onnx")
        assert message in refused(words, status), name


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        ("nothing", 2, f"--data: found '{HERE}:nothing', expected module"),
        ("rows", 2, "that returns (x, y)"),
        ("few", 3, "data: 10 rows, expected at least 40"),
        ("misshapen", 3, "x is torch.float32 (60, 8, 8), expected torch.float32 (N, 1, 8, 8)"),
        ("strange_labels", 3, "data: y[0] is 3, but the model has classes 0 to 2"),
    ],
)
def test_data_that_are_none(
    data: str, status: int, message: str, weights: Path, tmp_path: Path, refused: Refused
) -> None:
    options = ("--int8", "--largest-loss=.05", f"--data={HERE}:{data}")
    words = command(weights, tmp_path / "m.onnx", *options)
    assert message in refused(words, status)


def test_other_endings_and_folders(weights: Path, tmp_path: Path, refused: Refused) -> None:
    words = command(weights, tmp_path / "m.tflite")
    assert "expected a name that ends in .onnx or .pte" in refused(words)
    words = command(weights, tmp_path / "missing" / "m.onnx")
    assert "write the model to" in refused(words, 4)


def test_without_executorch(
    weights: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings.portable_lib", None)
    runtime.library.cache_clear()
    try:
        complaint = refused(command(weights, tmp_path / "m.pte"), 3)
    finally:
        runtime.library.cache_clear()
    assert runtime.INSTALL in complaint


def test_a_file_that_disagrees_with_torch(
    weights: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(*arguments: object, **_: object) -> object:
        graph, x, kernel, *_rest = arguments
        return max_pool(graph, x, kernel, [2, 2], [0, 1], [1, 2])  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    pool = torch.ops.aten.max_pool2d_with_indices.default
    monkeypatch.setitem(inference.PLAIN_LOWERINGS, pool, shifted)
    complaint = refused(command(weights, tmp_path / "m.onnx"), 3)
    assert "ONNX Runtime disagrees with torch: error" in complaint


@pytest.mark.parametrize(
    "word", ["--int8", f"--data={HERE}:labelled", "--batch-size=0", "--largest-loss=2"]
)
def test_a_word_that_says_too_little_or_nonsense(word: str, weights: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(command(weights, tmp_path / "m.onnx", word))
    assert not list(tmp_path.iterdir())
