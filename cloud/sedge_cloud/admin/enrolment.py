"""Who may take part: a device's id, secret and files, and its line among the broker's passwords."""

import base64
import contextlib
import hashlib
import json
import os
import shlex
import shutil
import stat
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

from sedge_cloud.config import COORDINATOR, CloudConfig
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError, SedgeError, StorageError
from sedge_protocol.host.disk import opened, replace_file, sync_folder, translated, write_at
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.posix import lock
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.wire.topics import check_id

# mosquitto_passwd's own format and count: $7$ is PBKDF2-SHA512. The password is 256 random bits, so the
# count need not slow down guessing.
_ITERATIONS = 101

NOT_ENROLLED = "an id that is not enrolled yet (a lost or revoked device: `device reissue`)"

# On the device; the file's name here need not suit TOML, and might equal that of another file.
DEVICE_CA = "ca.pem"
OWN_PATHS = {"secret_file": "secret", "state_dir": "state"}
SERVICE_PATHS = {
    "secret_file": "$CREDENTIALS_DIRECTORY/sedge-secret",
    "state_dir": "/var/lib/sedge",
}

CERTIFICATE = """\
# The coordinator shows the broker a certificate. If devices are to show one, too, with CN={device}:
# cert_file = "device.pem"
# key_file = "device.key"
"""

EDGE_TOML = """\
# The Sedge agent of {device}. Every key: share/sedge/edge.toml.
device = "{device}"
fleet = "{fleet}"
secret_file = "{secret_file}"
state_dir = "{state_dir}"

[broker]
url = "{url}"
{ca}
[data]
# .npz with x and y, a folder of class folders, or "module:function"
train = "train.npz"
"""


def add_device(
    store: Store, cloud: CloudConfig, device: str, folder: Path | None, service: bool = False
) -> Path:
    """Enrol a device and write its edge.toml and secret into a folder (see ``_issue``)."""
    check_id(device, "device")
    if device == cloud.username or device.startswith(COORDINATOR):
        expected = (
            f"another id: {cloud.username!r} and {COORDINATOR!r}… are coordinators at the broker"
        )
        raise ConfigError("device", device, expected)
    if any(row.device == device for row in store.devices()):
        raise ConfigError("device", device, NOT_ENROLLED)
    return _issue(store.add_device, cloud, device, folder or Path(device), service)


def reissue_device(
    store: Store, cloud: CloudConfig, device: str, folder: Path | None, service: bool = False
) -> Path:
    """Give an enrolled or revoked device a new secret (see ``_issue``); the old one is void.

    For a secret that has leaked, a device that has lost its disk, or an incarnation that is used up.
    """
    if all(row.device != device for row in store.devices()):
        raise ConfigError("device", device, "an enrolled device")
    return _issue(store.reissue_device, cloud, device, folder or Path(device), service)


def reload_broker(cloud: CloudConfig) -> None:
    """Have the broker read its password file again, if cloud.toml says how. Raises ``StorageError``."""
    command = cloud.broker.reload
    if command is None or cloud.broker.device_password_file is None:
        return
    try:
        with as_caller():
            done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    except (OSError, ValueError) as exc:
        raise StorageError(f"broker.reload: {command!r}: {exc}") from exc
    if done.returncode:
        said = " ".join(done.stderr.split())
        raise StorageError(f"broker.reload: {command!r} ended with {done.returncode}: {said}")


