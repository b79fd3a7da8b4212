"""Trial runs: with libraries that crash, which stand in for ones built for another processor."""

import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from tests.edge.backends.softmax import FILES, PTE, F, N, bundle
from tests.edge.home import make_home, put_models

from sedge_edge.backends import open_trainer, trial
from sedge_edge.backends.bundle_trainer import BundleTrainer
from sedge_edge.backends.executorch import LIBRARY, PACKAGE
from sedge_edge.backends.onnx_runtime import OnnxProgram
from sedge_edge.backends.trial import fault
from sedge_edge.config import BackendConfig, load_config
from sedge_edge.prediction import personal_model, predict_file
from sedge_edge.runtime import OpenBundles
from sedge_edge.serving import Model
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, Bundle, Program, pack


@pytest.fixture(autouse=True)
def forgotten(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No trial has been made yet."""
    monkeypatch.setattr(trial, "_found", {})
    yield


Break = Callable[[str], None]


def tried(programs: dict[str, bytes], state_dir: Path | None = None) -> str:
    """The verdict on programs of ExecuTorch."""
    return fault(EXECUTORCH, PACKAGE, bundle(programs, EXECUTORCH), 1, state_dir)


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
    text: str | None, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    if text is not None:
        cpuinfo.write_text(text)
    monkeypatch.setattr(trial, "_CPUINFO", cpuinfo)
    assert trial._reason(signal.SIGILL) == f": this processor lacks {lacks}"


def test_a_hidden_sys(broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken("raise(SIGSEGV);")
    monkeypatch.setattr(trial, "_SYSTEM", tmp_path / "sys")
    reason = f"{tmp_path / 'sys'} is not visible here, but runtimes read it"
    assert tried(PTE) == f"a trial run ended with SIGSEGV: {reason}"


def both() -> Bundle:
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


def test_who_stops_the_agent_stops_a_trial(broken: Break, tmp_path: Path) -> None:
    """That is no crash: the job goes on in the agent, and is stopped there. It is no pass either."""
    broken("raise(SIGTERM);")
    assert tried(PTE, tmp_path / "state") == ""
    assert not (tmp_path / "state" / "trials").exists()
    assert not trial._found


def test_a_trial_that_does_not_end(
    broken: Break, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be the machine's load: the next start of the agent tries again, this one does not."""
    broken("for (;;) pause();")
    monkeypatch.setattr(trial, "TIMEOUT_S", 2.0)
    for _ in range(2):
        assert tried(PTE, tmp_path / "state") == "a trial run did not end within 2 s"
        monkeypatch.setattr(trial, "_try", None)
    assert not (tmp_path / "state" / "trials").exists()


def test_a_trial_that_cannot_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a trial a program is not used."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert tried(PTE).startswith("a trial run could not begin: ")


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each trial, by its number of files; all of them pass, without a process."""
    made: list[int] = []

    def passes(backend: str, one: Bundle, threads: int) -> tuple[str, bool]:
        made.append(len(one.files))
        return "", True

    monkeypatch.setattr(trial, "_try", passes)
    return made


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each trial, by its number of files."""
    made: list[int] = []
    real = trial._try

    def run(backend: str, one: Bundle, threads: int) -> tuple[str | None, bool]:
        made.append(len(one.files))
        return real(backend, one, threads)

    monkeypatch.setattr(trial, "_try", run)
    return made


def test_a_verdict_outlives_the_process(tmp_path: Path, passed: list[int]) -> None:
    """Of all programs of a bundle together; other programs, or another runtime, are tried anew."""
    for _ in range(2):
        assert fault(ONNXRUNTIME, "onnxruntime", bundle(FILES), 1, tmp_path) == ""
        assert tried(PTE, tmp_path) == ""
        trial._found.clear()
    assert passed == [3, 3]
    (tmp_path / "trials").write_bytes(b"damaged")
    assert tried(PTE, tmp_path) == ""
    assert fault(EXECUTORCH, "numpy", bundle(PTE, EXECUTORCH), 1, tmp_path) == ""
    assert tried({"gradient": PTE["gradient"] + b"\0"}, tmp_path) == ""
    assert passed == [3, 3, 3, 3, 1]


def test_a_program_that_reports_an_error_is_no_crash(tmp_path: Path) -> None:
    """No program ran, so that the verdict is not kept."""
    changed = {**FILES, "gradient": FILES["predict"]}
    assert fault(ONNXRUNTIME, "onnxruntime", bundle(changed), 1, tmp_path) == ""
    assert not (tmp_path / "trials").exists()


def test_a_program_that_crashes(
    executorch_libraries: Path, tmp_path: Path, trials: list[int]
) -> None:
    """A changed byte that passes every check, and then breaks the runtime: the next process knows it."""
    changed = bytearray(PTE["gradient"])
    changed[5240] = 47
    for _ in range(2):
        said = tried(dict.fromkeys(PTE, bytes(changed)), tmp_path)
        assert said.startswith("a trial run of 'gradient' ended with SIG")
        trial._found.clear()
    assert trials == [3]


@pytest.mark.usefixtures("passed")
def test_a_reader_that_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program that opens the model makes a trial of its own, and keeps it to itself."""

    def refuse(*_: object) -> None:
        raise PermissionError(13, "no")

    monkeypatch.setattr("sedge_protocol.host.journal.replace_file", refuse)
    assert tried(PTE, tmp_path) == ""
    assert len(trial._found) == 1


def test_nobody_predicts_with_a_program_that_crashed(
    executorch_libraries: Path, tmp_path: Path, trials: list[int]
) -> None:
    """Neither a program that opens the model, nor the command, nor the agent: one trial serves all."""
    changed = bytearray(PTE["gradient"])
    changed[477] = 255
    packed = pack(bundle(dict.fromkeys(PTE, bytes(changed)), EXECUTORCH))
    path = make_home(tmp_path / "home")
    put_models(path, packed, {"run": np.zeros(N, np.float32)})
    state_dir = load_config(path).state_dir
    np.save(tmp_path / "x.npy", np.zeros((2, F), np.float32))
    users: list[Callable[[], object]] = [
        lambda: Model(state_dir),
        lambda: predict_file(personal_model(state_dir), tmp_path / "x.npy", BackendConfig()),
        lambda: OpenBundles("auto", 1, state_dir=state_dir).open(
            BlobFolder(state_dir), hashlib.sha256(packed).digest()
        ),
    ]
    for use in users:
        trial._found.clear()
        with pytest.raises(ConfigError, match="a trial run of 'predict' ended with SIG"):
            use()
    assert trials == [3]
