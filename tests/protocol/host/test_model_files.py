"""A model as a file: read back by the library that each form is for, and every refusal."""

import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.edge.home import make_bundle

from sedge_export.models import mlp
from sedge_protocol.errors import CodecError, ConfigError, DataError, StorageError
from sedge_protocol.host.model_files import read_tensors, write_model
from sedge_protocol.host.onnx_runtime import library
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, TensorSpec, unpack

Arrays = dict[str, NDArray[np.generic]]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Theta]:
    """A bundle with programs, and another theta (n,) than its first."""
    packed, theta = make_bundle(tmp_path_factory.mktemp("tiny"))
    return unpack(packed), 2 * theta


def by_safetensors(path: Path) -> Arrays:
    found: Arrays = import_module("safetensors.numpy").load_file(path)
    return found


def by_torch(path: Path) -> Arrays:
    found = torch.load(path, weights_only=True)
    mlp(6, 4, 3).load_state_dict(found)
    return {name: values.numpy() for name, values in found.items()}


@pytest.mark.parametrize(
    ("name", "read"),
    [("m.npz", read_tensors), ("m.safetensors", by_safetensors), ("m.pt", by_torch)],
)
def test_tensors_are_read_back(
    tiny: tuple[Bundle, Theta], tmp_path: Path, name: str, read: Callable[[Path], Arrays]
) -> None:
    bundle, theta = tiny
    path = tmp_path / name
    path.write_bytes(b"of an earlier export")
    write_model(bundle, theta, path)
    found = read(path)
    expected = bundle.views(theta)
    assert set(found) == set(expected)
    for tensor, values in expected.items():
        assert found[tensor].dtype == np.float32
        np.testing.assert_array_equal(found[tensor], values)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_onnx_computes_what_torch_does(tiny: tuple[Bundle, Theta], tmp_path: Path) -> None:
    bundle, theta = tiny
    named = msgspec.structs.replace(bundle.manifest, labels=("rot", "grün", "blau"))
    write_model(msgspec.structs.replace(bundle, manifest=named), theta, tmp_path / "m.onnx")
    model, x = mlp(6, 4, 3), torch.randn(4, 6)
    model.load_state_dict({n: torch.tensor(v) for n, v in bundle.views(theta).items()})
    session = library().InferenceSession(tmp_path / "m.onnx")
    (found,) = session.run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    facts = session.get_modelmeta().custom_metadata_map
    assert json.loads(facts["labels"]) == ["rot", "grün", "blau"]
    assert (facts["name"], facts["outputs"]) == ("tiny", "logits")
    assert "pixels" not in facts
    images = msgspec.structs.replace(named, input=TensorSpec("float32", (1, 2, 3)))
    write_model(msgspec.structs.replace(bundle, manifest=images), theta, tmp_path / "m.onnx")
    facts = library().InferenceSession(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map
    assert facts["pixels"] == "unsigned 8-bit values divided by 255"


@pytest.mark.parametrize(("name", "package"), [("m.pt", "torch"), ("m.safetensors", "safetensors")])
def test_a_library_that_is_missing(
    tiny: tuple[Bundle, Theta], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    name: str, package: str,
) -> None:  # fmt: skip
    for module in (package, f"{package}.numpy"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"expected {package} to be installed for \.") as caught:
        write_model(*tiny, tmp_path / name)
    assert f"pip install 'sedge-fl[{package}]'" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written(tiny: tuple[Bundle, Theta], tmp_path: Path) -> None:
    bundle, theta = tiny
    with pytest.raises(ConfigError, match=r"ends in \.npz, \.safetensors, \.pt or \.onnx"):
        write_model(bundle, theta, tmp_path / "m.csv")
    with pytest.raises(StorageError, match=r"write the model to .*No such file"):
        write_model(bundle, theta, tmp_path / "nowhere" / "m.npz")
    bare = Bundle(msgspec.structs.replace(bundle.manifest, programs=()), {})
    with pytest.raises(CodecError, match="no program 'predict'"):
        write_model(bare, theta, tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [b"", b"1,2\n", b"PK\x03\x04" + bytes(40)])
def test_files_that_are_no_archive(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.npz").write_bytes(data)
    with pytest.raises(DataError, match=r"m\.npz: .*expected \.npz"):
        read_tensors(tmp_path / "m.npz")
    with pytest.raises(DataError, match="No such file"):
        read_tensors(tmp_path / "none.npz")
