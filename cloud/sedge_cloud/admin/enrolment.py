"""Enrols devices: creates ids, secrets and files, and adds the devices to the broker's password file."""

import os
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from ssl import DER_cert_to_PEM_cert

from sedge_cloud.admin.certifying import certified, write_revoked
from sedge_cloud.broker.accounts import add_passwords, put_back
from sedge_cloud.config import COORDINATOR, CloudConfig
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError, SedgeError, StorageError, os_reason
from sedge_protocol.host.broker_url import parse_url
from sedge_protocol.host.disk import replace_file, translated
from sedge_protocol.host.enrolment import (
    BESIDE,
    CA,
    CERTIFICATE,
    CONFIG,
    OF_SERVICE,
    SECRET,
    DevicePaths,
    Enrolment,
)
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.joining import TOKEN_PREFIX
from sedge_protocol.wire.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.wire.topics import check_id

NOT_ENROLLED = "an id that is not enrolled yet (a lost or revoked device: `device reissue`)"

_BY_HAND = """\
# The coordinator presents a certificate to the broker. If devices must too, with CN={device}:
# cert_file = "device.pem"
# key_file = "device.key"
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

    Devices in ``secrets`` already have their secret, and need no folder. ``tags`` are stored for all
    devices.
    """
    given = secrets or {}
    for device in (*folders, *given):
        check_id(device, "device")
        if device == cloud.username or device.startswith((COORDINATOR, TOKEN_PREFIX)):
            others = f"{cloud.username!r}, {COORDINATOR!r}… and {TOKEN_PREFIX!r}…"
            raise ConfigError("device", device, f"another id: {others} are reserved")
    for device in sorted(store.devices_named([*folders, *given])):
        raise ConfigError("device", device, NOT_ENROLLED)
    if given and cloud.broker.authority_key_file is not None:
        expected = (
            "none with broker.authority_key_file: every device needs the files with its certificate"
        )
        raise ConfigError("secret", f"{len(given)} in the list", expected)
    enrol = partial(store.add_devices, tags=tags)
    _issue(store, enrol, cloud, folders, service, given)


def add_device(
    store: Store, cloud: CloudConfig, device: str, folder: Path | None, service: bool = False
) -> Path:
    """Enrol one device (see ``add_devices``); by default its folder is named after it."""
    folder = folder or Path(device)
    add_devices(store, cloud, {device: folder}, service)
    return folder


def reissue_device(
    store: Store, cloud: CloudConfig, device: str, folder: Path | None, service: bool = False
) -> Path:
    """Give an enrolled or revoked device a new secret (see ``_issue``); the old one stops working.

    Needed when a secret has leaked, a device has lost its disk, or its start counts are used up.
    """
    if store.device(device) is None:
        raise ConfigError("device", device, "an enrolled device")
    folder, passwords = folder or Path(device), cloud.broker.device_password_file

    def enrol(secrets: Mapping[str, bytes]) -> None:
        store.reissue_device(device, secrets[device])
        # Write the password again: before the row changed, a coordinator that was completing a secret
        # change could have overwritten it.
        if passwords is not None:
            with as_caller():
                add_passwords(Path(passwords), {device: DeviceKeys.of(secrets[device]).password})

    _issue(store, enrol, cloud, {device: folder}, service)
    return folder


def reload_broker(cloud: CloudConfig) -> None:
    """Make the broker reread its password file if ``[broker] reload`` is set. Raises ``StorageError``."""
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
        raise StorageError(f"broker.reload: {command!r} exited with {done.returncode}: {said}")


