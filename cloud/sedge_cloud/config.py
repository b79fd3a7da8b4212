"""The coordinator's configuration (cloud.toml) and the description of a run (run.toml; see run_file.py)."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta

from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.coding import BroadcastConfig, CodecConfig, PatchConfig
from sedge_cloud.compute import ComputeConfig
from sedge_cloud.outlets.settings import HomeAssistantConfig, HttpConfig, NotifyConfig
from sedge_cloud.privacy import PrivacyConfig
from sedge_cloud.store.cache import SHARE
from sedge_cloud.store.settings import COORDINATOR as COORDINATOR
from sedge_cloud.store.settings import BlobsConfig, StoreConfig
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import toml as config
from sedge_protocol.host.broker_url import URLS
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.host.signing import TrustConfig
from sedge_protocol.wire.messages import Id
from sedge_protocol.wire.training import Training

# A key in cloud.toml with one of these suffixes is a path.
_PATHS = ("_file", "_dir")
# Characters that need no escaping in a TOML string. Spaces are excluded, as no host name has them.
_PLAIN = re.compile(r"[!#-\[\]-~]+")

# What a late update does: it changes only its device's client model, or also counts in a later round.
LateUpdates = Literal["remember", "count"]
T = TypeVar("T", bound=msgspec.Struct)
Option = bool | int | float | str | list[bool | int | float | str]


class TrainingConfig(Training, frozen=True, forbid_unknown_fields=True):
    """[training]: how each device trains (see wire/training.py)."""


class RobustConfig(Robust, frozen=True, forbid_unknown_fields=True):
    """[robust]: how far the coordinator trusts a single device (see algorithms/robust.py)."""


class ScheduleConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[schedule]: the learning rate of each training round, as a fraction of ``training.learning_rate``.

    The half cosine is the one in SGDR (arXiv 1608.03983, equation 5, without restarts).
    """

    kind: Literal["constant", "cosine", "linear", "exponential"] = "constant"
    """Decay of the rate after warm-up: ``constant`` for none, or along half a cosine, a line or an
    exponential."""
    warmup_rounds: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Number of initial rounds over which the rate grows linearly to its full value."""
    final: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Share of the full rate that the decay ends at."""
    steps: bool = False
    """Change the rate at every step within a round, instead of only between rounds."""

    def share(self, number: int, rounds: int) -> float:
        """Return the fraction of the full rate that training round ``number`` (from 0) of ``rounds`` uses.

        It is above 0, except perhaps if ``number`` equals ``rounds``: the steps of the last round approach
        that rate.
        """
        if number < self.warmup_rounds:
            return (number + 1) / self.warmup_rounds
        done = (number - self.warmup_rounds) / (rounds - self.warmup_rounds)
        match self.kind:
            case "constant":
                return 1.0
            case "cosine":
                return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
            case "linear":
                return 1 - (1 - self.final) * done
            case "exponential":
                return math.pow(self.final, done)


class CohortConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[cohort]: which devices take part, by their tags and by the properties that they report."""

    select: str = ""
    """Condition on tags and properties of devices, such as `site=lab and memory_mb>=512`, checked for
    every round; if empty, all take part."""


class EarlierPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a run that came before it was resumed.

    It ends with round ``last``. Of its ``num_rounds`` planned training rounds, ``trained`` were completed.
    """

    num_rounds: int
    trained: int
    last: int


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One run: its strategy, and when its rounds open and close.

    Devices that are waiting are not asked to take part, and devices that declined twice for the same reason
    are asked less often. A round may therefore have fewer devices than ``fraction_train`` says. A run fails
    if all devices of a round have answered and fewer than ``min_updates`` sent an update.
    """

    strategy: str
    """Name of the strategy, such as ``fedobp``, or ``module:Class`` for one of your own."""
    options: Mapping[str, Option] = {}
    """Options of the strategy, which `sedge-cloud reference NAME` lists."""
    num_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] = 100
    """Number of training rounds, not counting evaluation rounds."""
    fraction_train: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the available devices that train in a round."""
    min_train_devices: Annotated[int, Meta(ge=1, le=1_000_000)] = 2
    """Minimum number of devices to ask in a training round, even if ``fraction_train`` gives fewer."""
    min_available_devices: Annotated[int, Meta(ge=1, le=1_000_000)] = 2
    """Number of capable devices that must be online before a round opens."""
    quorum: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the round's devices that must send an update before it closes; less than 1 avoids waiting
    for stragglers."""
    min_updates: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """Minimum number of updates to close a round with; if fewer have arrived at the deadline, it is
    extended by ``deadline_s``."""
    deadline_s: Annotated[float, Meta(ge=1, le=604_800)] = 600.0
    """Seconds after which a round closes with the updates received so far."""
    grace_s: Annotated[float, Meta(ge=0, le=604_800)] = 0.0
    """Seconds to keep a round open after its quorum, for devices that are nearly done."""
    offline_grace_s: Annotated[float, Meta(ge=0, le=604_800)] = 10.0
    """Seconds to wait for offline devices once every online device has answered."""
    late_updates: LateUpdates = "remember"
    """What happens to an update that arrives after its round: ``remember`` updates only the device's client
    model, ``count`` also counts in the next training round."""
    evaluate: bool = True
    """Run evaluation rounds, which measure the model without changing it; the run always ends with
    one."""
    fraction_evaluate: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Share of the available devices to ask in an evaluation round; 0 turns evaluation off."""
    evaluate_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Number of training rounds between evaluation rounds; 0 evaluates only at the end."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 42
    """Seed for all random draws of the run, such as cohorts and the order of examples."""
    cohort: CohortConfig = CohortConfig()
    broadcast: BroadcastConfig = BroadcastConfig()
    patch: PatchConfig = PatchConfig()
    robust: RobustConfig = RobustConfig()
    privacy: PrivacyConfig | None = None
    training: TrainingConfig = TrainingConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    codec: CodecConfig = CodecConfig()


