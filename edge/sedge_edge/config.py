"""Loads edge.toml, the configuration of an agent. The shipped file explains every key.

``load_config`` checks the whole file, and the secrets and certificates that it names. Paths are made
absolute, relative to the file's folder. Environment variables in them are expanded, such as systemd's
``$CREDENTIALS_DIRECTORY``. Data sets are checked elsewhere (data/sources.py). No field contains a secret.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from sedge_edge.certificate import SCHEMA as CERTIFICATE_SCHEMA
from sedge_edge.certificate import KeptCertificate, OwnCertificate
from sedge_edge.http_downloads import DownloadConfig
from sedge_edge.own_files import own_files
from sedge_edge.rounds.keyring import SCHEMA, KeptKeys, Keyring
from sedge_edge.rounds.retention import KeepConfig
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import toml as config
from sedge_protocol.host.broker_url import parse_url
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.signing import TrustConfig, verifiers
from sedge_protocol.host.tls import certificate_in
from sedge_protocol.wire.keys import DeviceKeys, parse_secret
from sedge_protocol.wire.settings import GatesConfig, LimitsConfig, LogLevel, Settings, minutes
from sedge_protocol.wire.topics import check_id

# Matches "package.module:function", which is not a path.
FUNCTION_SOURCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
BACKEND_NAMES = ("auto", "onnxruntime", "executorch", "torch")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_OTHERS = 0o007
# The name of the keyring's file in the state folder.
KEYS = "keys"
# The name of the file with the certificate that has replaced the one in ``cert_file``.
CERTIFICATE = "certificate"
# The credential that sedge-edge.service makes from the file "secret" next to edge.toml. Commands that root
# runs read that file instead.
_UNIT_SECRET = "$CREDENTIALS_DIRECTORY/sedge-secret"


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[broker]: how the device reaches the broker."""

    url: str
    """Address of the broker: mqtts://host[:port] with TLS, mqtt:// without, or wss:// and ws:// for MQTT
    over WebSockets."""
    ca_file: Path | None = None
    """Certificate of the authority that signed the broker's certificate, in PEM; by default, the system's
    authorities."""
    cert_file: Path | None = None
    """Certificate of the device, in PEM, for brokers that require one; without ``key_file``, its key
    is derived from the device's secret."""
    key_file: Path | None = None
    """Private key that belongs to the certificate in ``cert_file``; other users must not be able to read
    it."""
    username: str = ""
    """Account at the broker; if empty, the device's name, which the broker's access rules expect."""
    password_file: Path | None = None
    """File with the account's password, unreadable to other users; by default, it is derived from the
    device's secret."""


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[data]: the examples that the device trains on and is tested with.

    A source is one of

    - "train.npz": arrays x (N, ...) and y, as numpy.savez writes them;
    - "train.csv": a table of numbers, with the target in the column label, target or y, or else the
      last one;
    - "images": a folder of folders named ``<label>`` or ``<label>-<name>``, such as images/3-cat/*.png,
      with 8-bit images of one size (needs pillow);
    - "my_data:load": a function that returns (x, y), in my_data.py next to this file or anywhere
      importable.

    Images (N, C, H, W) of unsigned bytes are scaled to [0, 1]. y holds labels from 0 or numbers, (N,) or
    (N, ...), as the model requires; a model whose input is its target needs none. Changed files are read
    again before the next training, so replace a file in one step (rename).
    """

    train: Annotated[str, Meta(min_length=1)]
    """Source of the training examples: a file, a folder of images, or ``module:function``."""
    test: Annotated[str, Meta(min_length=1)] | None = None
    """Source of the test examples; by default, a share of the training examples is set aside."""
    test_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """Share of the examples to set aside for testing if ``test`` is not set."""
    split_seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Seed for choosing the test examples that are set aside."""


class BackendConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[backend]: the software that trains the model.

    - "auto": the fastest installed runtime of the model's programs that fits into this device's memory, or
      the smallest if none does;
    - "onnxruntime", "executorch": that runtime;
    - "torch": your own torch module, named by the key model;
    - "my_client:fit": a function in my_client.py next to this file or anywhere importable
      (docs/own-model.md).
    """

    name: Annotated[str, Meta(min_length=1)] = "auto"
    """Backend that trains: ``auto``, ``onnxruntime``, ``executorch``, ``torch``, or your own
    ``module:function``."""
    threads: Annotated[int, Meta(ge=1, le=64)] = 1
    """Number of processor threads for training; 1 leaves the other cores to the device's own work."""
    model: str = ""
    """With ``torch``, the ``module:function`` that returns the exported module, or (module, loss) or
    (module, loss, metric) if those are your own."""

    def __post_init__(self) -> None:
        """Raise ``ConfigError`` for an unknown backend, or if ``model`` is missing or unused."""
        if self.name not in BACKEND_NAMES and not FUNCTION_SOURCE.fullmatch(self.name):
            expected = f"one of {', '.join(map(repr, BACKEND_NAMES))}, or 'module:function'"
            raise ConfigError("backend.name", self.name, expected)
        if self.name == "torch" and not FUNCTION_SOURCE.fullmatch(self.model):
            expected = "module:function that returns the torch module"
            raise ConfigError("backend.model", self.model, expected)
        if self.name != "torch" and self.model:
            raise ConfigError("backend.model", self.model, "nothing unless backend.name is 'torch'")


class ServeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[serve]: access to the newest model for any program on this device, over HTTP (docs/own-model.md)."""

    socket: Path | None = None
    """Unix socket on which programs request predictions; by default, there is none."""


class EdgeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The configuration of one device.

    Paths are relative to the file's folder; $NAME and ${NAME} are expanded from the environment.
    """

    device: str
    """Name of this device, 1 to 48 of a-z, 0-9 and ``-``; it is also the account at the broker."""
    fleet: str
    """Name of the fleet, as in the coordinator's configuration."""
    secret_file: Path
    """File with the device's secret, 64 hex digits from `sedge-cloud device add`; other users must not be
    able to read it."""
    state_dir: Path
    """Folder for models, pending updates and the journal; it needs a few times the model's size per
    run."""
    broker: BrokerConfig
    data: DataConfig
    backend: BackendConfig = BackendConfig()
    serve: ServeConfig = ServeConfig()
    gates: GatesConfig = GatesConfig()
    keep: KeepConfig = KeepConfig()
    limits: LimitsConfig = LimitsConfig()
    download: DownloadConfig = DownloadConfig()
    trust: TrustConfig = TrustConfig()
    frozen: Mapping[str, Path] = {}
    """Files of frozen bases already on this device, by SHA-256; it copies them instead of downloading."""
    watts: Annotated[float, Meta(gt=0, le=1e4)] | None = None
    """Power drawn while training, in watts, for the energy estimate in reports; by default, no estimate
    is made."""
    log_level: LogLevel = "info"
    """Lowest severity to log; use ``debug`` to trace a problem."""

    def secret(self) -> bytes:
        """Return the secret with which the device was enrolled.

        Raises ``ConfigError`` if its file is invalid.
        """
        text = _read_private(self.secret_file, "secret_file")
        return parse_secret(text, str(self.secret_file))

    def keys(self) -> DeviceKeys:
        """Return the device's current keys.

        Raises ``ConfigError`` if the secret's file is invalid, and ``StorageError`` if the disk fails.
        """
        if not os.path.exists(self.state_dir / KEYS):
            return DeviceKeys.of(self.secret())
        return self.keyring(self.state_dir).keys

    def keyring(self, folder: Path) -> Keyring:
        """Return the keyring in the state ``folder``.

        Raises ``ConfigError`` if the secret's file is invalid, and ``StorageError`` if the disk fails.
        """
        durable = Journal(folder / KEYS, KeptKeys, SCHEMA)
        return Keyring(self.secret(), self.fleet, self.device, durable, os.urandom)

    @property
    def settings(self) -> Settings:
        """The device's own values of the settings that a coordinator may tighten."""
        return Settings(self.gates, self.limits, self.log_level)

    @property
    def renews(self) -> bool:
        """Whether the device can change its secret.

        This requires that its account at the broker depends on the secret.
        """
        return self.broker.password_file is None and self.broker.key_file is None

    @property
    def is_certified(self) -> bool:
        """Whether the device has a certificate whose key is derived from its secret."""
        return self.broker.cert_file is not None and self.broker.key_file is None

    def certificate(self, folder: Path | None) -> OwnCertificate | None:
        """Return the certificate whose key is derived from the secret, or None if there is none.

        Prefers the renewed certificate issued by the coordinator, if one is stored in the state ``folder``.
        Raises ``ConfigError`` if a file is invalid, and ``StorageError`` if the disk fails.
        """
        path, key = self.broker.cert_file, "broker.cert_file"
        if path is None or not self.is_certified:
            return None
        given = certificate_in(config.named_text(path, key), key, str(path))
        durable = None
        if folder is not None and os.access(folder, os.X_OK):
            durable = Journal(folder / CERTIFICATE, KeptCertificate, CERTIFICATE_SCHEMA)
        return OwnCertificate(self.secret(), given, durable)

    def broker_settings(self) -> BrokerSettings:
        """Return the settings for the link to the broker, including the password.

        Raises ``ConfigError`` if a file that they name is invalid, and ``StorageError`` if the disk fails.
        """
        broker = self.broker
        if broker.password_file is None:
            password = self.keys().password
        else:
            password = _read_private(broker.password_file, "broker.password_file").strip()
        own = self.certificate(self.state_dir)
        return BrokerSettings(
            url=broker.url,
            name=self.device,
            username=broker.username or self.device,
            password=password,
            ca_file=_text(broker.ca_file),
            cert_file=None if own is not None else _text(broker.cert_file),
            key_file=_text(broker.key_file),
            client_pem=None if own is None else own.pem,
        )


def load_config(path: Path) -> EdgeConfig:
    """Load and check the configuration of one device. Its paths become absolute.

    Raises ``ConfigError`` if the configuration or a file that it names is invalid.
    """
    try:
        edge = _resolved(config.load(path, EdgeConfig), path.absolute().parent)
        check_id(edge.device, "device")
        check_id(edge.fleet, "fleet")
        minutes(edge.gates.quiet_hours)
        edge.download.check()
        verifiers(edge.trust.keys)
        own_files(edge.frozen)
        _check_tls(edge)
        edge.secret()
    except ConfigError as exc:
        raise ConfigError(exc.key, exc.found, exc.expected, exc.where or str(path)) from exc
    return edge


def _resolved(edge: EdgeConfig, folder: Path) -> EdgeConfig:
    broker, data = edge.broker, edge.data
    return replace(
        edge,
        secret_file=_absolute(edge.secret_file, "secret_file", folder),
        state_dir=_absolute(edge.state_dir, "state_dir", folder),
        broker=replace(
            broker,
            ca_file=_optional(broker.ca_file, "broker.ca_file", folder),
            cert_file=_optional(broker.cert_file, "broker.cert_file", folder),
            key_file=_optional(broker.key_file, "broker.key_file", folder),
            password_file=_optional(broker.password_file, "broker.password_file", folder),
        ),
        data=replace(
            data,
            train=_source(data.train, "data.train", folder),
            test=None if data.test is None else _source(data.test, "data.test", folder),
        ),
        serve=ServeConfig(_optional(edge.serve.socket, "serve.socket", folder)),
        frozen={
            name: _absolute(file, f"frozen.{name}", folder) for name, file in edge.frozen.items()
        },
        download=replace(
            edge.download, ca_file=_optional(edge.download.ca_file, "download.ca_file", folder)
        ),
    )


def _absolute(path: Path, key: str, folder: Path) -> Path:
    if "\0" in str(path):
        raise ConfigError(key, str(path), "a path without NUL characters")

    if str(path) == _UNIT_SECRET and "CREDENTIALS_DIRECTORY" not in os.environ:
        return folder / "secret"

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in os.environ:
            raise ConfigError(key, str(path), f"the environment variable {name} to be set")
        return os.environ[name]

    return folder / _VARIABLE.sub(value, str(path))


def _optional(path: Path | None, key: str, folder: Path) -> Path | None:
    return None if path is None else _absolute(path, key, folder)


def _source(source: str, key: str, folder: Path) -> str:
    """Return a data source with its path made absolute. "module:function" is returned unchanged."""
    return (
        source if FUNCTION_SOURCE.fullmatch(source) else str(_absolute(Path(source), key, folder))
    )


def _check_tls(edge: EdgeConfig) -> None:
    broker = edge.broker
    files = {
        "broker.ca_file": broker.ca_file,
        "broker.cert_file": broker.cert_file,
        "broker.key_file": broker.key_file,
    }
    tls = parse_url(broker.url).tls
    if broker.password_file is not None:
        _read_private(broker.password_file, "broker.password_file")
    for key, path in files.items():
        if path is None:
            continue
        if not tls:
            raise ConfigError(
                key, str(path), f"an mqtts:// or wss:// url together with it, not {broker.url}"
            )
        read = _read_private if key == "broker.key_file" else config.named_text
        read(path, key)
    if broker.key_file is not None and broker.cert_file is None:
        raise ConfigError(
            "broker.cert_file", None, "the certificate that belongs to broker.key_file"
        )
    own = edge.certificate(None)
    if own is not None:
        try:
            own.check()
        except ConfigError:
            expected = (
                "this device's certificate, whose key is derived from secret_file; or key_file, too"
            )
            raise ConfigError("broker.cert_file", str(broker.cert_file), expected) from None


def _read_private(path: Path, key: str) -> str:
    """Read a secret file. As with ssh, a file that others may read is refused.

    The file's group may have access, because systemd passes credentials with mode 0440 and an access list.
    """
    text = config.named_text(path, key)
    mode = path.stat().st_mode & 0o777
    if mode & _OTHERS:
        raise ConfigError(
            key, f"{path} (mode {mode:04o})", "a file that other users cannot read (chmod o= it)"
        )
    return text


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
