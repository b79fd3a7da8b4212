"""Runs the tests marked ``gpu``, file by file: gradients, bit-identical results in groups, placement."""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from tools.bench.gpu.cells import CUDA_ONLY, Cell, Figures, Missing, Settings

ROOT = Path(__file__).parents[3]
_MARK = "@pytest.mark.gpu"


def cells(settings: Settings) -> list[Cell]:
    """Return a cell for each file that has tests marked ``gpu``."""
    return [
        Cell({"file": str(path.relative_to(ROOT))}, partial(measured, settings, path))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if _MARK in path.read_text()
    ]


def measured(settings: Settings, path: Path) -> Figures:
    """Run the GPU tests in a file.

    Returns the number of tests with each outcome, and the seconds that they took.

    Raises ``Missing`` with the names of failed tests, or if none passed.
    """
    if settings.device != "cuda":
        raise Missing(CUDA_ONLY)
    if find_spec("pytest") is None:
        raise Missing("pytest is not installed here")
    with tempfile.TemporaryDirectory(prefix="sedge-bench-") as name:
        report = Path(name) / "report.xml"
        words = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider"]
        words += [f"--junit-xml={report}", str(path)]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        if not report.exists():
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            raise Missing(f"pytest: exit status {done.returncode}: {''.join(last)}")
        return summed(report)


def summed(report: Path) -> Figures:
    """Count the results in pytest's report.

    Raises ``Missing`` with the names of failed tests, or if none passed.
    """
    found: Figures = {"passed": 0, "failed": 0, "skipped": 0, "seconds": 0.0}
    failed: list[str] = []
    for case in ElementTree.parse(report).iter("testcase"):
        found["seconds"] += float(case.get("time", 0))
        broken = [case.find("failure"), case.find("error")]
        if reasons := [child for child in broken if child is not None]:
            found["failed"] += 1
            failed.append(f"{case.get('name')} ({reasons[0].get('message', '')[:200]})")
        elif case.find("skipped") is not None:
            found["skipped"] += 1
        else:
            found["passed"] += 1
    if failed or not found["passed"]:
        raise Missing(f"failed: {'; '.join(failed)}" if failed else "none ran", found)
    return found
