"""``sedge-cloud up``: runs a trial fleet with its own broker, and creates its files on the first start.

The folder has the same files as one created by ``init``, so ``serve`` can take over a trial that becomes
permanent.
"""

import re
import shlex
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from sedge_cloud.admin.enrolment import add_device, join_text
from sedge_cloud.admin.templates import MOSQUITTO_CONF, PID_FILE, write_first_files
from sedge_cloud.broker.child import HOW_TO_INSTALL, BrokerProcess, find_mosquitto
from sedge_cloud.broker.ports import LOOPBACK, is_free
from sedge_cloud.config import CloudConfig, load_cloud
from sedge_cloud.store.opening import open_store
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.mqtt import BrokerSettings

FIRST_DEVICE = "device-1"
HTTP = """
# The status page: http://{listen}
[http]
listen = "{listen}"
"""
# pkill may fail with status 1 (no such process), because a broker that is not running will read its
# passwords when it starts. A stale PID file harms no other process: the process name must match, too.
RELOAD = """sh -c '[ ! -e "$0" ] || pkill -HUP -x -F "$0" mosquitto || [ $? = 1 ]' {pid}"""
_PASSWORDS = re.compile(r"^password_file (.+)$", re.MULTILINE)
_PORTS, _PAGE_PORTS = range(1883, 1983), range(8470, 8570)
# An address in TEST-NET-1. Nothing is sent there; connecting a UDP socket to it reveals the local address
# that the system would use.
_ELSEWHERE = "192.0.2.1", 9


@contextmanager
def trial(folder: Path, url: str | None) -> Generator[str]:
    """Run the trial's broker for the duration of a ``with`` block. Yields the greeting.

    A folder without a cloud.toml gets its initial files and a fleet named after the folder. A fleet without
    devices gets a first device. ``url`` is where devices reach the broker, by default this machine's
    address and a free port. Raises ``ConfigError`` if Mosquitto is missing, the folder is a copy, or
    another program uses the port.
    """
    mosquitto = find_mosquitto()
    if mosquitto is None:
        raise ConfigError("sedge-cloud up", "no Mosquitto", HOW_TO_INSTALL)
    if not (folder / "cloud.toml").exists():
        _require_empty(folder)
        _write_files(folder, url)
    elif url is not None:
        raise ConfigError("--url", url, f"no URL: {folder / 'cloud.toml'} has one")
    cloud, moved = _in_place(folder)
    port = BrokerSettings(cloud.broker.url, "").endpoint().port
    _require_free(port, folder)
    with closing(open_store(cloud)) as store:
        if not (store.devices() or (folder / FIRST_DEVICE).exists()):
            add_device(store, cloud, FIRST_DEVICE, folder / FIRST_DEVICE)
    command = [mosquitto, "-c", str(folder.resolve() / MOSQUITTO_CONF)]
    broker = BrokerProcess(command, port, folder / "mosquitto.log")
    try:
        yield "\n".join([*moved, *_greeting(folder, cloud)])
    finally:
        broker.stop()


def _require_empty(folder: Path) -> None:
    """Raise ``ConfigError`` if the folder already holds other files."""
    with translated("read", folder):
        if folder.exists() and any(folder.iterdir()):
            raise ConfigError("folder", str(folder), "a new or empty one, or one with a cloud.toml")


def _in_place(folder: Path) -> tuple[CloudConfig, list[str]]:
    """Load the configuration.

    If the folder was moved, also write its new path into its files and return a line that says so.

    Mosquitto reads absolute paths only. Raises ``ConfigError`` if the folder is a copy and the original
    still exists.
    """
    cloud, path = load_cloud(folder / "cloud.toml"), folder / MOSQUITTO_CONF
    passwords = cloud.broker.device_password_file
    with translated("read", path):
        named = _PASSWORDS.search(path.read_text(errors="replace"))
    if named is None or passwords is None or Path(named[1]).resolve() == Path(passwords).resolve():
        return cloud, []
    old, new = Path(named[1]).parent, folder.resolve()
    if old.exists():
        expected = f"{passwords}: this folder is a copy of {old}, which is still there"
        raise ConfigError("password_file", named[1], expected, str(path))
    for file in (path, folder / "cloud.toml"):
        with translated("write", file):
            file.write_text(file.read_text().replace(str(old), str(new)))
    return load_cloud(folder / "cloud.toml"), [f"{old} was moved here: its files now name {new}"]


def _require_free(port: int, folder: Path) -> None:
    """Raise ``ConfigError`` for a port that is in use."""
    if is_free(port):
        return
    expected = "a free port: stop whatever listens there, perhaps this trial in another terminal"
    raise ConfigError("broker", f"port {port}, in use", expected, str(folder / MOSQUITTO_CONF))


def _greeting(folder: Path, cloud: CloudConfig) -> list[str]:
    """Return a greeting that shows the fleet's address and the commands to type next."""
    command, broker = f"sedge-cloud -c {folder / 'cloud.toml'}", cloud.broker
    lines = [
        f"Fleet {cloud.fleet}: its devices reach the broker at {broker.device_url or broker.url}"
    ]
    if cloud.http.listen is not None:
        lines.append(f"The page: http://{cloud.http.listen}")
    else:
        lines.append(
            "No status page: it needs pip install 'sedge-fl[http]' and [http] in cloud.toml"
        )
    with closing(open_store(cloud)) as store:
        is_waiting = any(
            row.device == FIRST_DEVICE and row.hello is None for row in store.devices()
        )
    if is_waiting:
        with suppress(StorageError):  # it is missing if the folder was moved to the device
            line = join_text(folder / FIRST_DEVICE)
            lines += [
                "On the first device: sedge-edge join, and this line, which holds its secret:",
                line,
            ]
    return [
        *lines,
        "To add ten more devices with one join token, and to start a run:",
        f"  {command} device token add --count 10 --accept",
        *(
            []
            if broker.reload
            else [f"  pkill -HUP -F {folder / PID_FILE}    # after each `device` command"]
        ),
        f"  {command} run start NAME --bundle FOLDER --run-file FILE",
        "Ctrl-C stops the coordinator and the broker; the same command restarts them. "
        f"All files are in {folder}.",
    ]


def _write_files(folder: Path, url: str | None) -> None:
    port = BrokerSettings(url, "").endpoint().port if url else _free_one(_PORTS)
    _require_free(port, folder)
    http, root = "", folder.resolve()
    if find_spec("uvicorn"):
        http = HTTP.format(listen=f"{LOOPBACK}:{_free_one(_PAGE_PORTS)}")
    more = {
        "device_url": url or f"mqtt://{_own_address()}:{port}",
        "reload": RELOAD.format(pid=shlex.quote(str(root / PID_FILE))),
    }
    write_first_files(folder, root.name, f"mqtt://{LOOPBACK}:{port}", more, http)


def _free_one(ports: range) -> int:
    """Return the first free port. Raises ``ConfigError`` if there is none."""
    for port in ports:
        if is_free(port):
            return port
    raise ConfigError("sedge-cloud up", f"ports {ports[0]} to {ports[-1]} in use", "a free one")


def _own_address() -> str:
    """Return this machine's address in its network, or the loopback address if it has no network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)
        except OSError:
            return LOOPBACK
        address: str = probe.getsockname()[0]
        return address
