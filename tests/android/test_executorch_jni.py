"""ExecuTorch from Java: by JNI on a JVM, and as an app calls its AAR. The bytes are Python's."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.android import kinds
from tests.android.classes import java
from tests.android.kinds import B
from tests.edge.backends.conftest import unpacked_wheel

from sedge_edge.backends.executorch import ExecutorchProgram
from sedge_protocol.wire.programs import signatures

SIGNATURES = signatures(has_statistics=True)
TYPES = {"float32": "FLOAT32", "int64": "INT64", "int32": "INT32"}


class Exported(NamedTuple):
    """A bundle's file of programs, a step's inputs, the JNI library, and the classes that use it."""

    pte: Path
    feeds: Mapping[str, NDArray[Any]]
    library: Path
    class_path: str


@pytest.fixture(scope="module")
def exported(class_path: str, jni_library: Path) -> Exported:
    folder = kinds.exported("statistics")
    rng = np.random.default_rng(0)
    feeds: dict[str, NDArray[Any]] = {
        "theta": np.fromfile(folder / "init.bin", np.float32),
        "x": rng.standard_normal((B, 1, 8, 8)).astype(np.float32),
        "y": rng.integers(0, 3, B),
        "w": np.ones(B, np.float32),
    }
    return Exported(folder / "programs.pte", feeds, jni_library, class_path)


def run(backend: str, exported: Exported, name: str, out: Path, **changed: NDArray[Any]) -> str:
    """What RunProgram prints: the nanoseconds of a step, or an error."""
    words: list[str] = []
    for key in SIGNATURES[name].inputs:
        array = {**exported.feeds, **changed}[key]
        path = out.with_name(f"{key}.bin")
        path.write_bytes(array.tobytes())
        words.append(f"{TYPES[str(array.dtype)]}:{','.join(map(str, array.shape))}:{path}")
    words = [backend, str(exported.pte), name, "5", str(out), *words]
    main = "org.sedge.executorch.RunProgram"
    (line,) = java(exported.class_path, main, *words, library=exported.library)
    return line


@pytest.mark.parametrize("backend", ["jvm", "android"])
@pytest.mark.parametrize("name", ["gradient", "evaluate"])
def test_a_step_gives_the_bytes_that_it_gives_in_python(
    backend: str, name: str, exported: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after further steps: the first step's outputs are the caller's."""
    monkeypatch.syspath_prepend(unpacked_wheel())
    program = ExecutorchProgram(exported.pte.read_bytes(), SIGNATURES[name], 1)
    feeds = {key: exported.feeds[key] for key in SIGNATURES[name].inputs}
    expected = b"".join(array.tobytes() for array in program.run(feeds, True))
    assert run(backend, exported, name, tmp_path / "made").isdigit()
    assert (tmp_path / "made").read_bytes() == expected


@pytest.mark.parametrize("backend", ["jvm", "android"])
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"y": np.zeros(B, np.int32)}, "input 2: found INT32 [8], expected INT64 [8]"),
        ({"w": np.ones(B + 1, np.float32)}, "input 3: found FLOAT32 [9], expected FLOAT32 [8]"),
    ],
)
def test_other_inputs_never_reach_native_code(
    backend: str, changed: dict[str, NDArray[Any]], message: str, exported: Exported, tmp_path: Path
) -> None:
    found = run(backend, exported, "gradient", tmp_path / "made", **changed)
    assert found.endswith(f"executorch: method gradient, {message}")


@pytest.mark.parametrize("backend", ["jvm", "android"])
@pytest.mark.parametrize(
    ("content", "message"),
    [(b"not a program" * 10, "identifier 'a pr' != expected 'ET12'"), (None, "programs.pte")],
)
def test_a_file_that_is_no_program_is_one_clear_error(
    backend: str, content: bytes | None, message: str, exported: Exported, tmp_path: Path
) -> None:
    bad = tmp_path / "programs.pte"
    if content is not None:
        bad.write_bytes(content)
    found = run(backend, exported._replace(pte=bad), "gradient", tmp_path / "made")
    assert found.startswith("executorch: ")
    assert message in found


def test_a_missing_library_is_one_clear_error(exported: Exported, tmp_path: Path) -> None:
    elsewhere = exported._replace(library=tmp_path / "libnone.so")
    found = run("jvm", elsewhere, "gradient", tmp_path / "made")
    assert found.startswith("executorch: ") and "libnone.so" in found
