"""The description of an emulated fleet (fleet.toml).

Times of devices and links are virtual seconds of the emulation's clock. An event whose mean interval
("every") is 0 never happens. The intervals are exponentially distributed, and so are the durations of a
cut and of a full disk.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from sedge_cloud.coding import BroadcastConfig, CodecConfig, PatchConfig
from sedge_cloud.config import (
    LateUpdates,
    Option,
    RobustConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
)
from sedge_emulate.attack import AttackConfig
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import toml as config
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.wire.messages import Id

LINKS = ("memory", "broker", "mosquitto", "amqtt")
# The kinds of a file that says who has which examples (see data/partition.py).
SUFFIXES = (".npy", ".json", ".pkl")
# The names of virtual devices (see data/shares.py); a real one must not take one.
VIRTUAL = re.compile(r"device-\d+")
# Closer events would only keep the emulation busy.
SHORTEST_MEAN_S = 1.0
_MAX_S = 3.2e8  # ten years

Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=64)]
Chance: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Rate: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Milliseconds: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0, le=_MAX_S)]
KbitPerS: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[data]: the devices' examples.

    ``dataset`` is auto, fashion-mnist, digits, or a source of your own: "module:function", .npz, .csv,
    a folder of images or of PFLlib's. ``examples`` of the data set are used (0: all) and divided by
    ``split``: by Dir(``alpha``) of every class, by ``classes_per_device``, at random (iid), by the
    groups that the source names, such as persons (natural), or as the file ``partition`` says (given:
    .npy, .json, or FL-bench's .pkl). Every device has at least ``min_examples``, unless they are given,
    and keeps ``test_fraction`` of them for testing, unless the file or PFLlib says which. ``seed`` draws
    the split; without it, the fleet's seed does. With it, ``--seeds`` compares first models on one split.

    ``central_test``, a share of the examples that no device gets or another source, is a test set for every
    device's model and for the global one, besides the devices' own.
    """

    dataset: Annotated[str, Meta(min_length=1)] = "auto"
    examples: Annotated[int, Meta(ge=0)] = 0
    split: Literal["dirichlet", "pathological", "iid", "natural", "given"] = "dirichlet"
    partition: str = ""
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 0.1
    classes_per_device: Annotated[int, Meta(ge=1)] = 2
    min_examples: Annotated[int, Meta(ge=2)] = 10
    test_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.25
    central_test: Annotated[float, Meta(ge=0, lt=1)] | str = 0.0
    seed: Annotated[int, Meta(ge=0, lt=2**32)] | None = None


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[model]: ``factory`` is "module:function", called without arguments; "" takes the model ``name``.

    Without either, the data decides. ``widths`` are the forms of the model that devices may get, each given
    by the share of the channels that it lacks; 0, the whole model, comes first. The strategy decides which
    device gets which form; most strategies know the whole model only.

    ``loss``, ``label_smoothing``, ``class_weights``, ``target`` and ``metric`` are those of `sedge-export`.
    Without a ``target`` the data decide: labels, numbers, or the input itself where there is no y.
    """

    factory: str = ""
    name: Literal["", "avgcnn", "mlp", "resnet8"] = ""
    batch_size: Annotated[int, Meta(ge=1, le=65536)] = 32
    widths: Annotated[tuple[Rate, ...], Meta(min_length=1, max_length=16)] = (0.0,)
    loss: str = ""
    label_smoothing: Rate = 0.0
    class_weights: tuple[Annotated[float, Meta(ge=0, le=1e6)], ...] = ()
    target: Literal["", "class", "float", "none"] = ""
    metric: str = ""


class TrainerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[trainer]: how this host computes the devices' steps.

    ``backend`` auto follows the rule in ``training.choice``. ``device`` auto is CUDA where there is any
    that can be used, otherwise the CPU, which then ignores ``tf32``, ``graphs`` and ``convolutions``.

    ``precision`` fp32 gives a real device's numbers. bf16, on CUDA only, rounds the factors of products;
    parameters, sums and the optimizer stay float32. It changes which elements are kept. ``tf32``, on CUDA
    only, lets the products of fp32 round their factors to 10 bits. ``graphs``, on CUDA only, launches all
    kernels of a step together, and changes no number. ``convolutions`` of many devices are computed as one
    grouped convolution, or as the product of their input's unfolded patches with the filters.
    ``graphs`` and unfold are for the vectorised trainer. A model whose step moves numbers between host and
    GPU, as one with ``class_weights`` does, cannot have graphs and is refused.
    """

    backend: Name = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    tf32: bool = False
    graphs: bool = False
    convolutions: Literal["grouped", "unfold"] = "grouped"


class RoundsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[rounds]: the settings that all strategies share (see sedge_cloud.config.RunConfig).

    A round begins once ``fraction_available`` of the fleet is online. It must be below 1 where devices
    leave for good or keep hours, because they are never all online again. The reported accuracies are
    measured at the end, on ``fraction_evaluate`` of the devices that are online then, and every
    ``evaluate_every`` rounds of training (0: at the end only).
    """

    num_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    fraction_train: Annotated[float, Meta(gt=0, le=1)] = 1.0
    fraction_evaluate: Annotated[float, Meta(gt=0, le=1)] = 1.0
    evaluate_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    fraction_available: Annotated[float, Meta(gt=0, le=1)] = 1.0
    quorum: Annotated[float, Meta(gt=0, le=1)] = 1.0
    deadline_s: Annotated[float, Meta(ge=1, le=604_800)] = 600.0
    grace_s: Annotated[float, Meta(ge=0, le=604_800)] = 0.0
    late_updates: LateUpdates = "remember"


class LinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[classes.link]: the link between a device of the class and the broker.

    A message is lost, damaged or delivered twice with the probabilities ``loss``, ``corrupt`` and
    ``duplicate``. It takes ``delay_ms`` plus a uniform extra of up to ``jitter_ms``. With a rate (1 kbit is
    1000 bits; 0: no limit) the messages of one direction queue. The link goes down ``cut_every_s`` (mean)
    after it came up, and stays down for ``cut_s`` (mean).
    """

    delay_ms: Milliseconds = 0.0
    jitter_ms: Milliseconds = 0.0
    loss: Chance = 0.0
    corrupt: Chance = 0.0
    duplicate: Chance = 0.0
    up_kbit_s: KbitPerS = 0.0
    down_kbit_s: KbitPerS = 0.0
    cut_every_s: Seconds = 0.0
    cut_s: Seconds = 0.0


class DutyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[classes.duty]: each device is on for ``on_s`` of every ``period_s``, at hours of its own."""

    period_s: Annotated[float, Meta(ge=1, le=_MAX_S)]
    on_s: Annotated[float, Meta(ge=1, le=_MAX_S)]


class ClassConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[classes]]: devices of one kind; ``share`` weighs the class against the others.

    A job takes ``start_ms`` plus ``step_ms`` for each training step of the whole model; a narrower model's
    steps take less, in proportion to its parameters. The sum is multiplied by a lognormal factor with
    median 1 and sigma ``jitter``; ``straggler_share`` of the jobs take ``straggler_factor`` times as long.
    Every ``reboot_every_s`` (mean) the device restarts and loses its memory. Every ``disk_full_every_s``
    (mean) its disk refuses writes for ``disk_full_s`` (mean). ``memory_mb`` is the memory that the device
    announces (0: none); strategies that size models to devices go by it.
    """

    name: Name
    share: Annotated[float, Meta(gt=0, le=1e6)] = 1.0
    step_ms: Milliseconds = 20.0
    start_ms: Milliseconds = 0.0
    jitter: Annotated[float, Meta(ge=0, le=3)] = 0.0
    straggler_share: Chance = 0.0
    straggler_factor: Annotated[float, Meta(ge=1, le=1e6)] = 4.0
    reboot_every_s: Seconds = 0.0
    disk_full_every_s: Seconds = 0.0
    disk_full_s: Seconds = 0.0
    memory_mb: Annotated[int, Meta(ge=0, le=2**30)] = 0
    link: LinkConfig = LinkConfig()
    duty: DutyConfig | None = None


class ChurnConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[churn]: devices join at uniform times within ``join_within_s`` and leave for good after a lifetime
    of ``leave_every_s`` (mean, exponential; 0: they stay)."""

    join_within_s: Seconds = 0.0
    leave_every_s: Seconds = 0.0


class StrategyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[strategies]]: one run of the fleet. Its own ``training``, ``codec``, ``broadcast``, ``patch``,
    ``robust`` and ``attack`` replace the fleet's tables as a whole."""

    name: str
    label: str = ""
    options: Mapping[str, Option] = {}
    training: TrainingConfig | None = None
    codec: CodecConfig | None = None
    broadcast: BroadcastConfig | None = None
    patch: PatchConfig | None = None
    robust: RobustConfig | None = None
    attack: AttackConfig | None = None

    @property
    def title(self) -> str:
        """Its name in progress and report."""
        return self.label or self.name


class EmulationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """fleet.toml. ``workers`` processes train at once (0: one for each processor).

    ``link`` connects devices and coordinator: memory (virtual time, faults of the classes), broker
    (Mosquitto or, where there is none, amqtt), mosquitto, amqtt, or mqtt://host[:port] of a running one.
    The devices whose ids are ``real`` join the virtual ones over a broker. Without ``classes`` nothing
    fails.
    """

    devices: Annotated[int, Meta(ge=1, le=100_000)] = 20
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 42
    workers: Annotated[int, Meta(ge=0, le=1024)] = 0
    link: str = "memory"
    real: tuple[Id, ...] = ()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    trainer: TrainerConfig = TrainerConfig()
    rounds: RoundsConfig = RoundsConfig()
    training: TrainingConfig = TrainingConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    codec: CodecConfig = CodecConfig()
    broadcast: BroadcastConfig = BroadcastConfig()
    patch: PatchConfig = PatchConfig()
    robust: RobustConfig = RobustConfig()
    attack: AttackConfig = AttackConfig()
    classes: tuple[ClassConfig, ...] = ()
    churn: ChurnConfig = ChurnConfig()
    strategies: Annotated[tuple[StrategyConfig, ...], Meta(min_length=1)]

    def run(self, strategy: StrategyConfig) -> RunConfig:
        """The run of one strategy on this fleet."""
        rounds = self.rounds
        fleet = self.devices + len(self.real)
        fewest = min(2, fleet)
        return RunConfig(
            strategy=strategy.name,
            options=strategy.options,
            num_rounds=rounds.num_rounds,
            fraction_train=rounds.fraction_train,
            fraction_evaluate=rounds.fraction_evaluate,
            evaluate_every=rounds.evaluate_every,
            min_train_devices=fewest,
            min_available_devices=max(fewest, round(rounds.fraction_available * fleet)),
            quorum=rounds.quorum,
            deadline_s=rounds.deadline_s,
            grace_s=rounds.grace_s,
            late_updates=rounds.late_updates,
            seed=self.seed,
            broadcast=strategy.broadcast or self.broadcast,
            patch=strategy.patch or self.patch,
            training=strategy.training or self.training,
            schedule=self.schedule,
            robust=strategy.robust or self.robust,
            codec=strategy.codec or self.codec,
        )

    def attack_under(self, strategy: StrategyConfig) -> AttackConfig:
        """The attack in the run of one strategy."""
        return strategy.attack or self.attack

    def check(self, where: str = "") -> "EmulationConfig":
        """The same config. Raises ``ConfigError`` for what types and ranges alone cannot catch."""
        _require_unique("strategies.label", [s.title for s in self.strategies], where)
        for strategy in self.strategies:
            self.run(strategy).check(where)
            attack = self.attack_under(strategy)
            if attack.devices > self.devices:
                expected = f"at most devices = {self.devices}"
                raise ConfigError("attack.devices", attack.devices, expected, where)
        _check_data(self.data, where)
        _check_model(self.model, where)
        _check_link(self.link, self.real, where)
        _require_unique("classes.name", [kind.name for kind in self.classes], where)
        for i, kind in enumerate(self.classes):
            for key, found, expected in _wrong(kind):
                raise ConfigError(f"classes[{i}].{key}", found, expected, where)
        leave_s = self.churn.leave_every_s
        if 0 < leave_s < SHORTEST_MEAN_S:
            raise ConfigError("churn.leave_every_s", leave_s, _MEAN, where)
        come_and_go = leave_s > 0 or any(kind.duty for kind in self.classes)
        if come_and_go and self.rounds.fraction_available == 1:
            expected = (
                "less than 1: with churn.leave_every_s or classes.duty not all are ever online"
            )
            raise ConfigError("rounds.fraction_available", 1.0, expected, where)
        return self


