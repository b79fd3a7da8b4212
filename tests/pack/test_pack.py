"""A pack: made offline from a small checkout and a small wheel, then unpacked and run by its own script."""

import gzip
import json
import os
import platform
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from tools.pack.__main__ import main
from tools.pack.packing import PackError, Wanted, idx, pack
from tools.wheels import NoWheel

from sedge_emulate.data.datasets import FILES, read_idx

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="a pack is for this platform"
)
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
IMAGES = np.arange(5 * 28 * 28, dtype=np.uint32).astype(np.uint8).reshape(5, 28, 28)
LABELS = np.array([3, 1, 4, 1, 5], np.uint8)
# The benchmark of the small checkout: what it finds where it runs.
BENCHMARK = """\
import json, os, sys, tempfile
from importlib.metadata import version
from pathlib import Path
import sedge_protocol, tiny
from sedge_emulate import WHO
found = {"tiny": tiny.__file__, "who": WHO, "version": version("sedge-fl"), "torch": "torch" in sys.modules}
found["data"] = sorted(os.listdir(os.environ["SEDGE_DATA"]))
found["here"] = sorted(str(path) for path in Path().rglob("*.*"))
found["unused"] = [str(path) for path in Path(tiny.__file__).parent.rglob("big.py")]
tempfile.mkstemp()
found["options"] = sys.argv[1:]
Path(os.environ["OUT"], "data").write_bytes(Path(os.environ["SEDGE_DATA"], "IMAGES").read_bytes())
print(json.dumps(found))
""".replace("IMAGES", FILES[0][0])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout with one file that was changed since and one that git does not know, data, and a wheel."""
    folder = tmp_path_factory.mktemp("parts")
    root = folder / "root"
    files = {
        "tools/bench/__main__.py": BENCHMARK,
        "protocol/sedge_protocol/__init__.py": "",
        "tools/emulate/sedge_emulate/__init__.py": "WHO = 'the commit'\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_text(text)
    _git(root, "init", "--quiet")
    _git(root, "add", ".")
    _git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "one")
    (root / "tools/emulate/sedge_emulate/__init__.py").write_text("WHO = 'the working tree'\n")
    (root / "untracked.txt").write_text("")
    (folder / "data").mkdir()
    for images, labels in FILES:
        (folder / "data" / images).write_bytes(gzip.compress(idx(IMAGES)))
        (folder / "data" / labels).write_bytes(gzip.compress(idx(LABELS)))
    with zipfile.ZipFile(folder / "tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("onnxruntime/transformers/big.py", "")
        info = "tiny-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_CONFIG_FILE", os.devnull)
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(folder))
        patch.setenv("SEDGE_DATA", str(folder / "data"))
        yield folder


def wanted(parts: Path, limit: int = 10**6, python: str = PYTHON) -> Wanted:
    return Wanted(parts / "root", python, 3, limit, ("tiny",))


@pytest.fixture(scope="module")
def made(parts: Path) -> Path:
    content = pack(wanted(parts), parts / "pack")
    assert content.packages == [f"sedge-fl=={version('sedge-fl')}", "tiny==1.0"]
    assert content.commit.endswith("-dirty")
    return parts / "pack"


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """The pack, carried to another place."""
    (tmp_path / "tmp").mkdir()
    return shutil.copytree(made, tmp_path / "carried here")


def run(
    folder: Path, *words: str, python: str = sys.executable, before: str = "exec"
) -> subprocess.CompletedProcess[str]:
    """What the script says, with ``before`` it in the shell; nothing stays in the temporary folder."""
    temporary = folder.parent / "tmp"
    settings = {"PATH": os.defpath, "PYTHON": python, "TMPDIR": str(temporary), "OUT": "kept"}
    command = ["sh", "-c", f'{before} "$0" "$@"', str(folder / "run"), *words]
    done = subprocess.run(command, env=settings, cwd=folder.parent, capture_output=True, text=True)
    assert not list(temporary.iterdir())
    return done


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a pack that cannot run here."""
    assert (done.returncode, done.stdout) == (2, "")
    *before, line = done.stderr.splitlines()
    assert not before or before == [f"run: {sys.executable} is {_probed()}"]
    assert line.startswith("run: ")
    return line


def _probed() -> str:
    import torch

    return f"cpython {PYTHON} x86_64 {torch.__file__}"


