"""The coordinator's configuration (cloud.toml) and the description of a run (run.toml)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sedge_cloud.algorithms.robust import COORDINATE_RULES, Robust
from sedge_cloud.strategies import make_strategy
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import toml as config
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.wire.messages import Codec, Id, Training

# What the coordinators' accounts at a broker begin with; a device's is its id.
COORDINATOR = "coordinator-"
# The paths in cloud.toml's [broker].
_FILES = ("password_file", "ca_file", "cert_file", "key_file", "device_password_file")
# What stands between quotation marks in TOML as it is, and what no host name has.
_PLAIN = re.compile(r"[!#-\[\]-~]+")

# Whether an update that comes after its round is only remembered, or counts in the next one.
LateUpdates = Literal["remember", "count"]
Option = bool | int | float | str | list[bool | int | float | str]


class TrainingConfig(Training, frozen=True, forbid_unknown_fields=True):
    """[training]: how each device trains (see messages.Training)."""


class CodecConfig(Codec, frozen=True, forbid_unknown_fields=True):
    """[codec]: how each device codes its update (see messages.Codec)."""


class RobustConfig(Robust, frozen=True, forbid_unknown_fields=True):
    """[robust]: how far a single device is trusted (see robust.Robust)."""


class BroadcastConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[broadcast]: how the next global model travels to the devices.

    Each round sends the change: the ``fraction`` (0 to 1, a share of the n elements) that is largest in
    magnitude, in the precision ``values``. What that leaves out is owed to the next rounds. The cloud
    adopts what the devices decode, so both hold the same model whatever is lost. A device that is new, has
    missed too many changes or does not know ``values`` gets the model whole and exact, and so does every
    device where a strategy replaces the model (``Context.replaced``), unless ``fraction`` is 1.

    With ``values`` bf16 or sign a model takes 5 to 6 bits an element whole, as all its elements are
    multiples of a power of two (broadcast.py). The first model is rounded to it: in its root mean square
    there are about ``levels`` of them. A model that is trained already wants more; with 0 nothing is
    rounded.

    ``whole`` sends the model whole and exact in every round. A device that cannot decompress
    ``compression`` takes no part in the run.
    """

    values: ValueCoding = ValueCoding.SIGN
    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.025
    compression: Compression = Compression.ZSTD
    levels: Annotated[int, Meta(ge=0, le=65536)] = 6
    whole: bool = False

    @property
    def on_grid(self) -> bool:
        """Whether every version is on a grid (broadcast.py)."""
        coarse = self.values in (ValueCoding.BF16, ValueCoding.SIGN)
        return coarse and self.levels > 0 and not self.whole


class PatchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[patch]: how what only one device, or a few, start from travels to them: patches and starts.

    The cloud adopts what the devices decode. One with a value that ``values`` does not hold, such as 1e6 in
    fp16, travels in fp32, which every device knows. A device that cannot decompress ``compression``, or
    does not know ``values``, takes no part in the run.
    """

    values: ValueCoding = ValueCoding.FP32
    compression: Compression = Compression.ZSTD


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run. ``options`` are the strategy's own.

    A round takes ``fraction_train`` of the devices that are online, at least ``min_train_devices``, and
    begins once ``min_available_devices`` are. It closes when ``quorum`` (a share of the cohort) has sent an
    update, or after ``deadline_s`` seconds, and always with at least ``min_updates``: the run fails when
    everyone has answered and there are fewer. With ``grace_s`` it stays open for so many seconds more after
    the quorum, for those that are nearly done. What comes later still is ``remember``ed as the device's
    past; ``late_updates = "count"`` lets it count in the next round too. After ``num_rounds`` of training,
    with ``evaluate``, one more round measures ``fraction_evaluate`` (0 to 1; 0 is none) of the devices that
    are online, and changes nothing; with ``evaluate_every`` such a round also follows every so many rounds
    of training.
    """

    strategy: str
    options: Mapping[str, Option] = {}
    num_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    fraction_train: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_train_devices: Annotated[int, Meta(ge=1, le=1_000_000)] = 2
    min_available_devices: Annotated[int, Meta(ge=1, le=1_000_000)] = 2
    quorum: Annotated[float, Meta(gt=0, le=1)] = 1.0
    min_updates: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    deadline_s: Annotated[float, Meta(ge=1, le=604_800)] = 600.0
    grace_s: Annotated[float, Meta(ge=0, le=604_800)] = 0.0
    late_updates: LateUpdates = "remember"
    evaluate: bool = True
    fraction_evaluate: Annotated[float, Meta(ge=0, le=1)] = 1.0
    evaluate_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 42
    broadcast: BroadcastConfig = BroadcastConfig()
    patch: PatchConfig = PatchConfig()
    robust: RobustConfig = RobustConfig()
    training: TrainingConfig = TrainingConfig()
    codec: CodecConfig = CodecConfig()

    @property
    def evaluates(self) -> bool:
        """Whether a round after the last one measures the devices."""
        return self.evaluate and self.fraction_evaluate > 0

    @property
    def rounds_in_all(self) -> int:
        """The rounds of training, and those that measure."""
        return self.num_rounds + self.evaluates * -(-self.num_rounds // self._stretch)

    def trainings(self, number: int) -> int:
        """How many of the first ``number`` rounds are rounds of training."""
        if not self.evaluates:
            return number
        return min(self.num_rounds, number - number // (self._stretch + 1))

    @property
    def _stretch(self) -> int:
        """The rounds of training between two that measure."""
        return self.evaluate_every or self.num_rounds

    def check(self, where: str = "") -> "RunConfig":
        """The same config. Raises ``ConfigError`` for what types and ranges alone cannot catch."""
        try:
            strategy = make_strategy(self.strategy, self.options)
        except ConfigError as exc:
            key = exc.key if exc.key in ("strategy", "options") else f"options.{exc.key}"
            raise ConfigError(key, exc.found, exc.expected, where) from exc
        if self.robust.rule in COORDINATE_RULES and not strategy.coordinate_rules:
            rules = "direction, mean, krum or multi_krum"
            expected = f"{rules}: {self.strategy} has an aggregation of its own"
            raise ConfigError("robust.rule", self.robust.rule, expected, where)
        if self.min_train_devices > self.min_available_devices:
            expected = f"at least min_train_devices = {self.min_train_devices}"
            raise ConfigError("min_available_devices", self.min_available_devices, expected, where)
        smallest = max(
            self.min_train_devices, round(self.fraction_train * self.min_available_devices)
        )
        if self.min_updates > smallest:
            expected = f"at most {smallest}, the devices of the smallest round"
            raise ConfigError("min_updates", self.min_updates, expected, where)
        for key in ("deadline_s", "grace_s"):
            if not math.isfinite(getattr(self, key)):
                raise ConfigError(key, getattr(self, key), "a finite number", where)
        return self


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[broker]: how the coordinator reaches the broker, and (``device_url``) how devices do."""

    url: str = "mqtt://127.0.0.1:1883"
    device_url: str | None = None
    username: str | None = None
    password_file: str | None = None
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    device_password_file: str | None = None


class CloudConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """cloud.toml; every key is described there."""

    fleet: Id
    state_dir: str = "state"
    broker: BrokerConfig = BrokerConfig()
    gather_ms: Annotated[int, Meta(ge=0, le=60_000)] = 1000
    log_level: str = "info"

    @property
    def name(self) -> str:
        """The coordinator's name at the broker."""
        return f"{COORDINATOR}{self.fleet}"

    @property
    def username(self) -> str:
        """The coordinator's account at the broker."""
        return self.broker.username or self.name


def load_run(path: Path) -> RunConfig:
    """Read and check a run file. Raises ``ConfigError``."""
    return config.load(path, RunConfig).check(str(path))


def load_cloud(path: Path) -> CloudConfig:
    """Read cloud.toml; relative paths in it start at its own folder. Raises ``ConfigError``."""
    found = config.load(path, CloudConfig)
    levels = ("debug", "info", "warning", "error")
    if found.log_level not in levels:
        raise ConfigError("log_level", found.log_level, f"one of {', '.join(levels)}", str(path))
    base = path.resolve().parent
    named = {key: value for key in _FILES if (value := getattr(found.broker, key)) is not None}
    for key, value in (
        ("state_dir", found.state_dir),
        *((f"broker.{k}", v) for k, v in named.items()),
    ):
        if "\0" in value:
            raise ConfigError(key, value, "a path without NUL", str(path))
    for key in ("url", "device_url"):
        _require_url(f"broker.{key}", getattr(found.broker, key), path)
    broker = msgspec.structs.replace(
        found.broker, **{key: str(base / value) for key, value in named.items()}
    )
    return msgspec.structs.replace(found, broker=broker, state_dir=str(base / found.state_dir))


def _require_url(key: str, url: str | None, path: Path) -> None:
    """Raise ``ConfigError`` for a url that is none, or would be none in a device's edge.toml."""
    if url is None:
        return
    try:
        BrokerSettings(url, "").endpoint()
        good = _PLAIN.fullmatch(url) is not None
    except ConfigError:
        good = False
    if not good:
        expected = "mqtt://host[:port] or mqtts://host[:port]"
        raise ConfigError(key, url, expected, str(path))


def broker_settings(cloud: CloudConfig) -> BrokerSettings:
    """How to connect. Raises ``ConfigError`` when the password file cannot be read."""
    broker = cloud.broker
    password = None
    if broker.password_file is not None:
        try:
            password = Path(broker.password_file).read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(
                "broker.password_file", broker.password_file, f"a file ({exc})"
            ) from exc
    return BrokerSettings(
        broker.url,
        cloud.name,
        cloud.username,
        password,
        broker.ca_file,
        broker.cert_file,
        broker.key_file,
    )