_MEAN = f"0 (never), or {SHORTEST_MEAN_S:g} second or more"


def load_emulation(path: Path) -> EmulationConfig:
    """Read and check a fleet file. Raises ``ConfigError``.

    Strategies of one's own, and what they import later, are found beside it.
    """
    found = config.load(path, EmulationConfig)
    beside = str(path.absolute().parent)
    sys.path.insert(0, beside)
    try:
        return found.check(str(path))
    finally:
        sys.path.remove(beside)
        if beside not in sys.path:
            sys.path.append(beside)


def _wrong(kind: ClassConfig) -> Iterator[tuple[str, float, str]]:
    """Each contradiction within a class: key, value and what was expected."""
    link, duty = kind.link, kind.duty
    for key, every_s in (
        ("link.cut_every_s", link.cut_every_s),
        ("reboot_every_s", kind.reboot_every_s),
        ("disk_full_every_s", kind.disk_full_every_s),
    ):
        if 0 < every_s < SHORTEST_MEAN_S:
            yield key, every_s, _MEAN
    for key, every_s, lasting_s in (
        ("link.cut", link.cut_every_s, link.cut_s),
        ("disk_full", kind.disk_full_every_s, kind.disk_full_s),
    ):
        if bool(every_s) != bool(lasting_s):
            wrong = f"{key}_every_s" if lasting_s else f"{key}_s"
            yield wrong, 0.0, f"above 0: {key}_every_s and {key}_s go together"
    if duty and duty.on_s > duty.period_s:
        yield "duty.on_s", duty.on_s, f"at most duty.period_s = {duty.period_s:g}"


def _check_data(data: DataConfig, where: str) -> None:
    given = data.split == "given"
    if given and not data.partition.endswith(SUFFIXES):
        expected = f"a file {', '.join(SUFFIXES)} beside split = 'given'"
        raise ConfigError("data.partition", data.partition, expected, where)
    if data.partition and not given:
        raise ConfigError("data.partition", data.partition, "split = 'given' beside it", where)
    if data.examples and given:
        expected = "0 beside split = 'given', which names the examples itself"
        raise ConfigError("data.examples", data.examples, expected, where)


def _check_model(model: ModelConfig, where: str) -> None:
    if model.factory and model.name:
        raise ConfigError("model.name", model.name, "none beside model.factory", where)
    widths = list(model.widths)
    if widths[0] != 0 or widths != sorted(set(widths)):
        raise ConfigError("model.widths", widths, "rising numbers, the first of them 0", where)


def _check_link(link: str, real: Sequence[str], where: str) -> None:
    if link not in LINKS:
        try:
            BrokerSettings(link, "").endpoint()
        except ConfigError as exc:
            expected = f"{', '.join(LINKS)} or mqtt://host[:port]"
            raise ConfigError("link", link, expected, where) from exc
    if real and link == "memory":
        raise ConfigError("link", link, "a broker, over which real devices can join", where)
    _require_unique("real", real, where)
    for name in real:
        if VIRTUAL.fullmatch(name):
            raise ConfigError("real", name, "an id unlike those of virtual devices", where)


def _require_unique(key: str, names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(key, name, "each only once", where)
