"""A broker for an emulation or a test: Mosquitto where it is found, amqtt where it is not.

    with open_broker("auto") as broker:
        connect(broker.url)

The broker is a pipe: Sedge relies on none of its promises, so it keeps nothing on disk, and a fault test
may kill it at any time. It listens on the loopback interface alone, for anyone: never use these settings
on a network. The limits are those of a real fleet's broker (cloud/mosquitto.conf).
"""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeAlias
from urllib.parse import urlsplit

from sedge_cloud.admin.runs import MOSQUITTO_LIMITS
from sedge_emulate.broker.exit_guard import LastWill
from sedge_protocol.errors import ConfigError, LinkError

if TYPE_CHECKING:
    from sedge_emulate.broker.amqtt_broker import AmqttBroker

LOOPBACK = "127.0.0.1"
HOW_TO_INSTALL = (
    "a Mosquitto to start (Debian, Ubuntu, Raspberry Pi OS: apt-get install mosquitto; "
    "macOS: brew install mosquitto), the Python package amqtt, or the URL of a running broker"
)
# Where packages put the daemon outside most users' PATH.
_FOLDERS = (
    "/usr/sbin",
    "/usr/local/sbin",
    "/opt/homebrew/sbin",
    "/opt/homebrew/opt/mosquitto/sbin",
    "/usr/local/opt/mosquitto/sbin",
)
_SETTINGS = (
    """\
listener {port} 127.0.0.1
allow_anonymous true
sys_interval 0
connection_messages false
log_dest stderr
log_type error
log_type warning
"""
    + MOSQUITTO_LIMITS
)
_START_S = 10.0
_STOP_S = 5.0
_POLL_S = 0.01
_PORT_TRIES = 5
_LOG_TAIL = 500
_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


