"""Trial runs: with libraries that crash, which stand in for ones built for another processor."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.edge.backends.softmax import FILES, PTE, bundle

from sedge_edge.backends import open_trainer, trial
from sedge_edge.backends.bundle_trainer import BundleTrainer
from sedge_edge.backends.executorch import LIBRARY, PACKAGE
from sedge_edge.backends.onnx_runtime import OnnxProgram
from sedge_edge.backends.trial import crash
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, Bundle, Program


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No trial has been made yet."""
    monkeypatch.setattr(trial, "_found", {})
    yield


Break = Callable[[str], None]


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Break:
    """Gives every new process libraries of ExecuTorch that run this C code as soon as they are used."""

    def install(code: str) -> None:
        package = tmp_path / PACKAGE
        package.mkdir()
        (package / "__init__.py").touch()
        source = package / "broken.c"
        source.write_text(
            "#include <signal.h>\n#include <stdio.h>\n#include <unistd.h>\n"
            f"int sedge_et_abi(void) {{ {code} return 0; }}\n"
        )
        words = ["gcc", "-shared", "-fPIC", str(source), "-o", str(package / LIBRARY)]
        subprocess.run(words, check=True)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))

    return install


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise(SIGILL);", r"SIGILL: this processor lacks avx2, fma"),
        ("raise(SIGSEGV);", r"SIGSEGV"),
        ('fputs("executorch: no\\nway\\n", stderr); raise(SIGABRT);', r"SIGABRT \(way\)"),
        ("raise(SIGKILL);", "SIGKILL: most likely there was too little memory"),
    ],
)
def test_a_crash_is_an_error_with_a_reason(
    broken: Break, code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(code)
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor : 0\nflags : fpu sse4_2 avx f16c avx512f\nbugs : none\n")
    monkeypatch.setattr(trial, "_CPUINFO", cpuinfo)
    expected = f"a working backend; executorch: a trial run ended with {message}$"
    with pytest.raises(
        ConfigError, match=f"^backend.name: found 'executorch', expected {expected}"
    ):
        open_trainer(bundle(PTE, EXECUTORCH), EXECUTORCH, 1)


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        (
            "Features : fp asimd aes crc32 cpuid",
            "atomics, asimdrdm, asimdhp, asimddp, sve, i8mm, bf16",
        ),
        ("Features : fp asimd atomics asimdrdm asimdhp asimddp", "sve, i8mm, bf16"),
        ("nothing known", "an instruction"),
        (None, "an instruction"),
    ],
)
def test_what_a_processor_lacks(
    broken: Break, text: str | None, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken("raise(SIGILL);")
    cpuinfo = tmp_path / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    monkeypatch.setattr(trial, "_CPUINFO", cpuinfo)
    found = crash(EXECUTORCH, bundle(PTE, EXECUTORCH), 1, True)
    assert found == f"a trial run ended with SIGILL: this processor lacks {lacks}"


def test_a_hidden_sys(broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("raise(SIGSEGV);")
    monkeypatch.setattr(trial, "_SYSTEM", tmp_path / "sys")
    found = crash(EXECUTORCH, bundle(PTE, EXECUTORCH), 1, True)
    reason = f"{tmp_path / 'sys'} is not to be seen here, and runtimes read it"
    assert found == f"a trial run ended with SIGSEGV: {reason}"


def both() -> Bundle:
    """One bundle with programs for both backends."""
    listed: list[Program] = []
    files: dict[str, bytes] = {}
    for backend, programs, memory in (
        (ONNXRUNTIME, FILES, 200 * 10**6),
        (EXECUTORCH, PTE, 60 * 10**6),
    ):
        for program in bundle(programs, backend).manifest.programs:
            file = f"{program.name}.{backend}"
            listed.append(replace(program, file=file, memory_bytes=memory))
            files[file] = programs[program.name]
    return Bundle(replace(bundle(FILES).manifest, programs=tuple(listed)), files)


def test_auto_takes_another_backend(broken: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little memory ExecuTorch is the first choice."""
    broken("raise(SIGILL);")
    monkeypatch.setattr("sedge_edge.backends.memory_mb", lambda: 200)
    opened = open_trainer(both(), "auto", 1)
    assert isinstance(opened, BundleTrainer)
    assert isinstance(opened._programs["gradient"], OnnxProgram)


def test_who_stops_the_agent_stops_a_trial(broken: Break) -> None:
    """That is no crash: the job goes on in the agent, and is stopped there."""
    broken("raise(SIGTERM);")
    assert crash(EXECUTORCH, bundle(PTE, EXECUTORCH), 1, True) == ""


def test_what_works_is_tried_once(
    executorch_libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []

    def run(backend: str, one: Bundle, threads: int) -> str:
        tried.append(backend)
        assert list(one.files) == ["gradient"]
        return real(backend, one, threads)

    real = trial._try
    monkeypatch.setattr(trial, "_try", run)
    changed = {**FILES, "gradient": FILES["predict"]}  # an error, and not a crash
    assert crash(ONNXRUNTIME, bundle(changed), 1, False) == ""
    assert crash(ONNXRUNTIME, bundle(FILES), 1, False) == ""
    assert tried == [ONNXRUNTIME]
    for programs in (PTE, PTE, {"gradient": PTE["gradient"] + b"\0"}):
        assert crash(EXECUTORCH, bundle(programs, EXECUTORCH), 1, True) == ""
    assert tried == [ONNXRUNTIME, EXECUTORCH, EXECUTORCH]


def test_a_program_that_aborts(executorch_libraries: Path) -> None:
    """A changed byte that passes every check, and then breaks the runtime: one of 400 of this file."""
    changed = bytearray(PTE["gradient"])
    changed[5240] = 47
    found = crash(EXECUTORCH, bundle({"gradient": bytes(changed)}, EXECUTORCH), 1, True)
    assert found.startswith("a trial run ended with SIG")
