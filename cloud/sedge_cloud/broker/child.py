"""A broker as a child process. It is ready once constructed, and always ends when its parent does."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from sedge_cloud.broker.exit_guard import ExitGuard
from sedge_cloud.broker.ports import LOOPBACK, wait_until_accepting
from sedge_protocol.errors import LinkError

HOW_TO_INSTALL = (
    "Mosquitto (Debian, Ubuntu, Raspberry Pi OS: apt-get install mosquitto; "
    "macOS: brew install mosquitto)"
)
# The folders where packages install the daemon, which most users' PATH does not include.
_FOLDERS = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/opt/homebrew/sbin",
    "/opt/homebrew/opt/mosquitto/sbin",
    "/usr/local/opt/mosquitto/sbin",
)
_START_S = 30.0
_STOP_S = 5.0


def find_mosquitto() -> str | None:
    """Return the path of the Mosquitto daemon, or None."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_FOLDERS))


class BrokerProcess:
    """A broker that this process has started on a port. Its output is appended to a log.

    The constructor returns once the broker accepts connections, and raises ``LinkError`` with the log's
    last line if it does not. When this process ends, ``folders`` are deleted.
    """

    def __init__(
        self, command: Sequence[str], port: int, log_path: Path, folders: Sequence[Path] = ()
    ) -> None:
        # We open the log: if started by root, Mosquitto switches to another user, who
        # may not open the file.
        with log_path.open("ab") as log:
            # The broker gets its own session. Otherwise Ctrl-C would stop it before the devices have said
            # goodbye.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._guard = ExitGuard(self.pid, *folders)
        try:
            wait_until_accepting(LOOPBACK, port, _START_S, lambda: self._process.poll() is None)
        except LinkError as exc:
            self.stop()
            last_words = log_path.read_text(errors="replace").strip().rpartition("\n")[2]
            raise LinkError(f"{exc}; {command[0]} said: {last_words or 'nothing'}") from exc

    def stop(self) -> None:
        """Ask the broker to exit, and kill it if it does not."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        self.kill()

    def kill(self) -> None:
        """Kill the broker as a power cut would, without letting it say goodbye to its clients."""
        self._guard.revoke()
        self._process.kill()
        self._process.wait()
