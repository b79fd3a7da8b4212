"""Builds the agent's packages for arm64: wheels, folders with unpacked wheels, and the Debian package."""

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tools.arm64.kept import ROOT, kept
from tools.deb.__main__ import build
from tools.wheels import target

EXTRAS = {"onnxruntime": "onnx", "executorch": "executorch"}
# The agent's own tests also need these packages; the tests build programs with onnx.
_TESTS = ("pytest", "onnx")
_PROJECT = ("pyproject.toml", "constraints.txt")
_SOURCES = ("cloud", "edge", "protocol", "tools/conformance", "tools/emulate", "tools/export")
# Debian 12, and the Raspberry Pi OS based on it, has Python 3.11 and glibc 2.36.
_TARGET = target("3.11", "aarch64", 36)


def _pip(*words: str) -> None:
    quiet = ("--quiet", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", *words, *quiet], check=True)


def _bytes(*folders: str) -> Iterable[bytes]:
    files = (path for name in folders for path in sorted((ROOT / name).rglob("*")))
    return (p.read_bytes() for p in files if p.is_file() and "__pycache__" not in p.parts)


def wheels() -> Path:
    """Return a folder with the two wheels of this checkout: sedge-fl, and sedge-executorch for arm64."""

    def make(folder: Path) -> None:
        _pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
        build = [str(ROOT / "edge/native/build.py"), "--machine", "aarch64", "--out", str(folder)]
        subprocess.run([sys.executable, *build], check=True, stdout=subprocess.DEVNULL)

    project = ((ROOT / name).read_bytes() for name in _PROJECT)
    return kept("wheels", [*project, *_bytes(*_SOURCES)], make)


def _unpacked(name: str, key: Iterable[bytes], wanted: Sequence[str]) -> Path:
    def make(folder: Path) -> None:
        constraints = str(ROOT / "constraints.txt")
        _pip("install", "--target", str(folder), *_TARGET, "-c", constraints, *wanted)

    return kept(name, key, make)


def agent(backend: str) -> Path:
    """Return the site-packages folder of a device: the agent and its dependencies for one backend."""
    ours = wheels()
    wanted = ["--find-links", str(ours), f"sedge-fl[{EXTRAS[backend]}]"]
    return _unpacked(backend, [ours.name.encode(), *(word.encode() for word in _TARGET)], wanted)


def tests() -> Path:
    """Return a folder with the packages that only the agent's own tests need."""
    key = [*(word.encode() for word in _TESTS), (ROOT / "constraints.txt").read_bytes()]
    return _unpacked("tests", key, _TESTS)


def downloaded(backend: str) -> Path:
    """Return a folder with every wheel that a device needs to install the agent without a network."""
    ours = wheels()

    def make(folder: Path) -> None:
        constraints = str(ROOT / "constraints.txt")
        words = ["--dest", str(folder), "--find-links", str(ours), "-c", constraints]
        _pip("download", *words, *_TARGET, f"sedge-fl[{EXTRAS[backend]}]")

    return kept(f"wheels-{backend}", [ours.name.encode()], make)


def deb() -> Path:
    """Return the path of the agent's Debian package."""
    ours = wheels()

    def make(folder: Path) -> None:
        (wheel,) = ours.glob("sedge_fl-*.whl")
        with tempfile.TemporaryDirectory() as stage:
            build("edge", "arm64", 12, wheel, Path(stage) / "edge", folder)

    sources = sorted((ROOT / "tools/deb").rglob("*"))
    key = [ours.name.encode(), *(path.read_bytes() for path in sources if path.is_file())]
    (package,) = kept("deb", key, make).iterdir()
    return package


def size_mb(folder: Path) -> float:
    """Return the total size of a folder's files in MB."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
