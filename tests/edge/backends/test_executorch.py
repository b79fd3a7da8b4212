"""Programs of ExecuTorch: what is refused before native code sees it, and what native code refuses."""

import mmap
import platform
import subprocess
import sys
from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.edge.backends.softmax import FILES, PTE, B, F, N, bundle, examples, never, start

from sedge_edge.backends import (
    BACKENDS,
    NO_CODE,
    executorch,
    installed_backends,
    open_trainer,
    usable_backends,
)
from sedge_edge.backends.bundle_trainer import Arrays
from sedge_edge.backends.executorch import LIBRARY, ExecutorchProgram
from sedge_edge.training.trainer import TrainRequest
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME
from sedge_protocol.wire.programs import signatures
from sedge_protocol.wire.training import Training

pytestmark = pytest.mark.usefixtures("executorch_libraries")
SIGNATURES = signatures()
# ExecuTorch writes this into a program's header; the number is the format's.
MARK, OTHER_MARK = b"ET12", b"ET13"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"", "cannot be loaded: file: "),
        (b"not a program" * 10, "identifier 'a pr' != expected 'ET12'"),
        (FILES["gradient"], "!= expected 'ET12'"),
        (PTE["gradient"].replace(MARK, OTHER_MARK, 1), "identifier 'ET13' != expected 'ET12'"),
        (PTE["gradient"][:-100], "data may be truncated or corrupt"),
        (PTE["gradient"][:8000] + bytes(2000) + PTE["gradient"][10000:], "cannot be loaded: "),
        (PTE["gradient"].replace(b"aten::mm", b"aten::xx"), "kernel 'aten::xx.out' not found"),
        (
            PTE["gradient"].replace(b"gradient\0", b"gradienx\0"),
            "method gradient: Error::InvalidArgument",
        ),
    ],
)
def test_a_bad_program_is_refused(program: bytes, message: str) -> None:
    with pytest.raises(CodecError, match=f"^bundle 'softmax': program 'gradient' .*{message}"):
        BACKENDS[EXECUTORCH].open(bundle({"gradient": program}, EXECUTORCH), EXECUTORCH, 1, NO_CODE)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("predict", "it has 2 inputs, expected 4: theta, x, y, w"),
        ("evaluate", "it has 3 outputs, expected 2: gradient, loss"),
    ],
)
def test_a_program_of_another_signature(program: str, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        ExecutorchProgram(PTE[program], SIGNATURES["gradient"]._replace(program=program), 1)


def test_loading_checks_a_program() -> None:
    """Each of 100 programs with a changed byte is refused or loads; a crash would end the tests."""
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(100):
        changed = bytearray(PTE["gradient"])
        changed[rng.integers(len(changed))] ^= int(rng.integers(1, 256))
        try:
            ExecutorchProgram(bytes(changed), SIGNATURES["gradient"], 1)
        except CodecError:
            refused += 1
    assert 50 < refused < 100


def feeds(name: str) -> Arrays:
    rng = np.random.default_rng(3)
    given: Arrays = {
        "theta": rng.standard_normal(N).astype(np.float32),
        "x": rng.standard_normal((B, F)).astype(np.float32),
        "y": np.zeros(B, np.int64),
        "w": np.ones(B, np.float32),
    }
    return {key: given[key] for key in SIGNATURES[name].inputs}


@pytest.mark.parametrize(
    ("key", "array", "message"),
    [
        (
            "theta",
            np.zeros(N + 1, np.float32),
            r"theta: found float32 \(19,\), expected float32 \(18,\)",
        ),
        ("x", np.zeros((B, F)), r"x: found float64 \(4, 5\), expected float32 \(4, 5\)"),
        ("y", np.zeros(B, np.int32), r"y: found int32 \(4,\), expected int64 \(4,\)"),
        ("w", np.float32(1), r"w: found float32 \(\), expected float32 \(4,\)"),
    ],
)
def test_arrays_of_another_kind_never_reach_native_code(
    key: str, array: NDArray[np.float32], message: str
) -> None:
    program = ExecutorchProgram(PTE["gradient"], SIGNATURES["gradient"], 1)
    with pytest.raises(CodecError, match=f"^{message}$"):
        program.run({**feeds("gradient"), key: array}, False)


@pytest.mark.parametrize("name", PTE)
def test_any_layout_of_memory_gives_the_same(name: str) -> None:
    """Strided arrays, and arrays that end where readable memory ends: kernels may read past the end."""
    program = ExecutorchProgram(PTE[name], SIGNATURES[name], 1)
    plain = feeds(name)
    expected = [output.tobytes() for output in program.run(plain, False)]
    strided: Arrays = {
        key: np.repeat(array, 2, -1)[..., ::2] if array.ndim else array
        for key, array in plain.items()
    }
    assert [output.tobytes() for output in program.run(strided, False)] == expected
    at_the_end: Arrays = {}
    for key, array in plain.items():
        pages = mmap.mmap(-1, mmap.PAGESIZE)  # unmapped when its last array is gone
        end = np.frombuffer(pages, array.dtype, array.size, mmap.PAGESIZE - array.nbytes)
        at_the_end[key] = end.reshape(array.shape)
        at_the_end[key][...] = array
    assert [output.tobytes() for output in program.run(at_the_end, False)] == expected


def test_outputs_stay_as_they_were_given() -> None:
    program = ExecutorchProgram(PTE["gradient"], SIGNATURES["gradient"], 1)
    first = program.run(feeds("gradient"), False)
    kept = [output.copy() for output in first]
    program.run({**feeds("gradient"), "theta": np.zeros(N, np.float32)}, False)
    for output, copy in zip(first, kept, strict=True):
        assert output.flags.writeable
        np.testing.assert_array_equal(output, copy)


def test_a_file_is_closed_between_jobs() -> None:
    """All that its programs hold goes back to the system; the next run opens it again."""
    first, evaluate = (
        ExecutorchProgram(PTE[n], SIGNATURES[n], 1) for n in ("gradient", "evaluate")
    )
    assert first._file is evaluate._file
    expected = [output.tobytes() for output in first.run(feeds("gradient"), False)]
    # Programs that other tests have left to the garbage collector share the file.
    assert first._file._programs.keys() >= {"gradient", "evaluate"}
    evaluate.run(feeds("evaluate"), True)
    assert (first._file._programs, first._file._file) == ({}, None)
    assert [output.tobytes() for output in first.run(feeds("gradient"), False)] == expected


def test_a_program_that_needs_more_memory_than_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executorch, "_memory_limit", lambda: 100)
    monkeypatch.setattr(executorch, "_files", WeakValueDictionary())  # others may have loaded it
    with pytest.raises(CodecError, match=r"memory: it needs \d+ bytes, expected at most 100$"):
        open_trainer(bundle(PTE, EXECUTORCH), EXECUTORCH, 1)


