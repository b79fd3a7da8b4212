"""``init --service``: writes a fleet's first files where the service and Debian's Mosquitto expect them.

/etc/sedge/cloud.toml, ca.pem                readable by everybody
/etc/sedge/coordinator-password              readable by the service
/etc/sedge/ca.key                            readable by root only
/etc/sedge/coordinator.crt, .key             the service's certificate and key, if clients need certificates
/etc/mosquitto/sedge/                        the broker's passwords, access list and certificates
/etc/mosquitto/conf.d/00-sedge.conf          a listener in Debian's own Mosquitto
/etc/systemd/system/sedge-cloud-accounts.*   units with which root creates devices' accounts
/var/lib/sedge-cloud                         the service's state
"""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from sedge_cloud.admin.certifying import REVOKED
from sedge_cloud.admin.enrolment import write_private, write_public
from sedge_cloud.admin.joining import WANTED
from sedge_cloud.admin.templates import LIMITS_OF_ALL, LISTENER, cloud_toml, write_account
from sedge_cloud.broker.certificates import Authority, check_hosts
from sedge_cloud.config import COORDINATOR
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.wire.topics import check_id

# The file name sorts before Mosquitto's other files because per_listener_settings must precede every
# password_file.
DROP_IN = """\
# A listener for the devices of the fleet {fleet}; written by `sedge-cloud init --service`. With it,
# Mosquitto no longer opens its default listener, on 1883 for this machine alone. Other clients of this
# broker need their own listener, in another file here: listener, allow_anonymous, password_file.
"""
TLS = """\
certfile {broker}/broker.crt
keyfile {broker}/broker.key
tls_version tlsv1.2
"""
# Every client must present a certificate from the fleet's authority, or the broker rejects its connection.
# The client still identifies itself by its password: without passwords, revoking a device would not close
# its connection at once.
CLIENT_CERTIFICATES = """\
cafile {etc}/ca.pem
crlfile {broker}/{revoked}
require_certificate true
"""
# The service may not write the broker's files. When devices that joined with a token need accounts, the
# service touches a file, and a unit that runs as root then creates them.
UNITS = {
    "sedge-cloud-accounts.path": """\
[Unit]
Description=Devices that join a Sedge fleet need accounts at the broker

[Path]
PathChanged={state}/{wanted}

[Install]
WantedBy=multi-user.target
""",
    "sedge-cloud-accounts.service": """\
[Unit]
Description=Accounts at the broker for devices that join a Sedge fleet
StartLimitIntervalSec=0

[Service]
Type=oneshot
ExecStart={command} --config {etc}/cloud.toml device accept
""",
}
# The keys in ``[broker]`` that client certificates need, and the files they name.
CLIENT_KEYS = {
    "cert_file": "coordinator.crt",
    "key_file": "coordinator.key",
    "authority_key_file": "ca.key",
}
WHOLE = "# These apply to the whole broker.\n"


class ServicePaths:
    """The paths of the files, below ``root``, and the users that own them."""

    def __init__(
        self, root: Path = Path("/"), service: str = "sedge-cloud", mosquitto: str = "mosquitto"
    ) -> None:
        self.service, self.mosquitto = service, mosquitto
        self.etc, self.state = root / "etc/sedge", root / "var/lib/sedge-cloud"
        self.broker = root / "etc/mosquitto/sedge"
        self.units = root / "etc/systemd/system"
        self.drop_in = root / "etc/mosquitto/conf.d/00-sedge.conf"


