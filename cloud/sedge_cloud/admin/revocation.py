"""Revokes a device, so that the coordinator ignores it and the broker refuses its connections."""

import time
from dataclasses import dataclass
from pathlib import Path

from sedge_cloud.admin.certifying import write_revoked
from sedge_cloud.admin.enrolment import reload_broker
from sedge_cloud.broker.accounts import remove_passwords
from sedge_cloud.config import CloudConfig
from sedge_cloud.store.database import Store
from sedge_protocol.errors import SedgeError, StorageError
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.host.privileges import as_caller

# A running coordinator notifies the device within this many seconds.
NOTIFY_S = 1.5

SIGHUP = "Send the broker a SIGHUP, so that it rereads its password file."
_REVOKED = "device {} is revoked; the coordinator no longer listens to it."
_SHUT_OUT = "The broker has ended its connection and no longer lets it in."
_OPEN = "An open connection lasts until the broker or the device closes it."


@dataclass(frozen=True)
class Revocation:
    """The result of a revocation: what was ``done``, and the steps ``left`` for the operator.

    ``failure`` says why the broker could not be updated; in that case ``command`` completes the revocation.
    """

    device: str
    done: tuple[str, ...]
    left: tuple[str, ...]
    failure: str = ""

    @property
    def command(self) -> str:
        """Return the command that repeats the revocation as a user who may edit the broker's passwords."""
        return f"sudo sedge-cloud device revoke {self.device}"


def revoke_device(store: Store, cloud: CloudConfig, device: str) -> Revocation:
    """Ignore a device until it is reissued, and remove it from the broker's password file.

    If ``[broker] reload`` is set, the broker then closes the device's connection; a running coordinator is
    given time to notify the device first. Raises ``ConfigError`` when there is no such device.
    """
    store.revoke_device(device)
    done, broker = _REVOKED.format(device), cloud.broker
    try:
        _shut_out(store, cloud, device)
    except SedgeError as exc:
        return Revocation(device, (done,), ("The broker may still let it in.",), str(exc))
    left: list[str] = []
    if broker.device_password_file is None:
        left.append("Remove it from the broker's passwords, if it has one there.")
    elif broker.reload is None:
        left.append(SIGHUP)
    if broker.cert_file is not None and broker.authority_key_file is None:
        left.append("If it has a certificate, add that to the broker's revocation list.")
    if broker.device_password_file is None or broker.reload is None:
        return Revocation(device, (done,), (*left, _OPEN))
    return Revocation(device, (done, _SHUT_OUT), tuple(left))


def _shut_out(store: Store, cloud: CloudConfig, device: str) -> None:
    """Remove the device's password, if the password file is on this machine, and revoke its certificate.

    Removing the password closes the device's connection; revoking the certificate keeps it from opening
    another. Raises ``SedgeError``.
    """
    if cloud.broker.device_password_file is None:
        return
    if cloud.broker.reload is not None and is_served(cloud):
        time.sleep(NOTIFY_S)
    with as_caller():
        remove_passwords(Path(cloud.broker.device_password_file), {device})
    write_revoked(store, cloud)
    reload_broker(cloud)


def is_served(cloud: CloudConfig) -> bool:
    """Return True if the fleet's coordinator runs on this machine."""
    try:
        lock_folder(Path(cloud.state_dir)).close()
    except StorageError:
        return True
    return False
