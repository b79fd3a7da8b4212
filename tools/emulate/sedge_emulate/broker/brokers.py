"""Starts a broker for an emulation or a test: Mosquitto if it is installed, otherwise amqtt.

    with open_broker("auto") as broker:
        connect(broker.url)

Sedge does not rely on the broker to deliver messages, so the broker keeps nothing on disk, and a fault test
may kill it at any time. It listens only on the loopback interface but admits any client: never use these
settings on a network. The limits are the same as for a real fleet's broker (cloud/mosquitto.conf).
"""

import json
import shutil
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import urlsplit

from sedge_cloud.admin.templates import MOSQUITTO_LIMITS
from sedge_cloud.broker.child import HOW_TO_INSTALL, BrokerProcess, find_mosquitto
from sedge_cloud.broker.ports import LOOPBACK, on_free_port, wait_until_accepting
from sedge_protocol.errors import ConfigError

EXPECTED = f"{HOW_TO_INSTALL}, the Python package amqtt, or the URL of a running broker"
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
# amqtt's own command keeps running without a listener if the port is taken; this script exits.
_AMQTT = """\
import asyncio, json, sys
from amqtt.broker import Broker

async def serve():
    await Broker(json.loads(sys.argv[1])).start()
    await asyncio.Event().wait()

try:
    asyncio.run(serve())
except Exception as exc:
    sys.exit(str(exc))
"""
_START_S = 30.0
_DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


class Broker:
    """Mosquitto on a free loopback port, running for the duration of a ``with`` block.

    Its settings and log are in ``folder``, by default a temporary folder that is deleted at the end. The
    port is ``wanted`` if that is free. Entering the block sets ``port``, ``folder`` and ``log_path``. It
    raises ``ConfigError`` if Mosquitto is not installed and ``LinkError`` if it does not start.
    """

    kind = "mosquitto"
    port: int
    folder: Path
    log_path: Path

    def __init__(self, folder: Path | None = None, wanted: int | None = None) -> None:
        self._given_folder = folder
        self._wanted = wanted
        self._process: BrokerProcess | None = None

    @property
    def url(self) -> str:
        """``mqtt://127.0.0.1:port``, which a restart does not change."""
        return f"mqtt://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The process id, or None while the broker is down."""
        return self._process.pid if self._process else None

    def __enter__(self) -> Self:
        self.folder = self._given_folder or Path(tempfile.mkdtemp(prefix="sedge-broker-"))
        self.log_path = self.folder / f"{self.kind}.log"
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
        """Ask the broker to exit, and kill it if it does not. Does nothing if the broker is down."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """Kill the broker abruptly, as a power cut would: clients get no DISCONNECT."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stop the broker if it runs, and start it again on the same port without its former state."""
        self.stop()
        self._start(self.port)

    def _command(self, port: int) -> list[str]:
        """Return the command that starts the broker on this port."""
        binary = find_mosquitto()
        if binary is None:
            raise ConfigError("broker", "mosquitto", EXPECTED)
        settings = self.folder / "mosquitto.conf"
        settings.write_text(_SETTINGS.format(port=port))
        return [binary, "-c", str(settings)]

    def _start(self, port: int) -> None:
        """Start the broker on ``port``, and return once it accepts connections.

        Raises ``LinkError`` with the last lines of the log if the broker does not start.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        folders = () if self._given_folder else (self.folder,)
        self._process = BrokerProcess(self._command(port), port, self.log_path, folders)

    def _clean_up(self) -> None:
        if self._given_folder is None:
            shutil.rmtree(self.folder)


class AmqttBroker(Broker):
    """An amqtt broker, for demonstrations on machines where Mosquitto cannot be installed.

    Written for amqtt 0.12, which speaks only MQTT 3.1.1 and has a fifth of Mosquitto's throughput. It also
    drops messages for anonymous clients that are offline; Sedge's own receipts make up for that.
    """

    kind = "amqtt"

    def _command(self, port: int) -> list[str]:
        if find_spec("amqtt") is None:
            raise ConfigError("broker", "amqtt", EXPECTED)
        settings = {
            "listeners": {"default": {"type": "tcp", "bind": f"{LOOPBACK}:{port}"}},
            "plugins": {
                "amqtt.plugins.authentication.AnonymousAuthPlugin": {"allow_anonymous": True}
            },
        }
        return [sys.executable, "-c", _AMQTT, json.dumps(settings)]


class ExternalBroker:
    """A broker that is already running. Entering the context only checks that it accepts connections."""

    kind = "external"

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


AnyBroker: TypeAlias = Broker | ExternalBroker


def open_broker(choice: str = "auto", port: int | None = None) -> AnyBroker:
    """Return the broker named by ``choice``, which starts when the returned object is entered.

    ``choice`` is ``mosquitto``, ``amqtt``, the URL of a running broker (``mqtt://host:port``), or ``auto``:
    Mosquitto if it is installed, otherwise amqtt. A broker started here listens on ``port`` if that is
    free. Raises ``ConfigError`` for any other choice. Entering raises ``ConfigError`` with installation
    advice if the chosen broker is not installed.
    """
    if choice == "mosquitto" or (choice == "auto" and find_mosquitto() is not None):
        return Broker(wanted=port)
    return AmqttBroker(wanted=port) if choice in ("auto", "amqtt") else ExternalBroker(choice)


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
