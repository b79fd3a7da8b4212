"""Whether the broker's password file, and what the broker has read of it, agree with the store."""

from pathlib import Path

from sedge_cloud.config import CloudConfig
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.rows import DeviceRow
from sedge_protocol.errors import LinkError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.host.probe import probe
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.topics import down


def passwords_agree(cloud: CloudConfig, folder: Path) -> str:
    """Compare the file's lines, then try two devices at the broker: the last added and a revoked one.

    Raises ``StorageError`` with the command that mends what it finds.
    """
    broker = cloud.broker
    if broker.device_password_file is None or broker.cert_file is not None:
        return "not kept here (broker.device_password_file)"
    path = Path(broker.device_password_file)
    with as_caller(), translated("read the broker's passwords in", path):
        users = [line.partition(":")[0] for line in path.read_text().splitlines()]
    store = open_folder(folder)
    try:
        rows = {row.device: row for row in store.devices()}
    finally:
        store.close()
    for name, row in rows.items():
        if row.revoked and name in users:
            text = f"{name} is revoked, and still in {path}"
            raise StorageError(f"{text}: sedge-cloud device revoke {name}")
        if not row.revoked and name not in users:
            raise StorageError(f"{name} is not in {path}: sedge-cloud device reissue {name}")
    last = next((rows[user] for user in reversed(users) if user in rows), None)
    gone = next((row for row in reversed(rows.values()) if row.revoked), None)
    mend = f"the broker has not read {path} again: {broker.reload or 'pkill -HUP mosquitto'}"
    if last is not None and not _let_in(cloud, last):
        raise StorageError(f"{broker.url} refuses {last.device}: {mend}")
    if gone is not None and _let_in(cloud, gone):
        raise StorageError(f"{broker.url} still lets in {gone.device}, which is revoked: {mend}")
    return f"{path} is what the broker has read"


def _let_in(cloud: CloudConfig, row: DeviceRow) -> bool:
    """Whether the broker knows the device's password; the connection has a client id of its own."""
    broker, name = cloud.broker, row.device
    password = DeviceKeys.of(row.secret).password
    settings = BrokerSettings(broker.url, name, name, password, broker.ca_file)
    try:
        with as_caller():
            probe(settings, down(cloud.fleet, name))
    except LinkError as exc:
        if "Not authorized" in str(exc):
            return False
        raise
    return True