def join_text(folder: Path) -> str:
    """Return the contents of a device's folder as one line, for ``sedge-edge join`` (enrolment.md, E7).

    The line contains the secret. Raises ``StorageError`` when the folder cannot be read.
    """
    with as_caller(), translated("read the files of a device in", folder):
        said = tomllib.loads((folder / CONFIG).read_text())
        return Enrolment(
            said["device"], said["fleet"], said["broker"]["url"],
            (folder / SECRET).read_text().strip(),
            (folder / CA).read_text() if "ca_file" in said["broker"] else None,
            tuple(said.get("trust", {}).get("keys", ())),
            (folder / CERTIFICATE).read_text() if "cert_file" in said["broker"] else None,
        ).join_text()  # fmt: skip


def _issue(
    store: Store,
    enrol: Callable[[Mapping[str, bytes]], None],
    cloud: CloudConfig,
    folders: Mapping[str, Path],
    service: bool,
    given: Mapping[str, bytes] | None = None,
) -> None:
    """Create secrets and files for the devices in ``folders``, then ``enrol`` them together with ``given``.

    With ``service``, the paths in edge.toml are those of sedge-edge.service, whose folder is /etc/sedge. If
    the broker's password file is configured, each device gets a line in it. The files are written first, so
    a crash can leave a folder whose device is not enrolled, but never an enrolled device whose secret is
    lost. After an error nothing is enrolled, and the folders are removed.
    """
    secrets = {**{device: os.urandom(SECRET_BYTES) for device in folders}, **(given or {})}
    made: list[Path] = []
    replaced: list[str] | None = None
    places, passwords = OF_SERVICE if service else BESIDE, cloud.broker.device_password_file
    certificates = certified(cloud, secrets)
    try:
        with as_caller():
            for device, folder in folders.items():
                _make_folder(folder)
                made.append(folder)
                signed = certificates.get(device)
                pem = None if signed is None else DER_cert_to_PEM_cert(signed.der)
                _write_device(folder, cloud, device, secrets[device], places, pem)
            if folders:
                os.sync()  # one sync for all: flushing 10,000 devices' files one by one takes minutes
            if passwords is not None:
                coded = {name: DeviceKeys.of(secret).password for name, secret in secrets.items()}
                replaced = add_passwords(Path(passwords), coded)
        enrol(secrets)
    except SedgeError:
        # If the devices are enrolled, the database has committed and only its reply was lost.
        if not _are_enrolled(store, secrets):
            with as_caller():
                if passwords is not None and replaced is not None:
                    put_back(Path(passwords), secrets, replaced)
                for folder in made:
                    shutil.rmtree(folder, ignore_errors=True)
            raise
    if certificates:
        store.add_certificates(certificates.values())
        write_revoked(store, cloud)


def _are_enrolled(store: Store, secrets: Mapping[str, bytes]) -> bool:
    """Return True if these devices are in the store with these secrets."""
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
        raise StorageError(f"{folder}: {os_reason(exc)}") from exc


def _write_device(
    folder: Path,
    cloud: CloudConfig,
    device: str,
    secret: bytes,
    places: DevicePaths,
    certificate: str | None,
) -> None:
    """Write a device's files: secret, edge.toml, its certificate and that of the broker's authority."""
    broker = cloud.broker
    url, ca, remark = broker.device_url or broker.url, None, ""
    with translated("write the files of a device into", folder):
        if parse_url(url).tls:
            ca = (
                None if broker.ca_file is None else Path(broker.ca_file).read_text(errors="replace")
            )
            if broker.cert_file is not None and certificate is None:
                remark = _BY_HAND.format(device=device)
        enrolment = Enrolment(
            device, cloud.fleet, url, secret.hex(), ca, cloud.trust.keys, certificate
        )
        enrolment.write(folder, enrolment.public_files(places, remark))


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read. It is durable on return. Raises ``OSError``."""
    replace_file(path, text.encode(), path.with_name(path.name + ".tmp"))


def write_public(path: Path, data: bytes) -> None:
    """Write a file that everyone can read and its owner can change. The umask does not matter.

    Raises ``OSError``.
    """
    replace_file(path, data, path.with_name(path.name + ".tmp"))
    path.chmod(0o644)
