"""Makes virtual environments for benchmarks, with packages that this project does not depend on."""

import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

INSTALL_S = 900
# Without this pin, pip may download a build with gigabytes of CUDA libraries.
TORCH = f"torch=={version('torch').partition('+')[0]}"


class Unavailable(Exception):
    """Something that a benchmark requires is unavailable here, or has failed."""


def install(packages: Sequence[Sequence[str]], venv: Path, ours: bool = False) -> Path:
    """Return the Python interpreter of an environment with these packages, created on first use.

    Each element of ``packages`` has the arguments of one call of pip. If ``ours`` is true, the environment
    also has all packages of the current one, which pip leaves unchanged. Raises ``Unavailable`` if pip
    fails.
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
    output("creating a virtual environment", make, log, INSTALL_S)
    if ours:
        (site,) = venv.absolute().glob("lib/python*/site-packages")
        # ``addsitedir`` also reads the .pth files in that folder; editable installations need them.
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
    """Run a program, and return its entire output, which is also written to ``log``.

    Raises ``Unavailable`` if the program fails or takes too long.
    """
    quiet = {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",  # so that a program that runs out of time leaves its output so far
    }
    try:
        ended = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env=os.environ | quiet, timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as exc:
        if exc.output:
            log.write_bytes(exc.output)
        raise Unavailable(f"{what}: not finished after {timeout_s:.0f} s") from None
    with log.open("a") as file:
        file.write(ended.stdout)
    if ended.returncode:
        raise Unavailable(f"{what}: exit status {ended.returncode}, see {log}")
    return ended.stdout