def test_threads_are_chosen_once_in_a_process() -> None:
    """In a process of its own, with four threads: the result is that of one, as this process has."""
    code = """
from tests.edge.backends.softmax import PTE, bundle, examples, never, start
from sedge_edge.backends import open_trainer
from sedge_edge.training.trainer import TrainRequest
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.training import Training
trainer = open_trainer(bundle(PTE, "executorch"), "executorch", 4)
request = TrainRequest(start(), Training(2, 0.1), 7)
print(trainer.train(request, examples(11), never).theta.tobytes().hex())
try:
    open_trainer(bundle(PTE, "executorch"), "executorch", 7)
except ConfigError as exc:
    print(exc)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    four, refusal = done.stdout.splitlines()
    trainer = open_trainer(bundle(PTE, EXECUTORCH), EXECUTORCH, 1)
    one = trainer.train(TrainRequest(start(), Training(2, 0.1), 7), examples(11), never).theta
    assert four == one.tobytes().hex()
    assert refusal.startswith("backend.threads: found 7, expected 4, as for")


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "cannot open shared object file"), (b"not a library", "too short|invalid ELF header")],
)
def test_a_broken_installation(content: bytes | None, message: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / LIBRARY).write_bytes(content)
    with pytest.raises(ImportError, match=message):
        executorch.Library(tmp_path)


def test_an_interface_of_another_version(
    executorch_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executorch, "_ABI", 99)
    with pytest.raises(ImportError, match="interface 1, but this version needs 99"):
        executorch.Library(executorch_libraries / executorch.PACKAGE)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executorch, "PACKAGE", "sedge_no_such_package")
    executorch.library.cache_clear()
    said = r"executorch: no package .* \(pip install 'sedge-fl\[executorch\]'\)$"
    with pytest.raises(ConfigError, match=said):
        open_trainer(bundle(PTE, EXECUTORCH), "auto", 1)


def test_it_is_found_with_its_version() -> None:
    """As ``doctor`` and the hello say it."""
    assert installed_backends()[EXECUTORCH] == "1.5.1"
    assert usable_backends("auto") == (ONNXRUNTIME, EXECUTORCH)
    assert usable_backends(EXECUTORCH) == (EXECUTORCH,)


def test_the_wheel_is_a_devices(executorch_libraries: Path) -> None:
    """It names its platform and its notices, and nothing that it carries needs torch or a newer glibc."""
    (info,) = executorch_libraries.glob("sedge_executorch-*.dist-info")
    assert f"_{platform.machine()}" in (info / "WHEEL").read_text()
    assert "Requires-Dist" not in (info / "METADATA").read_text()
    assert "Meta Platforms" in (info / "licenses" / "LICENSE.executorch").read_text()
    libraries = sorted((executorch_libraries / executorch.PACKAGE).glob("*.so"))
    words = ["readelf", "--dynamic", *map(str, libraries)]
    needed = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert len(libraries) == 5
    assert "libtorch" not in needed and "libc10" not in needed
