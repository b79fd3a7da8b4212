"""Reads and checks a run file (run.toml), including the options of its strategy."""

import math
from pathlib import Path

import msgspec

from sedge_cloud.algorithms.robust import COORDINATE_RULES
from sedge_cloud.config import RobustConfig, RunConfig, RunFile, ScheduleConfig
from sedge_cloud.privacy import PrivacyConfig, require_accountant, require_found
from sedge_cloud.store.selector import parse
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategies.fedobp import FedOBP
from sedge_cloud.strategies.fedselect import FedSelect
from sedge_cloud.strategy import Strategy
from sedge_protocol.errors import ConfigError
from sedge_protocol.host import toml
from sedge_protocol.wire.training import Training


def load_run(path: Path) -> RunConfig:
    """Read and check a run file. Raises ``ConfigError``."""
    file = toml.load(path, RunFile)
    return check_run(RunConfig(**msgspec.structs.asdict(file)), str(path))


def check_run(run: RunConfig, where: str = "") -> RunConfig:
    """Check the rules that types and ranges alone cannot express.

    Returns the config. Raises ``ConfigError``.
    """
    try:
        strategy = make_strategy(run.strategy, run.options)
    except ConfigError as exc:
        key = exc.key if exc.key in ("strategy", "options") else f"options.{exc.key}"
        raise ConfigError(key, exc.found, exc.expected, where) from exc
    if run.cohort.select:
        parse(run.cohort.select, "cohort.select", where)
    if run.privacy is not None:
        _check_privacy(run, run.privacy, strategy, where)
    _check_optimizer(run.training, where)
    _check_schedule(run.schedule, run.training, run.num_rounds, where)
    if run.robust.rule in COORDINATE_RULES and not strategy.coordinate_rules:
        rules = "direction, mean, krum or multi_krum"
        expected = f"{rules}: {run.strategy} aggregates in its own way"
        raise ConfigError("robust.rule", run.robust.rule, expected, where)
    if run.min_train_devices > run.min_available_devices:
        expected = f"at least min_train_devices = {run.min_train_devices}"
        raise ConfigError("min_available_devices", run.min_available_devices, expected, where)
    smallest = max(run.min_train_devices, round(run.fraction_train * run.min_available_devices))
    if run.min_updates > smallest:
        expected = f"at most {smallest}, the devices of the smallest round"
        raise ConfigError("min_updates", run.min_updates, expected, where)
    for key in ("deadline_s", "grace_s"):
        if not math.isfinite(getattr(run, key)):
            raise ConfigError(key, getattr(run, key), "a finite number", where)
    return run


def _check_privacy(run: RunConfig, privacy: PrivacyConfig, strategy: Strategy, where: str) -> None:
    """Refuse settings that let a device count for more than the clip or affect other devices' weights."""
    require_accountant()
    # FedSelect is refused, as its mean depends on which elements each device has chosen.
    if not isinstance(strategy, FedAvg | FedOBP) or isinstance(strategy, FedSelect):
        expected = "fedavg, its variants or fedobp with [privacy]: they only average changes"
        raise ConfigError("strategy", run.strategy, expected, where)
    if isinstance(strategy, FedOBP) and strategy.scoring != "device":
        expected = (
            "'device' with [privacy]: the cloud would compute the scores from individual updates"
        )
        raise ConfigError("options.scoring", strategy.scoring, expected, where)
    for field in msgspec.structs.fields(RobustConfig):
        found = getattr(run.robust, field.name)
        if found != field.default:
            expected = (
                "no [robust] with [privacy]: a rule that depends on the updates is not a fixed clip"
            )
            raise ConfigError(f"robust.{field.name}", found, expected, where)
    fixed = {
        "codec.error_feedback": (
            run.codec.error_feedback,
            False,
            "error feedback makes updates longer",
        ),
        "late_updates": (
            run.late_updates,
            "remember",
            "a late update belongs to another round's draw",
        ),
        "quorum": (run.quorum, 1.0, "otherwise a device could take another's place"),
        "min_updates": (run.min_updates, 1, "the number of devices drawn is random"),
    }
    for key, (found, wanted, why) in fixed.items():
        if found != wanted:
            shown = str(wanted).lower() if isinstance(wanted, bool) else repr(wanted)
            raise ConfigError(key, found, f"{shown} with [privacy]: {why}", where)
    require_found(privacy, run.fraction_train, run.num_rounds, run.min_available_devices, where)


def _check_optimizer(training: Training, where: str) -> None:
    if training.optimizer != "sgd" and training.momentum:
        expected = f"0: {training.optimizer} has beta1"
        raise ConfigError("training.momentum", training.momentum, expected, where)
    if training.nesterov and not training.momentum:
        expected = "false: Nesterov's method needs momentum"
        raise ConfigError("training.nesterov", True, expected, where)


def _check_schedule(schedule: ScheduleConfig, training: Training, rounds: int, where: str) -> None:
    if schedule.warmup_rounds >= rounds:
        expected = f"fewer than num_rounds = {rounds}"
        raise ConfigError("schedule.warmup_rounds", schedule.warmup_rounds, expected, where)
    if schedule.kind == "exponential" and not schedule.final:
        raise ConfigError("schedule.final", 0.0, "above 0: an exponential never reaches 0", where)
    if schedule.steps and schedule.kind == "constant" and not schedule.warmup_rounds:
        expected = "false: without kind or warmup_rounds all rounds have the same rate"
        raise ConfigError("schedule.steps", True, expected, where)
    if schedule.steps and training.end_factor != 1:
        expected = "1: schedule.steps sets the rate at the end of a round"
        raise ConfigError("training.end_factor", training.end_factor, expected, where)
