"""Ends another process once this one has ended, in whatever way: a kill -9 leaves no chance to clean up.

A small process waits for the end of a pipe that nobody writes to. The end comes when this process, which
holds the other end, is gone. On Linux only: there a process can be named so that a later one with the
same number is not hit. Elsewhere nothing is watched.
"""

import os
import subprocess
import sys
from pathlib import Path

_CODE = """\
import os, shutil, signal, sys
process = os.pidfd_open(int(sys.argv[1]))
sys.stdin.buffer.read()
signal.pidfd_send_signal(process, signal.SIGTERM)
for folder in sys.argv[2:]:
    shutil.rmtree(folder, ignore_errors=True)
"""


class ExitGuard:
    """At the end of this process ``pid`` gets SIGTERM and ``folders`` are deleted, unless it is revoked."""

    def __init__(self, pid: int, *folders: Path) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None
        if hasattr(os, "pidfd_open"):
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, str(pid), *map(str, folders)],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the process may have ended already
                start_new_session=True,  # Ctrl-C is for this process to handle
            )

    def revoke(self) -> None:
        """Cancel: nothing happens at the end of this process."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
