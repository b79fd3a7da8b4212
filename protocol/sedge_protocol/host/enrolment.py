"""A device's enrolment data, as the files in its folder or as one line of text (spec/enrolment.md).

The coordinator can write either form. A device that gets the line writes the files itself.
"""

import base64
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from sedge_protocol.errors import ConfigError, Words
from sedge_protocol.host.broker_url import parse_url
from sedge_protocol.host.disk import opened, replace_file, write_at
from sedge_protocol.host.signing import parse_public
from sedge_protocol.wire.keys import parse_secret
from sedge_protocol.wire.messages import POINT_BYTES
from sedge_protocol.wire.topics import check_id

PREFIX = "sedge:"
CONFIG, SECRET, CA, CERTIFICATE = "edge.toml", "secret", "ca.pem", "device.pem"
_EXPECTED = "the whole line that `sedge-cloud device token add` or `device add --join` printed"

EDGE_TOML = """\
# The Sedge agent of {device}. Every key: share/sedge/edge.toml.
device = "{device}"
fleet = "{fleet}"
secret_file = "{places.secret_file}"
state_dir = "{places.state_dir}"

[broker]
url = {url}
{tls}{trust}
[data]
# "train.npz" with x and y, "train.csv", "images" (a folder for each class), or "module:function"
train = "train.npz"
"""


class DevicePaths(NamedTuple):
    """The paths of the device's secret file and state folder, as written to ``edge.toml``."""

    secret_file: str
    state_dir: str


BESIDE = DevicePaths(SECRET, "state")
OF_SERVICE = DevicePaths("$CREDENTIALS_DIRECTORY/sedge-secret", "/var/lib/sedge")


class Enrolment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a device needs to connect.

    ``secret`` is 64 hex digits and ``ca`` is PEM. ``trust`` lists the public keys that the device pins, 64
    hex digits each. ``certificate`` (PEM) is the device's own; its private key is derived from the secret.
    """

    device: str
    fleet: str
    url: str
    secret: str
    ca: str | None = None
    trust: tuple[str, ...] = ()
    certificate: str | None = None

    def check(self) -> None:
        """Raise ``ConfigError``, which never shows the secret, for an invalid id, url or secret."""
        check_id(self.device, "device")
        check_id(self.fleet, "fleet")
        parse_url(self.url)
        parse_secret(self.secret, "")
        for key in self.trust:
            parse_public(key)

    def join_text(self) -> str:
        """Return the join line of rule E7.

        It contains the device's secret, so keep the line secret as well.
        """
        return _line(self)

    def public_files(self, places: DevicePaths = BESIDE, remark: str = "") -> dict[str, str]:
        """Return the files of rule E2, without the secret, as a dict from file name to text.

        ``remark`` is inserted after the TLS lines of ``edge.toml``.
        """
        pem = {CA: self.ca, CERTIFICATE: self.certificate}
        files = {name: text for name, text in pem.items() if text is not None}
        keys = {CA: "ca_file", CERTIFICATE: "cert_file"}
        tls = "".join(f'{keys[name]} = "{name}"\n' for name in files) + remark
        url = json.dumps(self.url, ensure_ascii=False)  # a JSON string is also a TOML string
        pins = ", ".join(f'"{key}"' for key in self.trust)
        note = "# Every order needs a policy signed with one of these keys."
        trust = f"\n[trust]\n{note}\nkeys = [{pins}]\n" if pins else ""
        text = EDGE_TOML.format(
            device=self.device, fleet=self.fleet, url=url, tls=tls, trust=trust, places=places
        )
        return {**files, CONFIG: text}

    def write(self, folder: Path, files: Mapping[str, str]) -> None:
        """Write ``files``, then the secret, whose file must not exist yet. Raises ``OSError``."""
        for name, text in files.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o644)
        with opened(folder / SECRET, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as descriptor:
            write_at(descriptor, f"{self.secret}\n".encode(), 0)

    def replace_secret(self, folder: Path) -> None:
        """Replace the secret and the certificate in a folder; durable on return. Raises ``OSError``."""
        path = folder / SECRET
        if self.certificate is not None:
            (folder / CERTIFICATE).write_text(self.certificate)
            (folder / CERTIFICATE).chmod(0o644)
        replace_file(path, f"{self.secret}\n".encode(), path.with_name(f"{SECRET}.tmp"))


class Token(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that a device needs to join by token.

    ``key`` and ``point`` are hex digits, and ``ca`` is PEM. ``device`` is the id of the only device that
    may use the token, or empty if any device may. ``trust`` is as in ``Enrolment``. ``certificate`` (PEM)
    belongs to the token, for a broker that requires client certificates.
    """

    token: str
    fleet: str
    url: str
    key: str
    point: str
    ca: str | None = None
    device: str = ""
    trust: tuple[str, ...] = ()
    certificate: str | None = None

    def check(self) -> None:
        """Raise ``ConfigError``, which never shows the key, if a value is invalid."""
        check_id(self.token, "token")
        check_id(self.fleet, "fleet")
        parse_url(self.url)
        parse_secret(self.key, "")
        if len(self.public()) != POINT_BYTES:
            raise ConfigError(
                "point", f"{len(self.point)} characters", f"{2 * POINT_BYTES} hex digits"
            )
        if self.device:
            check_id(self.device, "device")
        for key in self.trust:
            parse_public(key)

    def public(self) -> bytes:
        """Return the coordinator's public key."""
        try:
            return bytes.fromhex(self.point)
        except ValueError:
            return b""

    def join_text(self) -> str:
        """Return the join line of rule E8. Anybody who has it may ask to join."""
        return _line(self)


def _line(said: Enrolment | Token) -> str:
    coded = base64.urlsafe_b64encode(msgspec.json.encode(said)).rstrip(b"=")
    return PREFIX + coded.decode()


class _Kind(msgspec.Struct):
    """The part of a join line that tells the two kinds apart."""

    token: str | None = None


def parse_join_text(text: str) -> Enrolment | Token:
    """Parse a line of rule E7 or E8. Raises ``ConfigError``, which never shows a secret."""
    line = text.strip()
    if not line.startswith(PREFIX):
        raise ConfigError("join text", Words(f"no {PREFIX} at the start"), _EXPECTED)
    coded = line.removeprefix(PREFIX).encode(errors="replace")
    padded = coded.rstrip(b"=") + b"=" * (-len(coded.rstrip(b"=")) % 4)
    try:
        said = base64.b64decode(padded, b"-_", True)
        found: Enrolment | Token
        if msgspec.json.decode(said, type=_Kind).token is None:
            found = msgspec.json.decode(said, type=Enrolment)
        else:
            found = msgspec.json.decode(said, type=Token)
        found.check()
    except ConfigError as exc:
        raise ConfigError("join text", Words(exc), _EXPECTED) from None
    except (ValueError, msgspec.DecodeError) as exc:
        raise ConfigError("join text", Words("cut off or damaged"), _EXPECTED) from exc
    return found
