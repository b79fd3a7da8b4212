"""Who may take part: a device's id, secret and files, and its line among the broker's passwords."""

import base64
import contextlib
import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from sedge_cloud.broker.accounts import add_passwords, put_back
from sedge_cloud.config import COORDINATOR, CloudConfig
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError, SedgeError, StorageError
from sedge_protocol.host.disk import opened, replace_file, translated, write_at
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.wire.topics import check_id

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


def add_devices(
    store: Store,
    cloud: CloudConfig,
    folders: Mapping[str, Path],
    service: bool = False,
    secrets: Mapping[str, bytes] | None = None,
    tags: Mapping[str, Mapping[str, str]] | None = None,
) -> None:
    """Enrol devices and write the edge.toml and secret of each into its folder (see ``_issue``).

    Others have ``secrets`` already, and need no folder. All get their ``tags``.
    """
    given = secrets or {}
    for device in (*folders, *given):
        check_id(device, "device")
        if device == cloud.username or device.startswith(COORDINATOR):
            expected = f"another id: {cloud.username!r} and {COORDINATOR!r}… are coordinators at the broker"
            raise ConfigError("device", device, expected)
    for device in sorted(store.devices_named([*folders, *given])):
        raise ConfigError("device", device, NOT_ENROLLED)
    enrol = partial(store.add_devices, tags=tags)
    _issue(store, enrol, cloud, folders, service, given)


def add_device(
    store: Store, cloud: CloudConfig, device: str, folder: Path | None, service: bool = False
) -> Path:
    """Enrol one device (see ``add_devices``); by default its folder has its name."""
    folder = folder or Path(device)
    add_devices(store, cloud, {device: folder}, service)
    return folder


def reissue_device(
    store: Store, cloud: CloudConfig, device: str, folder: Path | None, service: bool = False
) -> Path:
    """Give an enrolled or revoked device a new secret (see ``_issue``); the old one is void.

    For a secret that has leaked, a device that has lost its disk, or an incarnation that is used up.
    """
    if store.device(device) is None:
        raise ConfigError("device", device, "an enrolled device")
    folder = folder or Path(device)
    _issue(
        store,
        lambda secrets: store.reissue_device(device, secrets[device]),
        cloud,
        {device: folder},
        service,
    )
    return folder


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
        fields = {
            "device": device,
            "fleet": cloud.fleet,
            "url": cloud.broker.device_url or cloud.broker.url,
            "secret": (folder / "secret").read_text().strip(),
        }
        if (folder / DEVICE_CA).exists():
            fields["ca"] = (folder / DEVICE_CA).read_text()
    text = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return "sedge:" + base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def _issue(
    store: Store,
    enrol: Callable[[Mapping[str, bytes]], None],
    cloud: CloudConfig,
    folders: Mapping[str, Path],
    service: bool,
    given: Mapping[str, bytes] | None = None,
) -> None:
    """Write the files of devices with new secrets, then ``enrol`` them and those ``given``, all or none.

    With ``service`` the paths suit sedge-edge.service and a folder copied to /etc/sedge. If the broker's
    password file is configured, each device gets a line in it. The files are written first: a crash leaves
    folders without devices, never a device without a secret. After an error the folders are removed.
    """
    secrets = {**{device: os.urandom(SECRET_BYTES) for device in folders}, **(given or {})}
    made: list[Path] = []
    replaced: list[str] | None = None
    places, passwords = SERVICE_PATHS if service else OWN_PATHS, cloud.broker.device_password_file
    try:
        with as_caller():
            for device, folder in folders.items():
                _make_folder(folder)
                made.append(folder)
                _write_device(folder, cloud, device, secrets[device], places)
            if folders:
                os.sync()  # once: flushing each file of 10,000 devices takes minutes
            if passwords is not None:
                coded = {name: DeviceKeys.of(secret).password for name, secret in secrets.items()}
                replaced = add_passwords(Path(passwords), coded)
        enrol(secrets)
    except SedgeError:
        if _are_enrolled(store, secrets):  # the answer was lost, and nothing else
            return
        with as_caller():
            if passwords is not None and replaced is not None:
                put_back(Path(passwords), secrets, replaced)
            for folder in made:
                shutil.rmtree(folder, ignore_errors=True)
        raise


def _are_enrolled(store: Store, secrets: Mapping[str, bytes]) -> bool:
    """Whether the store has these devices with these secrets."""
    try:
        rows = store.devices_named(secrets)
    except StorageError:
        return False
    return all(name in rows and rows[name].secret == secret for name, secret in secrets.items())


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
            (folder / DEVICE_CA).write_bytes(Path(cloud.broker.ca_file).read_bytes())
        if cloud.broker.cert_file is not None and tls:
            ca += CERTIFICATE.format(device=device)
        text = EDGE_TOML.format(device=device, fleet=cloud.fleet, url=url, ca=ca, **places)
        (folder / "edge.toml").write_text(text)
        with opened(folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            write_at(descriptor, f"{secret.hex()}\n".encode(), 0)
        for name in (DEVICE_CA, "edge.toml"):
            with contextlib.suppress(FileNotFoundError):
                (folder / name).chmod(0o644)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; durable on return. Raises ``OSError``."""
    replace_file(path, text.encode(), path.with_name(path.name + ".tmp"))


def write_public(path: Path, data: bytes) -> None:
    """Write a file that all may read and its owner may change, for any umask. Raises ``OSError``."""
    replace_file(path, data, path.with_name(path.name + ".tmp"))
    path.chmod(0o644)