def write_service_files(
    fleet: str,
    url: str | None,
    hosts: Sequence[str] | None,
    places: ServicePaths,
    client_certificates: bool = False,
) -> str:
    """Write all files of a coordinator that runs as a service. Returns the broker's URL for devices.

    ``hosts`` are the broker's host names for TLS; None means no TLS. ``url`` is where devices reach the
    broker; by default the first of ``hosts``, or this machine's name. With ``client_certificates``, which
    need TLS, every client must have a certificate. Existing files are never replaced. Raises
    ``ConfigError`` for invalid values, a missing user or existing files, and ``StorageError``.
    """
    check_id(fleet, "fleet")
    check_hosts(hosts or ())
    if client_certificates and hosts is None:
        raise ConfigError("--client-certificates", "alone", "--tls as well")
    scheme = "mqtt" if hosts is None else "mqtts"
    device_url = url or f"{scheme}://{_bracketed(hosts[0] if hosts else socket.gethostname())}"
    settings = BrokerSettings(device_url, "")
    if not device_url.startswith(f"{scheme}://"):
        raise ConfigError("--url", device_url, f"{scheme}://host[:port], with these options")
    port = settings.endpoint().port
    service, mosquitto = _account(places.service), _account(places.mosquitto)
    for path in (places.etc / "cloud.toml", places.broker, places.drop_in):
        if path.exists():
            raise ConfigError(str(path), "a file or folder", "none; move it away to start over")
    if not places.drop_in.parent.is_dir():
        raise ConfigError(str(places.drop_in.parent), None, "Mosquitto: apt install mosquitto")
    passwords, acl = places.broker / "passwords", places.broker / "acl"
    with translated("write a service's files into", places.etc):
        _folder(places.etc, 0o755)
        _folder(places.broker, 0o755)
        _folder(places.state, 0o700, service)
        write_account(fleet, places.etc / "coordinator-password", passwords, acl)
        tls = ""
        if hosts is not None:
            own = f"{COORDINATOR}{fleet}" if client_certificates else ""
            tls = _write_tls(places, Authority.made(fleet), hosts, own)
        for path in places.broker.iterdir():
            os.chown(path, *mosquitto)
        for name in (
            "coordinator-password",
            *(("coordinator.key",) if client_certificates else ()),
        ):
            os.chown(places.etc / name, *service)
        listener = LISTENER.format(port=port, passwords=passwords, acl=acl)
        drop_in = DROP_IN.format(fleet=fleet) + listener + tls + WHOLE + LIMITS_OF_ALL
        write_public(places.drop_in, drop_in.encode())
        broker = {
            "url": f"{scheme}://127.0.0.1:{port}",
            "device_url": device_url,
            "password_file": "coordinator-password",
            "device_password_file": str(passwords),
            "reload": "systemctl reload mosquitto",
            **({} if hosts is None else {"ca_file": "ca.pem"}),
            **(CLIENT_KEYS if client_certificates else {}),
        }
        write_units(places, str(Path(sys.argv[0]).absolute()))
        cloud = cloud_toml(fleet, str(places.state), broker, under=", under sedge-cloud.service")
        # comes last, as its presence means that the setup is complete
        write_public(places.etc / "cloud.toml", cloud.encode())
    return device_url


def write_units(places: ServicePaths, command: str) -> None:
    """Write the systemd units that create devices' accounts. Raises ``OSError``."""
    places.units.mkdir(parents=True, exist_ok=True)
    for name, text in UNITS.items():
        unit = text.format(state=places.state, wanted=WANTED, command=command, etc=places.etc)
        write_public(places.units / name, unit.encode())


def _write_tls(
    places: ServicePaths, authority: Authority, hosts: Sequence[str], client: str
) -> str:
    """Write the certificates and keys for TLS.

    If ``client`` is not empty, it names the coordinator, which then gets a certificate of its own.

    Returns the listener's lines for Mosquitto's configuration. Raises ``OSError``.
    """
    certificate, key = authority.broker(hosts)
    write_private(places.broker / "broker.crt", certificate)
    write_private(places.broker / "broker.key", key)
    certificate, key = authority.texts()
    write_private(places.etc / "ca.key", key)
    write_public(places.etc / "ca.pem", certificate.encode())
    lines = TLS.format(broker=places.broker)
    if not client:
        return lines
    certificate, key = authority.coordinator(client)
    write_public(places.etc / "coordinator.crt", certificate.encode())
    write_private(places.etc / "coordinator.key", key)
    write_private(places.broker / REVOKED, authority.revocations(()))
    return lines + CLIENT_CERTIFICATES.format(etc=places.etc, broker=places.broker, revoked=REVOKED)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _account(name: str) -> tuple[int, int]:
    """Return a user's uid and gid. Raises ``ConfigError``, which says how to create the user."""
    import pwd  # not available on Windows

    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        how = "apt install mosquitto" if name == "mosquitto" else f"useradd --system {name}"
        raise ConfigError("user", name, f"a user of this machine: {how}") from None
    if os.geteuid() not in (0, entry.pw_uid):
        raise ConfigError("--service", f"user {os.geteuid()}", "root: sudo sedge-cloud init …")
    return entry.pw_uid, entry.pw_gid


def _folder(path: Path, mode: int, owner: tuple[int, int] | None = None) -> None:
    path.mkdir(parents=True, exist_ok=True)
    if owner is not None:
        os.chown(path, *owner)
    path.chmod(mode)
