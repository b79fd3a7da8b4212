"""The tests of on_a_card, in a process of their own: autograd asks once which devices there are."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


@pytest.mark.slow
def test_on_a_card() -> None:
    words = [
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0",
        str(HERE / "on_a_card.py"),
    ]  # fmt: skip
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