class Broker:
    """A Mosquitto of our own on a free port of the loopback interface, for the time of a ``with``.

    ``folder`` keeps its settings and its log; without one they lie in a temporary folder and go with it.
    The port is ``wanted`` where that one is free.
    Entering raises ``ConfigError`` where no Mosquitto is installed, ``LinkError`` where it does not start,
    and sets ``port``, ``folder`` and ``log_path``.
    """

    kind: Literal["mosquitto"] = "mosquitto"
    port: int
    folder: Path
    log_path: Path

    def __init__(self, folder: Path | None = None, wanted: int | None = None) -> None:
        self._given_folder = folder
        self._wanted = wanted
        self._process: subprocess.Popen[bytes] | None = None
        self._will: LastWill | None = None

    @property
    def url(self) -> str:
        """``mqtt://127.0.0.1:port``; the same before and after a restart."""
        return f"mqtt://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process, or None while the broker is down."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self.folder = self._given_folder or Path(tempfile.mkdtemp(prefix="sedge-broker-"))
        self.log_path = self.folder / "mosquitto.log"
        try:
            self.port = on_free_port(self._start, self._wanted)
        except BaseException:
            self.stop()
            self._clean_up()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self._clean_up()

    def stop(self) -> None:
        """Ask the broker to end, and end it if it does not; nothing where it is down already."""
        if self._process is None:
            return
        self._revoke()
        self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End the broker as a power cut would: no goodbye to anyone."""
        if self._process is not None:
            self._revoke()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _revoke(self) -> None:
        if self._will is not None:
            self._will.revoke()
            self._will = None

    def restart(self) -> None:
        """Stop the broker where it runs, and start it, empty, on the same port."""
        self.stop()
        self._start(self.port)

    def _start(self, port: int) -> None:
        """Start on this port and return once it accepts. Raises ``LinkError`` with the log's end."""
        binary = find_mosquitto()
        if binary is None:
            raise ConfigError("broker", "mosquitto", HOW_TO_INSTALL)
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = self.folder / "mosquitto.conf"
        settings.write_text(_SETTINGS.format(port=port))
        # Our own descriptor: started by root, Mosquitto becomes another user who may not open the file.
        with self.log_path.open("ab") as log:
            # A session of its own: Ctrl-C must not take the broker from under devices that say goodbye.
            process = subprocess.Popen(
                [binary, "-c", settings],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._process = process
        self._will = LastWill(process.pid, *([] if self._given_folder else [self.folder]))
        try:
            wait_until_accepting(LOOPBACK, port, _START_S, lambda: process.poll() is None)
        except LinkError as exc:
            self.stop()
            said = self.log_path.read_text(errors="replace").strip()[-_LOG_TAIL:]
            raise LinkError(f"{exc}; {binary} said: {said or 'nothing'}") from exc

    def _clean_up(self) -> None:
        if self._given_folder is None:
            shutil.rmtree(self.folder)


class ExternalBroker:
    """A broker that runs elsewhere; entering only checks that it accepts connections."""

    kind: Literal["external"] = "external"

    def __init__(self, url: str) -> None:
        self.url = url
        self._host, self._port = _address(url)

    def __enter__(self) -> Self:
        wait_until_accepting(self._host, self._port, _START_S, lambda: True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


AnyBroker: TypeAlias = "Broker | AmqttBroker | ExternalBroker"


def open_broker(choice: str = "auto", port: int | None = None) -> AnyBroker:
    """The chosen broker, started when it is entered.

    ``choice`` is ``mosquitto``, ``amqtt``, the URL of a running broker (``mqtt://host:port``), or ``auto``:
    Mosquitto where it is found, else amqtt. One of our own takes ``port`` where that is free. Raises
    ``ConfigError`` where there is none, saying how to install one.
    """
    if choice == "mosquitto" or (choice == "auto" and find_mosquitto() is not None):
        return Broker(wanted=port)
    if choice in ("auto", "amqtt"):
        try:
            from sedge_emulate.broker.amqtt_broker import AmqttBroker
        except ImportError as exc:
            raise ConfigError("broker", choice, HOW_TO_INSTALL) from exc
        return AmqttBroker(port)
    return ExternalBroker(choice)


def find_mosquitto() -> str | None:
    """The path of the Mosquitto daemon, or None."""
    return shutil.which("mosquitto") or shutil.which("mosquitto", path=os.pathsep.join(_FOLDERS))


def on_free_port(start: Callable[[int], None], wanted: int | None = None) -> int:
    """Start something on a port that was free a moment ago, and on another where it was taken since.

    Returns the port, which is ``wanted`` where that works. Raises the last ``LinkError`` where none of a
    few ports works.
    """
    if wanted is not None and _is_free(wanted):
        with suppress(LinkError):
            start(wanted)
            return wanted
    for tries_left in reversed(range(_PORT_TRIES)):
        with socket.socket() as probe:
            probe.bind((LOOPBACK, 0))
            port: int = probe.getsockname()[1]
        try:
            start(port)
        except LinkError:
            if not tries_left:
                raise
        else:
            return port
    raise AssertionError("unreachable: the last try returns or raises")


def wait_until_accepting(
    host: str, port: int, timeout_s: float, is_alive: Callable[[], bool]
) -> None:
    """Return once the port accepts a connection. Raises ``LinkError`` otherwise."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        accepts = _accepts(host, port)
        # Asked after the connection: a stranger who took the port ends ours, and must not pass for it.
        if not is_alive():
            raise LinkError(f"broker on {host}:{port}: ended as it started")
        if accepts:
            return
        time.sleep(_POLL_S)
    raise LinkError(f"broker on {host}:{port}: accepts no connection after {timeout_s:.0f} s")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As brokers do: connections that have just ended keep nobody from listening again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1) as connection:
            # Where nobody listens, TCP may join an ephemeral port with itself: that is no server.
            connected: bool = connection.getsockname() != connection.getpeername()
            return connected
    except OSError:
        return False


def _address(url: str) -> tuple[str, int]:
    expected = "auto, mosquitto, amqtt or a URL such as mqtt://127.0.0.1:1883"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        raise ConfigError("broker", url, expected) from exc
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigError("broker", url, expected)
    return parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port
