"""Ends another process once this one has ended, for whatever reason, including a kill -9.

A small watcher process reads from a pipe whose other end this process holds and never writes to, so the
read ends when this process is gone. This works only on Linux, where a pidfd ensures that the signal cannot
hit a later process with the same PID. On other systems nothing is watched.
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
    """Sends SIGTERM to ``pid`` and deletes ``folders`` when this process ends, unless revoked before."""

    def __init__(self, pid: int, *folders: Path) -> None:
        self._watcher: subprocess.Popen[bytes] | None = None
        if hasattr(os, "pidfd_open"):
            self._watcher = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CODE, str(pid), *map(str, folders)],
                stdin=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # the watcher complains if the process has ended already
                start_new_session=True,  # Ctrl-C is for this process to handle
            )

    def revoke(self) -> None:
        """Cancel the guard, so that nothing happens when this process ends."""
        if self._watcher is not None:
            self._watcher.kill()
            self._watcher.communicate()
            self._watcher = None
