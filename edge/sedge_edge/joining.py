"""``sedge-edge join``: creates a device's files, from the line that enrolled it or with a token."""

import json
import re
import secrets
import socket
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from ssl import DER_cert_to_PEM_cert
from typing import NamedTuple

import msgspec

from sedge_edge.asking import Asking, JoinRefused, ask_to_join
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.disk import replace_file, translated
from sedge_protocol.host.enrolment import (
    BESIDE,
    CA,
    CERTIFICATE,
    CONFIG,
    OF_SERVICE,
    SECRET,
    Enrolment,
    Token,
    parse_join_text,
)
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.wire.keys import SECRET_BYTES
from sedge_protocol.wire.topics import check_id

SERVICE = Path("/etc/sedge")
# The file of an unfinished join with a token. It contains the device's private key.
JOINING = "joining"

_NEXT = """\
{device} of the fleet {fleet}: {done} {folder}. Next:
  put train.npz (x and y) there, or name another source, such as train.csv, in its edge.toml
  {check}
  {begin}"""
_REPLACED = """\
{device} of the fleet {fleet} has a new secret in {folder}; its edge.toml is unchanged. Next:
  {check}
  {begin}"""


class JoinRequest(NamedTuple):
    """What the user asked for: the files' destination and the details of the join.

    ``out`` is the folder, by default /etc/sedge for the ``service`` and otherwise one named after the
    device. ``name`` is the id to request with a token. With ``replaces``, a device that is already in the
    folder gets a new secret and keeps its edge.toml.
    """

    out: Path | None = None
    service: bool = False
    name: str = ""
    replaces: bool = False
    timeout_s: float | None = None


class _Begun(msgspec.Struct, frozen=True):
    """The contents of the file ``joining``."""

    token: str
    seed: str


def join(line: str, wanted: JoinRequest, say: Callable[[str], None]) -> str:
    """Write edge.toml, the secret and the broker's CA certificate. Returns the next steps as text.

    ``say`` receives the progress of a join with a token. Raises ``ConfigError`` for an invalid line, or if
    the folder already contains another device or, without ``replaces``, this one. Also raises
    ``StorageError`` if the disk fails and, with a token, whatever ``ask_to_join`` raises.
    """
    said = parse_join_text(line)
    if isinstance(said, Token):
        return _join_by_token(said, wanted, say)
    folder = wanted.out or (SERVICE if wanted.service else Path(said.device))
    return _write(said, folder, wanted)


def _join_by_token(token: Token, wanted: JoinRequest, say: Callable[[str], None]) -> str:
    folder = wanted.out or (SERVICE if wanted.service else None)
    name = token.device or wanted.name or _name_in(folder) or _host_name()
    check_id(name, "--name")
    folder = folder or Path(name)
    # All that is known of the device before it has an id and a secret. It is enough to connect, and to
    # check which device is in the folder.
    first = Enrolment(name, token.fleet, token.url, "", token.ca, token.trust, token.certificate)
    fresh = not folder.exists() or (folder / JOINING).exists()
    with as_caller(), translated("join in", folder):
        asking = Asking(token, name, _seed(token, folder, wanted))
        if not _is_written(folder, asking):
            _require_free(folder, first, wanted)
    if token.ca is not None:
        with as_caller(), translated("write the files of a device into", folder):
            (folder / CA).write_text(token.ca)
    ca_file = None if token.ca is None else str(folder / CA)
    try:
        answer = ask_to_join(asking, ca_file, wanted.timeout_s, say)
    except JoinRefused:  # another attempt would start over
        _clear(folder, fresh)
        raise
    pem = DER_cert_to_PEM_cert(answer.certificate) if answer.certificate else None
    enrolment = Enrolment(
        answer.device, token.fleet, token.url, asking.secret.hex(), token.ca, token.trust, pem
    )
    told = _write(enrolment, folder, wanted, already=_is_written(folder, asking))
    (folder / JOINING).unlink(missing_ok=True)
    tags = f"\nIts tags: {' '.join(answer.tags)}" if answer.tags else ""
    return told + tags