class RunConfig(RunFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A run as it is stored: the contents of its file and, if it was resumed, the stages before that.

    Evaluation rounds are counted from the beginning of each stage.
    """

    earlier: tuple[EarlierPart, ...] = ()

    def training_in(self, number: int) -> Training:
        """Return the training options for round ``number``, counted from 1.

        An evaluation uses those of the next training round.
        """
        done = min(self.training_rounds(number - 1), self.num_rounds - 1)
        share, end = self.schedule.share(done, self.num_rounds), self.training.end_factor
        if self.schedule.steps:
            end = self.schedule.share(done + 1, self.num_rounds) / share
        rate = self.training.learning_rate * share
        return msgspec.structs.replace(self.training, learning_rate=rate, end_factor=end)

    @property
    def evaluates(self) -> bool:
        """Return True if the run has evaluation rounds."""
        return self.evaluate and self.fraction_evaluate > 0 and not self.withholds

    @property
    def withholds(self) -> bool:
        """Return True if the devices' measurements are withheld from everyone."""
        return self.privacy is not None and self.privacy.reports == "withheld"

    @property
    def total_rounds(self) -> int:
        """Return the number of training and evaluation rounds."""
        trained, last = (
            (self.earlier[-1].trained, self.earlier[-1].last) if self.earlier else (0, 0)
        )
        left = self.num_rounds - trained
        return last + left + self.evaluates * -(-left // (self.evaluate_every or left))

    def training_rounds(self, number: int) -> int:
        """Return how many of the first ``number`` rounds are training rounds."""
        trained = last = 0
        most, planned = math.inf, self.num_rounds
        for stage in self.earlier:
            if number <= stage.last:
                most, planned = stage.trained, stage.num_rounds
                break
            trained, last = stage.trained, stage.last
        number, planned = number - last, planned - trained
        if self.evaluates:
            number = min(planned, number - number // ((self.evaluate_every or planned) + 1))
        return int(min(most, trained + number))


class BrokerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[broker]: how the coordinator and the devices reach the broker."""

    url: str = "mqtt://127.0.0.1:1883"
    """Address of the broker: mqtt://host[:port], mqtts:// with TLS, or ws:// and wss:// for MQTT over
    WebSockets."""
    device_url: str | None = None
    """Broker address to write to the edge.toml of new devices; by default, ``url``."""
    username: str | None = None
    """Account at the broker; by default, ``coordinator-`` and the fleet's name."""
    password_file: str | None = None
    """File with the account's password, readable by the coordinator only; by default, there is no
    password."""
    ca_file: str | None = None
    """Certificate of the authority that signed the broker's certificate; by default, the system's
    authorities."""
    cert_file: str | None = None
    """Certificate that the coordinator presents to the broker, for brokers that require one."""
    key_file: str | None = None
    """Private key that belongs to the certificate in ``cert_file``."""
    device_password_file: str | None = None
    """Mosquitto password file that `device add`, ``reissue`` and ``revoke`` keep up to date; by default,
    none."""
    reload: str | None = None
    """Command that makes the broker read ``device_password_file`` again; the ``device`` commands run it
    after each change."""
    authority_key_file: str | None = None
    """Key of the authority in ``ca_file``, with which the ``device`` commands sign certificates for
    devices; by default, devices get none."""
    certificate_days: Annotated[int, Meta(ge=1, le=3650)] = 365
    """How many days a device's certificate is valid; the device renews it over its connection in the last
    third of that time."""


class KeepConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[keep]: how much the coordinator keeps from runs that have ended; by default, everything.

    Running runs are never deleted. Neither is the run that finished last, because newcomers get its model.
    `sedge-cloud prune --dry-run` lists what would be deleted; a running coordinator deletes it
    automatically.
    """

    runs: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    """Number of ended runs to keep, newest first; by default, all."""
    rounds: Annotated[int, Meta(ge=10, le=1_000_000)] | None = None
    """Number of latest rounds per run whose per-device results are kept; older rounds keep only their
    means."""
    gigabytes: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Size of database and models, in gigabytes, above which ended runs are deleted, oldest first; by
    default, no limit."""


class CloudConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a fleet's coordinator (cloud.toml). Relative paths are resolved from its folder."""

    fleet: Id
    """Name of the fleet, 1 to 48 of a-z, 0-9 and ``-``; it is part of every MQTT topic."""
    state_dir: str = "state"
    """Folder of the database and the models; back it up with `sedge-cloud backup`."""
    broker: BrokerConfig = BrokerConfig()
    trust: TrustConfig = TrustConfig()
    http: HttpConfig = HttpConfig()
    notify: NotifyConfig = NotifyConfig()
    home_assistant: HomeAssistantConfig = HomeAssistantConfig()
    gather_ms: Annotated[int, Meta(ge=0, le=60_000)] = 1000
    """Milliseconds to collect requests for a model after the first one, so that a single broadcast serves
    them all."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest severity to log; use ``debug`` to trace a problem."""
    memory_share: Annotated[float, Meta(gt=0, le=0.8)] = SHARE
    """Share of the machine's or container's memory that all caches together may use."""
    keep: KeepConfig = KeepConfig()
    store: StoreConfig = StoreConfig()
    blobs: BlobsConfig = BlobsConfig()
    compute: ComputeConfig = ComputeConfig()

    @property
    def name(self) -> str:
        """Return the client name that the coordinator uses at the broker."""
        return f"{COORDINATOR}{self.fleet}"

    @property
    def username(self) -> str:
        """Return the user name that the coordinator uses at the broker."""
        return self.broker.username or self.name


def load_cloud(path: Path) -> CloudConfig:
    """Read cloud.toml, resolving its relative paths from its own folder. Raises ``ConfigError``."""
    cloud, where = config.load(path, CloudConfig), str(path)
    for key in ("url", "device_url"):
        _require_url(f"broker.{key}", getattr(cloud.broker, key), path)
    for part in (cloud.http, cloud.notify, cloud.store, cloud.blobs):
        part.check(where)
    return _rebased(cloud, path.resolve().parent, where)


def _rebased(settings: T, base: Path, where: str, prefix: str = "") -> T:
    """Return the settings with relative paths resolved from ``base``.

    Raises ``ConfigError`` if a path contains NUL.
    """
    changed: dict[str, object] = {}
    for name in settings.__struct_fields__:
        value = getattr(settings, name)
        if isinstance(value, msgspec.Struct):
            changed[name] = _rebased(value, base, where, f"{prefix}{name}.")
        elif isinstance(value, str) and name.endswith(_PATHS):
            if "\0" in value:
                raise ConfigError(f"{prefix}{name}", value, "a path without NUL", where)
            changed[name] = str(base / value)
    return msgspec.structs.replace(settings, **changed)


def _require_url(key: str, url: str | None, path: Path) -> None:
    """Raise ``ConfigError`` for a malformed URL, or one with characters that need escaping in edge.toml."""
    if url is None:
        return
    try:
        BrokerSettings(url, "").endpoint()
        good = _PLAIN.fullmatch(url) is not None
    except ConfigError:
        good = False
    if not good:
        raise ConfigError(key, url, URLS, str(path))


def broker_settings(cloud: CloudConfig) -> BrokerSettings:
    """Return the settings for connecting to the broker.

    Raises ``ConfigError`` if the password file is unreadable.
    """
    broker = cloud.broker
    password = broker.password_file
    if password is not None:
        password = config.named_text(password, "broker.password_file").strip()
    return BrokerSettings(
        broker.url,
        cloud.name,
        cloud.username,
        password,
        broker.ca_file,
        broker.cert_file,
        broker.key_file,
    )
