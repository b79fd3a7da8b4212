"""Builds a release in dist/: wheel, sdist, man pages, and an SBOM of a device's installation.

    python -m tools.dist [--out FOLDER]

The wheel is checked by installing it with the extra ``onnx`` into a new environment, where its commands
must start. This needs the extra ``dist``. Nothing is uploaded.
"""

import argparse
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.dist.manual import manual
from tools.dist.parsers import COMMANDS

ROOT = Path(__file__).parents[2]
# The other commands need torch, which a device does not have.
ON_A_DEVICE = ("sedge-edge", "sedge-cloud")


def run(*words: str | Path) -> None:
    """Run a command. Raises ``CalledProcessError`` if it fails."""
    subprocess.run([str(word) for word in words], check=True)


def release(out: Path) -> None:
    """Build and check everything. Raises ``CalledProcessError`` at the first failure."""
    out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as temporary:
        built = Path(temporary, "built")
        run(sys.executable, "-m", "build", "--outdir", built, ROOT)
        files = sorted(built.iterdir())
        run(sys.executable, "-m", "twine", "check", "--strict", *files)
        environment = installed(next(built.glob("*.whl")), Path(temporary, "environment"))
        bill = out / f"{next(built.glob('*.whl')).stem}.cdx.json"
        scan = ("-m", "cyclonedx_py", "environment", "--pyproject", ROOT / "pyproject.toml")
        run(sys.executable, *scan, "-o", bill, environment)
        for file in files:
            shutil.copy(file, out)
    write_manuals(out / "man", COMMANDS)
    print(f"{out}: {', '.join(sorted(path.name for path in out.iterdir()))}")


def installed(wheel: Path, environment: Path) -> Path:
    """Install the wheel in a new environment, as on a device, and start its commands there.

    Returns the environment's folder.
    """
    venv.create(environment)  # without pip, which the SBOM must not list
    pip = (sys.executable, "-m", "pip", "--python", environment / "bin" / "python", "install")
    run(*pip, "--quiet", "--constraint", ROOT / "constraints.txt", f"{wheel}[onnx]")
    for command in ON_A_DEVICE:
        run(environment / "bin" / command, "--version")
    return environment


def write_manuals(folder: Path, commands: Iterable[str]) -> None:
    """Write a man page for each command."""
    folder.mkdir(parents=True, exist_ok=True)
    for command in commands:
        (folder / f"{command}.1").write_text(manual(command))


def main() -> int:
    """Build a release. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tools.dist", description="Make a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    try:
        release(parser.parse_args().out)
    except subprocess.CalledProcessError as exc:
        print(f"dist: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
