"""A benchmark's own virtual environments, for packages that this project does not depend on."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

INSTALL_S = 900
# Another version may bring gigabytes of CUDA.
TORCH = f"torch=={version('torch').partition('+')[0]}"


class Unavailable(Exception):
    """A requirement of a benchmark is unavailable here, or has failed."""


def install(packages: Sequence[Sequence[str]], venv: Path, ours: bool = False) -> Path:
    """The interpreter of an environment with these packages, created on first use.

    Each of ``packages`` is one call of pip. With ``ours`` the environment also has all of this one's
    packages, which pip leaves unchanged. Raises ``Unavailable``.
    """
    python, ready, log = (
        venv.absolute() / "bin" / "python",
        venv / "ready",
        venv.with_suffix(".log"),
    )
    wanted = "\n".join(" ".join(each) for each in packages)
    if ready.exists() and ready.read_text() == wanted:
        return python
    venv.parent.mkdir(parents=True, exist_ok=True)
    make = [sys.executable, "-m", "venv", "--clear", str(venv)]
    output("making a virtual environment", make, log, INSTALL_S)
    if ours:
        (site,) = venv.absolute().glob("lib/python*/site-packages")
        # addsitedir also reads the .pth files there, of packages that are installed for development.
        line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        (site / "ours.pth").write_text(line)
    for each in packages:
        what = f"pip install {' '.join(each)}"
        print(f"{what} into {venv}", flush=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        output(what, [*pip, *each], log, INSTALL_S)
    ready.write_text(wanted)
    return python


def output(what: str, words: Sequence[str], log: Path, timeout_s: float) -> str:
    """A program's whole output, also written to ``log``. Raises ``Unavailable`` when it fails."""
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",  # keep its output so far if time runs out
    }
    try:
        ended = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | quiet, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        if exc.output:
            log.write_bytes(exc.output)
        raise Unavailable(f"{what}: not done after {timeout_s:.0f} s") from None
    with log.open("a") as file:
        file.write(ended.stdout)
    if ended.returncode:
        raise Unavailable(f"{what}: exit status {ended.returncode}, see {log}")
    return ended.stdout
