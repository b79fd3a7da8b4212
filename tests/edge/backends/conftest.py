"""The libraries of ExecuTorch as a device has them, built by the project's own script."""

import hashlib
import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "edge" / "native"


def unpacked_wheel() -> Path:
    """Where sedge-executorch is installed, as on a device; otherwise its wheel for this machine, unpacked.

    That is kept below build/ as long as its sources stay the same.
    """
    installed = importlib.util.find_spec("sedge_executorch")
    if installed is not None and installed.origin is not None:
        return Path(installed.origin).parents[1]
    sources = b"".join(path.read_bytes() for path in sorted(NATIVE.iterdir()) if path.is_file())
    key = hashlib.sha256(sources).hexdigest()[:16]
    folder = ROOT / "build" / f"sedge-executorch-{key}"
    if not folder.exists():
        folder.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            words = [str(NATIVE / "build.py"), "--out", temporary, "--machine", platform.machine()]
            subprocess.run([sys.executable, *words], check=True)
            (wheel,) = Path(temporary).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(Path(temporary) / "site")
            if not folder.exists():  # another process may have been first
                shutil.move(Path(temporary) / "site", folder)
    return folder


@pytest.fixture(scope="module")
def executorch_libraries() -> Iterator[Path]:
    """The folder that sedge-executorch is installed in, for this process and those it starts."""
    folder = unpacked_wheel()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        importlib.invalidate_caches()
        yield folder
