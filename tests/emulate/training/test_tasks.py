"""What asks a trainer for something, and starts without loading one."""

import subprocess
import sys


def test_asking_needs_no_torch() -> None:
    code = "import sys, sedge_emulate.training.tasks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