def _clear(folder: Path, fresh: bool) -> None:
    """Delete the files of a refused join, and the folder if it is ``fresh`` and otherwise empty."""
    (folder / JOINING).unlink(missing_ok=True)
    if fresh:
        (folder / CA).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _write(enrolment: Enrolment, folder: Path, wanted: JoinRequest, already: bool = False) -> str:
    files = _files(enrolment, wanted)
    with as_caller(), translated("write the files of a device into", folder):
        same = not wanted.replaces and _has(folder, enrolment)
        already = already or same
        is_replaced = not already and _require_free(folder, enrolment, wanted)
        folder.mkdir(parents=True, exist_ok=True, mode=0o755 if wanted.service else 0o700)
        if is_replaced:
            enrolment.replace_secret(folder)
        elif not already:
            enrolment.write(folder, files)
    check, begin = f"cd {folder} && sedge-edge doctor", "sedge-edge run"
    if wanted.service:
        again = "restart" if is_replaced else "enable --now"
        check, begin = "sudo sedge-edge doctor", f"sudo systemctl {again} sedge-edge"
    return (_REPLACED if is_replaced else _NEXT).format(
        device=enrolment.device,
        fleet=enrolment.fleet,
        done="already in" if same else "written to",
        folder=folder,
        check=check,
        begin=begin,
    )


def _has(folder: Path, enrolment: Enrolment) -> bool:
    """Return True if the folder contains this enrolment, as after ``sedge-cloud device add --join``."""
    known = _device_in(folder) == (enrolment.device, enrolment.fleet)
    path = folder / SECRET
    return known and path.exists() and path.read_text().strip() == enrolment.secret


def _files(enrolment: Enrolment, wanted: JoinRequest) -> Mapping[str, str]:
    return enrolment.public_files(OF_SERVICE if wanted.service else BESIDE)


def _require_free(folder: Path, enrolment: Enrolment, wanted: JoinRequest) -> bool:
    """Return True if this device is already in the folder and may be replaced.

    Raises ``ConfigError`` if the folder contains another device's files. The files of an interrupted join
    are reused.
    """
    files, known = _files(enrolment, wanted), _device_in(folder)
    if known == (enrolment.device, enrolment.fleet) and (folder / SECRET).exists():
        if wanted.replaces:
            return True
        expected = (
            f"`sedge-edge join --replace`, to give {enrolment.device} the line's secret, or another "
            "folder: `sedge-edge join --out FOLDER`"
        )
        raise ConfigError("sedge-edge join", str(folder / SECRET), expected)
    for name in (SECRET, *files):
        path = folder / name
        if name == CERTIFICATE:  # an interrupted join may have had a different certificate
            continue
        if path.exists() and (name == SECRET or path.read_text(errors="replace") != files[name]):
            expected = "a folder without a device, or another one: --out FOLDER"
            raise ConfigError("sedge-edge join", str(path), expected)
    return False


def _seed(token: Token, folder: Path, wanted: JoinRequest) -> bytes:
    """Return the seed of this join's private key.

    The seed comes from an interrupted join with the same token, or is new.
    """
    path = folder / JOINING
    if path.exists():
        try:
            begun = msgspec.json.decode(path.read_bytes(), type=_Begun)
            if begun.token == token.token:
                return bytes.fromhex(begun.seed)
        except ValueError:
            pass  # incomplete, or another kind of file: use a new key
    seed = secrets.token_bytes(SECRET_BYTES)
    folder.mkdir(parents=True, exist_ok=True, mode=0o755 if wanted.service else 0o700)
    coded = json.dumps({"token": token.token, "seed": seed.hex()}).encode()
    replace_file(path, coded, path.with_name(f"{JOINING}.tmp"))
    return seed


def _is_written(folder: Path, asking: Asking) -> bool:
    """Return True if the join was interrupted after it had written its last file."""
    path = folder / SECRET
    return path.exists() and path.read_text(errors="replace").strip() == asking.secret.hex()


def _device_in(folder: Path) -> tuple[str, str]:
    """Return the id and the fleet of the device in a folder, or empty strings if there is none."""
    try:
        said = tomllib.loads((folder / CONFIG).read_text(errors="replace"))
    except (OSError, tomllib.TOMLDecodeError):
        return "", ""
    return str(said.get("device", "")), str(said.get("fleet", ""))


def _name_in(folder: Path | None) -> str:
    return "" if folder is None else _device_in(folder)[0]


def _host_name() -> str:
    """Return this machine's name in the form of a valid id."""
    words = re.sub(r"[^a-z0-9]+", "-", socket.gethostname().partition(".")[0].lower())
    return words.strip("-")[:48].strip("-") or "device"
