"""The choice of a backend."""

import subprocess
import sys

import pytest
from tests.edge.harness import manifest_of

from sedge_edge import backends
from sedge_edge.backends import open_trainer
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.bundle import (
    Bundle,
    Program,
)


def bundle(*backends: str) -> Bundle:
    """A bundle whose programs are not programs: only the choice is tested here."""
    programs = tuple(Program("train", name, f"train.{name}", "") for name in backends)
    manifest = manifest_of(Layout.of([("w", (2,), Role.PARAMETER)]), *programs)
    return Bundle(manifest, {program.file: b"" for program in programs})


@pytest.mark.parametrize("backend", ["auto", "onnxruntime"])
@pytest.mark.parametrize("offered", [("onnxruntime",), ("executorch", "onnxruntime")])
def test_onnxruntime_is_found(backend: str, offered: tuple[str, ...]) -> None:
    with pytest.raises(CodecError, match="'train' cannot be loaded"):  # so it was opened
        open_trainer(bundle(*offered), backend, 1)


@pytest.mark.parametrize(
    ("backend", "offered", "message"),
    [
        (
            "auto",
            ("executorch",),
            "found 'auto', expected one of those in the bundle: executorch",
        ),
        (
            "onnxruntime",
            ("executorch",),
            "found 'onnxruntime', expected one of .* bundle: executorch",
        ),
        ("executorch", ("executorch", "onnxruntime"), "found 'executorch', expected"),
        ("auto", (), "found 'auto', expected one of those in the bundle: none"),
    ],
)
def test_a_backend_that_is_not_there(backend: str, offered: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^backend.name: {message}"):
        open_trainer(bundle(*offered), backend, 1)


@pytest.mark.parametrize("backend", ["auto", "onnxruntime"])
def test_the_error_says_what_to_install(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_nothing(_name: str) -> None:
        return None

    monkeypatch.setattr(backends, "find_spec", find_nothing)
    with pytest.raises(ConfigError, match=r"onnxruntime \(pip install 'sedge-fl\[onnx\]'\)"):
        open_trainer(bundle("onnxruntime"), backend, 1)


def test_a_broken_installation_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_it(_name: str) -> object:
        return object()

    monkeypatch.setattr(backends, "find_spec", find_it)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"a working backend: onnxruntime \(pip"):
        open_trainer(bundle("onnxruntime"), "auto", 1)


def test_importing_loads_no_machine_learning_library() -> None:
    code = (
        "import sys, sedge_edge.training.trainer, sedge_edge.backends.onnx_runtime, sedge_edge.data\n"
        "print(*[m for m in ('torch', 'onnxruntime', 'executorch', 'onnx', 'PIL') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