def test_it_runs_the_benchmark_where_it_was_carried(copy: Path) -> None:
    done = run(copy, "--stage", "tests")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["who"], found["version"]) == ("the working tree", version("sedge-fl"))
    assert (found["torch"], found["unused"]) == (False, [])
    assert found["tiny"].endswith("/packages/tiny.py")
    assert found["data"] == sorted(name for pair in FILES for name in pair)
    assert "untracked.txt" not in found["here"]
    kept = copy.parent / "kept"
    options = f"gpu --out {kept} --json {kept / 'gpu.json'} --stage tests"
    assert " ".join(found["options"]) == options
    assert (kept / "output.txt").read_text() == done.stdout
    assert np.array_equal(read_idx(kept / "data", 3), IMAGES[:3])


def test_a_machine_that_cannot_run_it(made: Path, copy: Path, parts: Path) -> None:
    bare = copy.parent / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    expected = f"expected cpython {PYTHON} x86_64 with torch; name it in PYTHON"
    line = refusal(run(copy, python=str(bare)))
    assert line == f"run: {bare} is cpython {PYTHON} x86_64 without torch; {expected}"
    assert refusal(run(copy, python="/nowhere/python")) == f"run: no Python; {expected}"
    pack(wanted(parts, python="3.7"), parts / "older")
    line = refusal(run(shutil.copytree(parts / "older", copy.parent / "older")))
    assert f"{sys.executable} is cpython {PYTHON} x86_64" in line
    assert "expected cpython 3.7 x86_64 with torch" in line


def test_a_damaged_or_incomplete_pack(copy: Path) -> None:
    data = copy / "data.tar.xz"
    whole = data.read_bytes()
    data.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "damaged or incomplete: data.tar.xz: FAILED; copy it again" in refusal(run(copy))
    data.unlink()
    assert "data.tar.xz: No such file" in refusal(run(copy))
    data.write_bytes(whole)
    (copy / "SHA256SUMS").unlink()
    assert "SHA256SUMS: No such file" in refusal(run(copy))


def test_a_full_disk(copy: Path) -> None:
    line = refusal(run(copy, before="ulimit -f 1; exec"))
    assert "unpacking into" in line and "File too large" in line
    content = copy / "content.json"
    content.write_text(json.dumps({**json.loads(content.read_text()), "unpacked_bytes": 10**18}))
    summed = subprocess.run(["sha256sum", content.name], cwd=copy, capture_output=True, check=True)
    (copy / "SHA256SUMS").write_bytes(summed.stdout)
    expected = "MB free, expected 1,000,000,000,000 MB; set TMPDIR to another folder"
    assert expected in refusal(run(copy))


def test_what_cannot_be_packed(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, line in (
        (["--python", "3"], "pack: --python: '3', expected a version such as 3.12"),
        (["--train-images", "0"], "pack: --train-images: 0, expected 1 to 60,000"),
    ):
        assert main([*words, "--out", str(tmp_path / "pack")]) == 2
        assert capsys.readouterr().err == f"{line}\n"
    (tmp_path / "mine").write_text("")
    with pytest.raises(PackError, match="contains something else"):
        pack(wanted(parts), tmp_path)
    with pytest.raises(PackError, match="expected a checkout"):
        pack(Wanted(tmp_path, PYTHON, 3, 10**6, ("tiny",)), tmp_path / "pack")
    with pytest.raises(NoWheel, match=r"no wheel for CPython 3\.12 on Linux .* numpy==\S+ \(const"):
        pack(Wanted(parts / "root", "3.12", 3, 10**6, ("numpy",)), tmp_path / "pack")
    assert not (tmp_path / "pack").exists()


@pytest.mark.slow
def test_a_whole_pack_without_a_network(tmp_path: Path) -> None:
    """The real one, for this Python: an emulation where nothing can be reached."""
    assert os.geteuid() == 0, "a machine without a network needs root"
    made, fleet = tmp_path / "pack", tmp_path / "fleet.toml"
    assert main(["--python", PYTHON, "--train-images", "2000", "--out", str(made)]) == 0
    fleet.write_text(
        'devices = 4\n[data]\ndataset = "fashion-mnist"\nexamples = 500\n[rounds]\nnum_rounds = 1\n'
        '[[strategies]]\nname = "fedavg"\n'
    )
    (tmp_path / "tmp").mkdir()
    emulation = ["-m", "sedge_emulate", "run", str(fleet), "--out", str(tmp_path / "fleet")]
    done = run(made, *emulation, before="exec unshare --net")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "fleet/result.json").exists()


def _git(root: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=root, check=True)
