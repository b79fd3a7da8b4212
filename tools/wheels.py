"""Installs wheels for another Python or processor, at the versions of constraints.txt."""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"


class NoWheel(Exception):
    """Raised if a requirement has no wheel for the target. The message names both."""


def target(python: str, machine: str, glibc: int) -> list[str]:
    """Return pip's options for CPython ``python`` ("3.12") on Linux with glibc 2.``glibc``, wheels only."""
    words = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
    tags = [*(f"manylinux_2_{minor}" for minor in range(glibc, 16, -1)), "manylinux2014"]
    return [*words, *(f"--platform={tag}_{machine}" for tag in tags)]


def install(
    folder: Path, requirements: Sequence[str], python: str, machine: str, glibc: int
) -> None:
    """Unpack the wheels of ``requirements`` and their dependencies into ``folder``.

    Raises ``NoWheel`` if a wheel is missing.
    """
    words = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "-qq"]
    words += ["--target", str(folder), "--no-compile", "--constraint", str(CONSTRAINTS)]
    words += [*target(python, machine, glibc), *requirements]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        where = f"CPython {python} on Linux {machine} with glibc 2.{glibc}"
        raise NoWheel(f"no wheel for {where}: {cause(done.stderr)}")


def cause(said: str) -> str:
    """Return the package for which pip failed and its version in constraints.txt, or pip's last line."""
    failed = r"(?:Cannot install|satisfies the requirement) ([A-Za-z0-9._-]+)(.*?)$"
    if match := re.search(failed, said, re.MULTILINE):
        name, rest = match.groups()
        pin = re.search(rf"(?m)^{re.escape(name)}==\S+", CONSTRAINTS.read_text())
        versions = re.search(r"\(from versions: .*\)", rest)
        pinned = f"{pin[0]} (constraints.txt)" if pin else name
        return f"{pinned} {versions[0]}" if versions else pinned
    lines = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "pip failed"