def join_text(cloud: CloudConfig, device: str, folder: Path) -> str:
    """What a device's folder says, as one line that a person pastes into an app (enrolment.md, E7).

    It holds the secret. Raises ``StorageError`` when the folder cannot be read.
    """
    with as_caller(), translated("read the files of a device in", folder):
        told = {
            "device": device,
            "fleet": cloud.fleet,
            "url": cloud.broker.device_url or cloud.broker.url,
            "secret": (folder / "secret").read_text().strip(),
        }
        if (folder / DEVICE_CA).exists():
            told["ca"] = (folder / DEVICE_CA).read_text()
    text = json.dumps(told, separators=(",", ":"), ensure_ascii=False)
    return "sedge:" + base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def _issue(
    enrol: Callable[[str, bytes], None],
    cloud: CloudConfig,
    device: str,
    folder: Path,
    service: bool,
) -> Path:
    """Write a device's files with a new secret, then ``enrol`` it.

    With ``service`` the paths suit sedge-edge.service and a folder copied to /etc/sedge. If the broker's
    password file is configured, the device gets a line in it. The files are written first: a crash leaves a
    folder without a device, never a device without a secret. After an error the folder is removed.
    """
    secret = os.urandom(SECRET_BYTES)
    with as_caller():
        _make_folder(folder)
    try:
        with as_caller():
            _write_device(folder, cloud, device, secret, SERVICE_PATHS if service else OWN_PATHS)
            if cloud.broker.device_password_file is not None:
                passwords = Path(cloud.broker.device_password_file)
                add_password(passwords, device, DeviceKeys.of(secret).password)
        enrol(device, secret)
    except SedgeError:
        with as_caller():
            shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, mode=0o700)
    except FileExistsError as exc:
        raise ConfigError("out", str(folder), "a folder that does not exist yet") from exc
    except OSError as exc:
        raise StorageError(f"{folder}: {exc}") from exc


def _write_device(
    folder: Path, cloud: CloudConfig, device: str, secret: bytes, places: dict[str, str]
) -> None:
    """Write the files that go to a device: its secret, its edge.toml and the broker's authority."""
    url, ca = cloud.broker.device_url or cloud.broker.url, ""
    tls = BrokerSettings(url, device).endpoint().tls
    with translated("write the files of a device into", folder):
        if cloud.broker.ca_file is not None and tls:
            ca = f'ca_file = "{DEVICE_CA}"\n'
            write_public(folder / DEVICE_CA, Path(cloud.broker.ca_file).read_bytes())
        if cloud.broker.cert_file is not None and tls:
            ca += CERTIFICATE.format(device=device)
        text = EDGE_TOML.format(device=device, fleet=cloud.fleet, url=url, ca=ca, **places)
        write_public(folder / "edge.toml", text.encode())
        write_private(folder / "secret", secret.hex() + "\n")


def add_password(path: Path, user: str, password: str) -> None:
    """Put a user's line into a Mosquitto password file, replacing an older one.

    The file keeps its owner and mode, as a running Mosquitto reads it as its own user.
    """
    salt = os.urandom(12)
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)
    coded = f"{base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"
    with translated("add a password to", path):
        _replace_line(path, user, [f"{user}:$7${_ITERATIONS}${coded}"])


def remove_password(path: Path, user: str) -> None:
    """Take a user's line out of a Mosquitto password file, if there is one."""
    with translated("remove a password from", path):
        if path.exists():
            _replace_line(path, user, [])


def _replace_line(path: Path, user: str, lines: list[str]) -> None:
    """Raises ``OSError``."""
    with _locked(path.parent):
        old = path.read_text().splitlines() if path.exists() else []
        kept = [line for line in old if not line.startswith(f"{user}:")]
        text = "\n".join([*kept, *lines, ""])
        fresh = path.with_name(path.name + ".new")
        fresh.unlink(missing_ok=True)  # left by a crash, or a link that somebody placed
        with opened(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            if path.exists():
                status = path.stat()
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
            write_at(descriptor, text.encode(), 0)
            os.fsync(descriptor)
        fresh.replace(path)
        sync_folder(path.parent)


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """Hold a lock on the folder: one process at a time. Raises ``OSError``."""
    with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        lock(descriptor)
        yield


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; durable on return. Raises ``OSError``."""
    replace_file(path, text.encode(), path.with_name(path.name + ".tmp"))


def write_public(path: Path, data: bytes) -> None:
    """Write a file that all may read and its owner may change, for any umask. Raises ``OSError``."""
    replace_file(path, data, path.with_name(path.name + ".tmp"))
    path.chmod(0o644)
