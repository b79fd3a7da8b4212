"""The schema of a fleet file, fleet.toml, and its checks."""

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from sedge_cloud.coding import BroadcastConfig, CodecConfig, PatchConfig
from sedge_cloud.config import (
    LateUpdates,
    Option,
    RobustConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
)
from sedge_cloud.privacy import PrivacyConfig, require_devices
from sedge_cloud.run_file import check_run
from sedge_emulate.attack import AttackConfig
from sedge_emulate.device_classes import (
    MEAN,
    SHORTEST_MEAN_S,
    ChurnConfig,
    ClassConfig,
    Name,
    contradictions,
)
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import toml as config
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.wire.messages import Id

LINKS = ("memory", "broker", "mosquitto", "amqtt")
# The file types of a partition, which assigns examples to devices (see data/partition.py).
SUFFIXES = (".npy", ".json", ".pkl")
# The ids that virtual devices get (see data/shares.py); real devices must not use them.
VIRTUAL = re.compile(r"device-\d+")

Rate: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[data]: the devices' examples.

    ``auto`` is Fashion-MNIST if it is installed, otherwise digits. PFLlib's folders and a ``partition`` may
    specify the test examples. The groups of ``natural`` are people, for example. Use ``validation`` to
    choose settings without looking at the test examples. One example of each class, between those to train
    on and those to validate on, is then left out, because neighbouring windows of a signal overlap.
    """

    dataset: Annotated[str, Meta(min_length=1)] = "auto"
    """Data set: ``auto``, ``fashion-mnist``, ``digits``, ``phones``, ``shakespeare``, or your own:
    ``module:function``, an .npz or .csv file, or a folder of images or PFLlib data."""
    examples: Annotated[int, Meta(ge=0)] = 0
    """Number of examples of the data set to use; 0 uses all."""
    split: Literal["dirichlet", "pathological", "iid", "natural", "given"] = "dirichlet"
    """How devices share the examples: ``dirichlet`` by ``alpha``, ``pathological`` by
    ``classes_per_device``, ``iid`` at random, ``natural`` by the source's groups, ``given`` by
    ``partition``."""
    partition: str = ""
    """File that assigns examples to devices: .npy, .json, or FL-bench's .pkl."""
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 0.1
    """Concentration of the Dirichlet distribution of each class; smaller values make devices differ
    more."""
    classes_per_device: Annotated[int, Meta(ge=1)] = 2
    """Number of classes per device in the pathological split."""
    min_examples: Annotated[int, Meta(ge=2)] = 10
    """Minimum number of examples per device; ignored if a file assigns them."""
    test_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.25
    """Share of each device's examples to set aside for testing."""
    validation: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    """Share of each device's training examples, the last ones of each class, to test on instead of its
    test examples; 0 means none."""
    central_test: Annotated[float, Meta(ge=0, lt=1)] | str = 0.0
    """Extra test set for every model: a share of the examples, withheld from all devices, or another
    source; 0 means none."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    """Seed for the split, by default the fleet's; set it to use one split with several seeds."""


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[model]: the model that devices train.

    If neither ``factory`` nor ``name`` is given, the data determines the model. Most strategies support
    only the whole model; the others assign one of the ``widths`` to each device.
    """

    factory: str = ""
    """Function that returns the model, as ``module:function``; if empty, ``name`` is used."""
    name: Literal["", "avgcnn", "mlp", "resnet8"] = ""
    """Built-in model; if empty, the data decides."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    """Seed for the initial weights, by default the fleet's."""
    batch_size: Annotated[int, Meta(ge=1, le=65536)] = 32
    """Number of examples per training step."""
    widths: Annotated[tuple[Rate, ...], Meta(min_length=1, max_length=16)] = (0.0,)
    """Model widths that devices may get, each as the share of channels removed; the first must be 0, the
    whole model."""
    frozen: Literal["float32", "bf16", "int8"] = "float32"
    """Precision of parameters that are not trained; the results show its cost."""
    loss: str = ""
    """Loss function, as for ``sedge-export``; if empty, the usual one for the target."""
    label_smoothing: Rate = 0.0
    """Share of each label to spread evenly over all classes."""
    class_weights: tuple[Annotated[float, Meta(ge=0, le=1e6)], ...] = ()
    """Weight of each class in the loss; if empty, all classes count equally."""
    target: Literal["", "class", "float", "none"] = ""
    """What the model predicts: a ``class``, a ``float``, or ``none`` for its own input; if empty, the
    data decides."""
    metric: str = ""
    """Metric, as for ``sedge-export``; if empty, the usual one for the target."""
    guided: str = ""
    """Guided loss that a strategy may request, as for ``sedge-export``; if empty, there is none."""


class TrainerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[trainer]: how this host computes the devices' training steps.

    On a CPU, ``tf32``, ``graphs`` and ``convolutions`` have no effect. Under bf16, parameters, sums and the
    optimizer stay float32. ``graphs`` is refused if the model's step copies numbers between host and GPU,
    for example with ``class_weights``.
    """

    backend: Name = "auto"
    """Trainer: ``onnx``, ``autograd``, ``vectorised``, ``auto``, which chooses by model and device, or
    your own function as ``module:function``, as for ``backend.name`` in edge.toml."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of products: ``fp32`` gives a real device's numbers; ``bf16``, on CUDA only, rounds
    factors and changes which elements are kept."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Processor to train on: ``cpu``, ``cuda``, or ``auto`` for CUDA where it can be used."""
    tf32: bool = False
    """Let fp32 products round their factors to 10 bits; on CUDA only."""
    graphs: bool = False
    """Launch all CUDA kernels of a step together, which changes no results; vectorised trainer only."""
    convolutions: Literal["grouped", "unfold"] = "grouped"
    """How the vectorised trainer convolves for many devices: as one ``grouped`` convolution or, with
    ``unfold``, as matrix products of patches."""


class RoundsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[rounds]: how long the runs are, and when rounds open and close.

    The report's final accuracies cover the devices that are online at the end.
    """

    num_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    """Number of training rounds of each strategy."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] | None = None
    """Seed for the coordinator's draws, such as cohorts and the order of examples, by default the
    fleet's."""
    fraction_train: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the available devices that train in a round."""
    fraction_evaluate: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the available devices to ask in an evaluation round."""
    evaluate_every: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Number of training rounds between evaluation rounds; 0 evaluates only at the end."""
    fraction_available: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the fleet that must be online before a round opens; less than 1 if devices leave or are
    not always on."""
    quorum: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Share of the round's devices that must send an update before it closes; less than 1 avoids waiting
    for stragglers."""
    deadline_s: Annotated[float, Meta(ge=1, le=604_800)] = 600.0
    """Seconds after which a round closes with the updates received so far."""
    grace_s: Annotated[float, Meta(ge=0, le=604_800)] = 0.0
    """Seconds to keep a round open after its quorum, for devices that are nearly done."""
    late_updates: LateUpdates = "remember"
    """What happens to an update that arrives after its round: ``remember`` only updates the device's
    client model, ``count`` also adds it to the next round."""


class StrategyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[strategies]]: one run of the fleet under one strategy.

    If the run has its own ``training``, ``codec``, ``broadcast``, ``patch``, ``robust``, ``privacy`` or
    ``attack``, that table replaces the fleet's table entirely. The results of a private run still include
    the devices' measurements.
    """

    name: str
    """Name of the strategy, such as ``fedobp``, or ``module:Class`` for one of your own."""
    label: str = ""
    """Name of the run in progress output and the report; if empty, the strategy's name."""
    options: Mapping[str, Option] = {}
    """Options of the strategy, which `sedge-cloud reference NAME` lists."""
    training: TrainingConfig | None = None
    codec: CodecConfig | None = None
    broadcast: BroadcastConfig | None = None
    patch: PatchConfig | None = None
    robust: RobustConfig | None = None
    privacy: PrivacyConfig | None = None
    attack: AttackConfig | None = None

    @property
    def title(self) -> str:
        """The run's name in progress output and in the report."""
        return self.label or self.name


class EmulationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fleet file: virtual devices, and the strategies to run on them.

    With ``memory``, time is virtual, and devices differ and fail as [[classes]] and [churn] specify;
    without these tables nothing fails. ``broker`` means Mosquitto or, if that is not installed, amqtt.
    """

    devices: Annotated[int, Meta(ge=1, le=100_000)] = 20
    """Number of virtual devices in the fleet."""
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 42
    """Seed for all random draws, such as the split, cohorts and faults."""
    workers: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Number of training processes; 0 starts one per processor."""
    link: str = "memory"
    """How devices and coordinator connect: ``memory``, ``broker``, ``mosquitto``, ``amqtt``, or a running
    broker as mqtt://host[:port]."""
    real: tuple[Id, ...] = ()
    """Ids of real devices that join the virtual ones over a broker."""
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
    privacy: PrivacyConfig | None = None
    attack: AttackConfig = AttackConfig()
    classes: tuple[ClassConfig, ...] = ()
    churn: ChurnConfig = ChurnConfig()
    strategies: Annotated[tuple[StrategyConfig, ...], Meta(min_length=1)]

    def run(self, strategy: StrategyConfig) -> RunConfig:
        """Return the run configuration of one strategy on this fleet."""
        rounds = self.rounds
        fleet = self.devices + len(self.real)
        fewest = min(2, fleet)
        privacy = strategy.privacy or self.privacy
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
            seed=self.seed if rounds.seed is None else rounds.seed,
            broadcast=strategy.broadcast or self.broadcast,
            patch=strategy.patch or self.patch,
            training=strategy.training or self.training,
            schedule=self.schedule,
            robust=strategy.robust or self.robust,
            privacy=None if privacy is None else replace(privacy, reports="kept"),
            codec=strategy.codec or self.codec,
        )

    def attack_under(self, strategy: StrategyConfig) -> AttackConfig:
        """Return the attack on a strategy's run: the strategy's own if it has one, or the fleet's."""
        return strategy.attack or self.attack

    def check(self, where: str = "") -> "EmulationConfig":
        """Return this config. Raises ``ConfigError`` for errors that types and ranges cannot catch."""
        _require_unique("strategies.label", [s.title for s in self.strategies], where)
        for strategy in self.strategies:
            run = check_run(self.run(strategy), where)
            if run.privacy is not None:
                require_devices(run.privacy, self.devices + len(self.real), where)
            attack = self.attack_under(strategy)
            if attack.devices > self.devices:
                expected = f"at most devices = {self.devices}"
                raise ConfigError("attack.devices", attack.devices, expected, where)
        _check_data(self.data, where)
        _check_model(self.model, where)
        _check_link(self.link, self.real, where)
        _require_unique("classes.name", [kind.name for kind in self.classes], where)
        for i, kind in enumerate(self.classes):
            for key, found, expected in contradictions(kind):
                raise ConfigError(f"classes[{i}].{key}", found, expected, where)
        if self.classes and all(kind.absent_rounds for kind in self.classes):
            fewest = min(kind.absent_rounds for kind in self.classes)
            expected = "0 in at least one class, which then trains in every round"
            raise ConfigError("classes.absent_rounds", fewest, expected, where)
        leave_s = self.churn.leave_every_s
        if 0 < leave_s < SHORTEST_MEAN_S:
            raise ConfigError("churn.leave_every_s", leave_s, MEAN, where)
        come_and_go = leave_s > 0 or any(kind.duty for kind in self.classes)
        if come_and_go and self.rounds.fraction_available == 1:
            expected = (
                "less than 1: with churn.leave_every_s or classes.duty, some are usually offline"
            )
            raise ConfigError("rounds.fraction_available", 1.0, expected, where)
        return self


def load_emulation(path: Path) -> EmulationConfig:
    """Read and check a fleet file. Raises ``ConfigError``.

    The user's own strategies, and modules that they import later, are looked up in the file's folder.
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


def _check_data(data: DataConfig, where: str) -> None:
    given = data.split == "given"
    if given and not data.partition.endswith(SUFFIXES):
        expected = f"a file ({', '.join(SUFFIXES)}) with split = 'given'"
        raise ConfigError("data.partition", data.partition, expected, where)
    if data.partition and not given:
        raise ConfigError("data.partition", data.partition, "none unless split = 'given'", where)
    if data.examples and given:
        expected = "0 with split = 'given', because the partition lists the examples"
        raise ConfigError("data.examples", data.examples, expected, where)


def _check_model(model: ModelConfig, where: str) -> None:
    if model.factory and model.name:
        raise ConfigError("model.name", model.name, "none with model.factory", where)
    widths = list(model.widths)
    if widths[0] != 0 or widths != sorted(set(widths)):
        raise ConfigError("model.widths", widths, "increasing numbers that start at 0", where)


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
            raise ConfigError("real", name, "an id that no virtual device can have", where)


def _require_unique(key: str, names: Sequence[str], where: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(key, name, "each name only once", where)
