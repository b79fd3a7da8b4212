"""The fleet's certificate authority and the broker's certificate, made by the openssl command."""

import ipaddress
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from sedge_protocol.errors import ConfigError, StorageError

# Nobody renews certificates at home. A fleet that must do so replaces ca.pem on every device.
DAYS = "3650"
HERE = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
_AUTHORITY = """\
[req]
distinguished_name = name
x509_extensions = own
prompt = no
[name]
CN = Sedge {fleet}
[own]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
"""
_BROKER = """\
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
subjectAltName = {names}
"""


def check_hosts(hosts: Sequence[str]) -> None:
    """Raise ``ConfigError`` for a name that no certificate can have."""
    for host in hosts:
        if not _is_address(host) and not _HOST.fullmatch(host):
            raise ConfigError("--tls", host, "a host name or an IP address, without a port")


def make_authority(fleet: str, hosts: Sequence[str]) -> dict[str, str]:
    """Make an authority, and a certificate for a broker that is reached under these names.

    Returns the texts of ``ca.pem``, ``ca.key``, ``broker.crt`` and ``broker.key``. This machine's own names
    for itself are always among the broker's. Raises ``ConfigError`` if openssl is missing.
    """
    names = dict.fromkeys((*hosts, *HERE))
    alternatives = ",".join(f"{'IP' if _is_address(name) else 'DNS'}:{name}" for name in names)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        (here / "ca.cnf").write_text(_AUTHORITY.format(fleet=fleet))
        (here / "broker.cnf").write_text(_BROKER.format(names=alternatives))
        for name in ("ca", "broker"):
            _openssl(here, f"ecparam -name prime256v1 -genkey -noout -out {name}.key")
        _openssl(here, f"req -x509 -new -key ca.key -config ca.cnf -days {DAYS} -out ca.pem")
        _openssl(here, "req -new -key broker.key -subj /CN=broker -config ca.cnf -out broker.csr")
        _openssl(
            here,
            f"x509 -req -in broker.csr -CA ca.pem -CAkey ca.key -set_serial 1 -days {DAYS} "
            "-extfile broker.cnf -out broker.crt",
        )
        files = ("ca.pem", "ca.key", "broker.crt", "broker.key")
        return {name: (here / name).read_text() for name in files}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _openssl(folder: Path, words: str) -> None:
    try:
        done = subprocess.run(
            ["openssl", *words.split()], cwd=folder, capture_output=True, text=True, check=False
        )
    except OSError as exc:
        expected = "the openssl command: apt install openssl"
        raise ConfigError("--tls", exc.strerror, expected) from exc
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise StorageError(f"openssl {words.split()[0]} failed: {last}")
