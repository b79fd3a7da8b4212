"""The description of an emulated fleet (fleet.toml)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sedge_cloud.config import CodecConfig, Option, RunConfig, TrainingConfig
from sedge_protocol import config
from sedge_protocol.errors import ConfigError
from sedge_protocol.sparse import ValueCoding


class DataConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[data]: what the devices hold.

    ``dataset`` is auto, fashion-mnist, digits, or a source of your own: "module:function", .npz, a folder.
    ``examples`` of the data set are used (0: all), shared out by ``split``; every device keeps
    ``test_fraction`` of its own for testing.
    """

    dataset: Annotated[str, Meta(min_length=1)] = "auto"
    examples: Annotated[int, Meta(ge=0)] = 0
    split: Literal["dirichlet", "pathological"] = "dirichlet"
    alpha: Annotated[float, Meta(gt=0, le=1e6)] = 0.1
    classes_per_device: Annotated[int, Meta(ge=1)] = 2
    min_examples: Annotated[int, Meta(ge=2)] = 10
    test_fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.25


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[model]: ``factory`` is "module:function", called without arguments; "" picks one for the data."""

    factory: str = ""
    batch_size: Annotated[int, Meta(ge=1, le=65536)] = 32


class RoundsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[rounds]: what all strategies have in common (see sedge_cloud.config.RunConfig)."""

    num_rounds: Annotated[int, Meta(ge=1, le=1_000_000)] = 10
    fraction_train: Annotated[float, Meta(gt=0, le=1)] = 1.0
    quorum: Annotated[float, Meta(gt=0, le=1)] = 1.0
    deadline_s: Annotated[float, Meta(ge=1, le=604_800)] = 600.0
    model_values: ValueCoding = ValueCoding.FP32


class StrategyConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[[strategies]]: one run of the fleet. ``codec`` replaces the common one."""

    name: str
    label: str = ""
    options: Mapping[str, Option] = {}
    codec: CodecConfig | None = None

    @property
    def title(self) -> str:
        """What progress and report call it."""
        return self.label or self.name


class EmulationConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """fleet.toml. ``workers`` train at once (0: one for each processor)."""

    devices: Annotated[int, Meta(ge=1, le=100_000)] = 20
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 42
    workers: Annotated[int, Meta(ge=0, le=1024)] = 0
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    rounds: RoundsConfig = RoundsConfig()
    training: TrainingConfig = TrainingConfig()
    codec: CodecConfig = CodecConfig()
    strategies: Annotated[tuple[StrategyConfig, ...], Meta(min_length=1)]

    def run(self, strategy: StrategyConfig) -> RunConfig:
        """The run of one strategy on this fleet."""
        rounds = self.rounds
        return RunConfig(
            strategy=strategy.name,
            options=strategy.options,
            num_rounds=rounds.num_rounds,
            fraction_train=rounds.fraction_train,
            min_train_devices=min(2, self.devices),
            min_available_devices=self.devices,
            quorum=rounds.quorum,
            deadline_s=rounds.deadline_s,
            seed=self.seed,
            model_values=rounds.model_values,
            training=self.training,
            codec=strategy.codec or self.codec,
        )


def load_emulation(path: Path) -> EmulationConfig:
    """Read and check a fleet file. Raises ``ConfigError``."""
    found = config.load(path, EmulationConfig)
    titles = [strategy.title for strategy in found.strategies]
    for title in titles:
        if titles.count(title) > 1:
            raise ConfigError("strategies.label", title, "a label for each entry", str(path))
    for strategy in found.strategies:
        found.run(strategy).check(str(path))
    return found
