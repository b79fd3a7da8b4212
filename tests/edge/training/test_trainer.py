"""The choice of a backend."""

import re
import subprocess
import sys

import pytest
from msgspec import structs
from tests.fleet import manifest_of

from sedge_edge import backends
from sedge_edge.backends import Backend, open_trainer
from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.bundle import Bundle, Program


def bundle(*backends: str) -> Bundle:
    """A bundle whose programs are not programs: only the choice is tested here."""
    programs = tuple(Program("gradient", name, f"train.{name}", "") for name in backends)
    manifest = manifest_of(Layout.of([("w", (2,), Role.PARAMETER)]), *programs)
    return Bundle(manifest, {program.file: b"" for program in programs})


@pytest.mark.parametrize("backend", ["auto", "onnxruntime"])
@pytest.mark.parametrize("offered", [("onnxruntime",), ("executorch", "onnxruntime")])
def test_onnxruntime_is_found(backend: str, offered: tuple[str, ...]) -> None:
    with pytest.raises(CodecError, match="'gradient' cannot be loaded"):  # so it was opened
        open_trainer(bundle(*offered), backend, 1)


@pytest.mark.parametrize(
    ("backend", "offered", "message"),
    [
        ("auto", ("coreml",), "found 'auto', expected one of those in the bundle: coreml"),
        (
            "onnxruntime",
            ("executorch",),
            "found 'onnxruntime', expected one of .* bundle: executorch",
        ),
        ("coreml", ("coreml", "onnxruntime"), "found 'coreml', expected one of"),
        ("auto", (), "found 'auto', expected one of those in the bundle: none"),
    ],
)
def test_a_backend_that_is_not_there(backend: str, offered: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^backend.name: {message}"):
        open_trainer(bundle(*offered), backend, 1)


@pytest.mark.parametrize("backend", ["auto", "onnxruntime"])
def test_the_error_says_what_to_install(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnxruntime: .* \(pip install 'sedge-fl\[onnx\]'\)$"):
        open_trainer(bundle("onnxruntime"), backend, 1)


def costing(made_of: Bundle, *memory_bytes: int) -> Bundle:
    """The bundle, whose first programs say what memory they take."""
    programs = list(made_of.manifest.programs)
    for place, needed in enumerate(memory_bytes):
        programs[place] = structs.replace(programs[place], memory_bytes=needed)
    return structs.replace(
        made_of, manifest=structs.replace(made_of.manifest, programs=tuple(programs))
    )


@pytest.mark.parametrize(
    ("memory", "tried"), [(0, ["a", "b"]), (101, ["a", "b"]), (100, ["b", "a"]), (50, ["b", "a"])]
)
def test_what_does_not_fit_into_memory_is_tried_last(
    memory: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def row(name: str) -> Backend:
        def broken(*_: object) -> Trainer:
            asked.append(name)
            raise ImportError(f"no {name}")

        return Backend(name, name, f"get {name}", broken)

    monkeypatch.setattr(backends, "BACKENDS", {"a": row("a"), "b": row("b")})

    def works(*_: object) -> str:
        return ""

    monkeypatch.setattr(backends, "fault", works)
    monkeypatch.setattr(backends, "memory_mb", lambda: memory)
    expected = "; ".join(f"{name}: no {name} (get {name})" for name in tried)
    with pytest.raises(ConfigError, match=f"a working backend; {re.escape(expected)}$"):
        open_trainer(costing(bundle("a", "b", "c"), 100 * 10**6, 60 * 10**6), "auto", 1)
    assert asked == tried


def test_importing_loads_no_machine_learning_library() -> None:
    code = (
        "import sys, sedge_edge.training.trainer, sedge_edge.data\n"
        "from sedge_edge.backends import executorch, onnx_runtime\n"
        "print(*[m for m in ('torch', 'onnxruntime', 'executorch', 'onnx', 'PIL') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
