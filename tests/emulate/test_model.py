"""The fleet's model: what it is without a word, and the user's own."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector

from sedge_emulate.config import ModelConfig
from sedge_emulate.data.datasets import Dataset
from sedge_emulate.data.datasets import load as load_data_set
from sedge_emulate.model import ModelSource, Sample, export_model
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.wire.bundle import TensorSpec, load

OWN = """
import torch
from torch import nn
import beside

class Coded(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Embedding(2, 3), nn.Embedding(7, 3)
        self.head = nn.Linear(10, 5)

    def forward(self, x):
        codes = x[:, 4:].long()
        return self.head(torch.cat([x[:, :4], self.first(codes[:, 0]), self.second(codes[:, 1])], 1))

def build(): return nn.Linear(6, beside.OUTPUTS)
def one(): return nn.Linear(6, 1)
def tuned(): return nn.Sequential(nn.Linear(6, 8).requires_grad_(False), nn.Linear(8, beside.OUTPUTS))
def tokens(): return nn.Sequential(nn.Linear(6, 10), nn.Unflatten(1, (2, 5)))
def three(): return 3
"""


def dataset(*shape: int) -> Dataset:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(40, *shape)).astype(np.float32)
    return Dataset("noise", inputs, np.arange(40) % 5, 5)


def weights(model: torch.nn.Module) -> NDArray[np.float32]:
    found: NDArray[np.float32] = parameters_to_vector(model.parameters()).detach().numpy()
    return found


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "own_model.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("OUTPUTS = 5\n")
    with monkeypatch.context() as patched:
        for name in ("own_model", "beside"):  # each test has its own, and leaves none to others
            patched.setitem(sys.modules, name, ModuleType(name))
            del sys.modules[name]
        yield tmp_path


@pytest.mark.parametrize(
    ("asked", "shape", "name", "parameters"),
    [  # without a word the data decide
        ("", (1, 28, 28), "avgcnn", 832 + 51_264 + 524_800 + 2_565),
        ("", (1, 8, 8), "mlp", 64 * 200 + 200 + 200 * 5 + 5),
        ("", (6,), "mlp", 6 * 200 + 200 + 200 * 5 + 5),
        ("resnet8", (1, 28, 28), "resnet8", 1_229_002 - 5 * 257),  # of five classes, not ten
        ("avgcnn", (3, 32, 32), "avgcnn", 878_538 - 5 * 513),
        ("mlp", (1, 28, 28), "mlp", 784 * 200 + 200 + 200 * 5 + 5),
    ],
)
def test_a_model_of_ours(asked: str, shape: tuple[int, ...], name: str, parameters: int) -> None:
    config = msgspec.convert({"name": asked}, ModelConfig)
    source = ModelSource.of(config, dataset(*shape), Path())
    assert (source.name, source.shape, source.num_classes) == (name, shape, 5)
    assert weights(source.build(0)).size == parameters


@pytest.mark.parametrize("name", ["avgcnn", "resnet8"])
@pytest.mark.parametrize("shape", [(6,), (1, 28, 20)])
def test_examples_that_are_no_images(name: str, shape: tuple[int, ...]) -> None:
    source = ModelSource.of(msgspec.convert({"name": name}, ModelConfig), dataset(*shape), Path())
    with pytest.raises(ConfigError, match=f"model.name: found '{name}', expected mlp for examples"):
        source.build(0)


def test_a_narrower_form_is_a_part_of_the_model(tmp_path: Path) -> None:
    source = ModelSource.of(ModelConfig(batch_size=4), dataset(6), Path())
    whole, half = source.build(3), source.build(3, 0.5)
    for large, small in zip(whole.parameters(), half.parameters(), strict=True):
        part = large[tuple(slice(extent) for extent in small.shape)]
        assert torch.equal(part, small) and (small.shape != large.shape or small.shape == (5,))
    export_model(source, Sample.of(source, dataset(6)), 3, tmp_path / "half", 0.5)
    bundle, theta = load(tmp_path / "half")
    assert bundle.manifest.dropped == 0.5
    np.testing.assert_array_equal(theta, weights(half))


def test_the_seed_gives_the_first_weights() -> None:
    source = ModelSource.of(ModelConfig(), dataset(6), Path())
    first, again, other = (weights(source.build(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_the_users_own_may_use_what_lies_beside_it(base: Path) -> None:
    source = ModelSource.of(ModelConfig(factory="own_model:build"), dataset(6), base)
    path = list(sys.path)
    assert source.name == "own_model:build"
    assert [tuple(p.shape) for p in source.build(0).parameters()] == [(5, 6), (5,)]
    assert sys.path == path


def test_a_factory_that_gives_no_model_leaves_the_path_as_it_was(base: Path) -> None:
    """What is said of each kind: test_emulate_main.py."""
    path = list(sys.path)
    for factory in ("own_model:three", "no_such_module:build"):
        with pytest.raises(ConfigError, match=f"model.factory: found '{factory}'"):
            ModelSource.of(ModelConfig(factory=factory), dataset(6), base).build(0)
        assert sys.path == path


def test_other_code_has_another_name(base: Path) -> None:
    def code(factory: str) -> str:
        return ModelSource.of(ModelConfig(factory=factory), dataset(6), base).code

    path = list(sys.path)
    before = code("own_model:build")
    assert before == code("own_model:three") != ""
    (base / "own_model.py").write_text(OWN.replace("nn.Linear", "nn.Bilinear"))
    assert code("own_model:build") not in (before, "")
    assert code("") == code("no_such_module:build") == code("no.such.module:build") == ""
    assert sys.path == path


def test_the_exported_model_is_the_one_that_workers_build(base: Path) -> None:
    config = ModelConfig(factory="own_model:build", batch_size=4)
    source = ModelSource.of(config, dataset(6), base)
    export_model(source, Sample.of(source, dataset(6)), 3, base / "bundle")
    bundle, theta = load(base / "bundle")
    manifest = bundle.manifest
    assert (manifest.name, manifest.batch_size, manifest.num_classes) == ("build", 4, 5)
    assert manifest.input.shape == (6,)
    np.testing.assert_array_equal(theta, weights(source.build(3)))


def test_a_base_may_be_rounded(base: Path) -> None:
    config = ModelConfig(factory="own_model:tuned", batch_size=4, frozen="int8")
    source = ModelSource.of(config, dataset(6), base)
    export_model(source, Sample.of(source, dataset(6)), 3, base / "bundle")
    bundle, _ = load(base / "bundle")
    assert bundle.frozen is not None
    exact = next(source.build(3).parameters()).detach().numpy().ravel()
    error = np.abs(bundle.frozen[: exact.size] - exact).max() / np.sqrt(np.square(exact).mean())
    assert 1 / 64 < error < 1 / 16


OWN_MODEL = "own_model:build"


def exported(base: Path, y: NDArray[Any], target: str = "", factory: str = OWN_MODEL) -> Path:
    """The bundle of a model for rows of six numbers and this y."""
    np.savez(base / "data.npz", x=dataset(6).inputs, y=y)
    data = load_data_set("data.npz", base=base)
    config = msgspec.convert({"factory": factory, "target": target, "batch_size": 4}, ModelConfig)
    source = ModelSource.of(config, data, base)
    export_model(source, Sample.of(source, data), 3, base / "bundle")
    return base / "bundle"


@pytest.mark.parametrize(
    ("factory", "has"), [(OWN_MODEL, " and the model has 5 outputs"), ("", "")]
)
def test_whole_numbers_as_floats_are_asked_about(base: Path, factory: str, has: str) -> None:
    """A table writes labels as floats. They must not become a regression without a word."""
    said = rf"y holds whole numbers as floats{has}: .*y\.astype\(int\); for targets, set \[model\] "
    with pytest.raises(DataError, match=rf"data\.npz: {said}"):
        exported(base, np.arange(40) % 5.0, factory=factory)
    assert not (base / "bundle").exists()
    exported(base, np.arange(40) % 5 / 2, factory="")
    exported(base, np.arange(40) % 5.0, "float", "")
    exported(base, np.arange(40) % 5.0, factory="own_model:one")


def test_a_column_of_labels_is_labels(base: Path) -> None:
    manifest = load(exported(base, np.arange(40)[:, None] % 5))[0].manifest
    assert (manifest.num_classes, manifest.target) == (5, TensorSpec("int64", ()))


def test_a_label_for_each_token(base: Path) -> None:
    """The model says how many classes there are, as no text has every token; the data say the shape."""
    y = np.arange(80).reshape(40, 2) % 4
    y[3, 0] = -100
    manifest = load(exported(base, y, factory="own_model:tokens"))[0].manifest
    assert (manifest.num_classes, manifest.target) == (5, TensorSpec("int64", (2,)))
    data = load_data_set("data.npz", base=base)
    assert data.labels.tolist()[:4] == [0, 2, 0, 3]  # each row's rarest, and -100 is none
    with pytest.raises(ConfigError, match=r"a model for labels of shape \(2,\) per row"):
        exported(base, y, factory="")


def test_category_codes_among_numbers(base: Path) -> None:
    """A code of one column is none in another: the sample's rows are taken whole."""
    data = dataset(6)
    data.inputs[:, 4], data.inputs[:, 5] = np.arange(40) % 2, np.arange(40) % 7
    config = ModelConfig(factory="own_model:Coded", batch_size=16)
    source = ModelSource.of(config, data, base)
    export_model(source, Sample.of(source, data), 3, base / "bundle")
    verified = load(base / "bundle")[0].manifest.verification
    assert verified is not None and verified.step_error < 1e-5


def test_torch_is_loaded_only_to_build() -> None:
    code = "import sys, sedge_emulate.run; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
