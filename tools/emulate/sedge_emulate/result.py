"""An emulation's result: the schema of ``result.json``, format 1.

    Result ─ ModelSize, Machine, strategies ─ StrategyResult ─ rounds         RoundResult
                                                             ├ before, after  Spread
                                                             ├ devices        DeviceResult
                                                             ├ bytes          RunTraffic
                                                             ├ personal       TensorShare
                                                             ├ engine         Engine
                                                             ├ classes        ClassResult
                                                             └ central        CentralTest

Shares are in [0, 1], sizes in bytes, times in seconds. ``before`` is the result's ``metric``, such as
accuracy, on a device's own test examples with the model that it was sent; ``after`` is the metric once the
device has trained that model locally. Fields may be added within a format, with a default that fits older
files; no field changes its meaning.

Bytes are of three kinds that add up to the total: ``payload`` is the content of blobs (models, deltas,
patches, updates), ``resent`` is payload that was sent before, and ``overhead`` is everything else. An
emulation over a real broker counts only totals and leaves the three kinds at 0.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from sedge_protocol.errors import LocalError, StorageError, os_reason
from sedge_protocol.wire.objective import ACCURACY, Metric

FORMAT = 1

Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Count: TypeAlias = Annotated[int, Meta(ge=0)]
Seconds: TypeAlias = Annotated[float, Meta(ge=0)]
Option: TypeAlias = str | int | float | bool | list[str | int | float | bool] | None


class Spread(msgspec.Struct, frozen=True):
    """A metric over devices, each counting once: mean, mean of the worst tenth, minimum and maximum."""

    mean: float
    worst_tenth: float
    min: float
    max: float


class RoundResult(msgspec.Struct, frozen=True, kw_only=True):
    """One round.

    The means and ``train_loss`` are over the devices whose update arrived in time (``num_updates``); the
    ``worst`` means are over the worst tenth of these devices. ``late`` counts updates that came after the
    round had closed. ``seconds`` are measured on this host. ``opened_s`` and ``closed_s`` are read from the
    emulation's own clock, which is virtual if the link is "memory", and count from the start of the run.
    ``late_devices`` are those in the cohort that had sent no update by the close. ``distrusted`` maps
    devices that the robust filter excluded or clipped to the share of their update that counted.
    ``personal`` lists, for each tensor, the mean number of personal parameters that a device in the cohort
    was sent; tensors without any are left out.

    Bytes are counted from the round's opening to its close, headers included. ``bytes_up`` and
    ``bytes_down`` are counted at the sockets of all devices. ``newcomer_up`` and ``newcomer_down`` are the
    portions for devices that had sent no update before the round, mostly the bundle and the whole model;
    ``newcomers`` counts the devices among them that then sent their first update. The coordinator sent
    ``coordinator_up``, in which a broadcast counts once, and received ``coordinator_down``. In virtual
    time, ``messages`` counts the messages that devices send and receive, and ``units`` their size in units
    of 5 KB, rounded up for each message; ``newcomer_messages`` and ``newcomer_units`` are the newcomers'
    shares.
    """

    round: Count
    before_mean: float
    after_mean: float
    train_loss: float
    num_updates: Count
    late: Count
    seconds: Seconds
    bytes_up: Count
    bytes_down: Count
    opened_s: Seconds = 0.0
    closed_s: Seconds = 0.0
    late_devices: list[str] = []
    resent_bytes: Count = 0
    personal: dict[str, Annotated[float, Meta(ge=0)]] = {}
    distrusted: dict[str, Share] = {}
    newcomers: Count = 0
    newcomer_up: Count = 0
    newcomer_down: Count = 0
    coordinator_up: Count = 0
    coordinator_down: Count = 0
    messages: Count = 0
    units: Count = 0
    newcomer_messages: Count = 0
    newcomer_units: Count = 0
    before_worst: float | None = None
    after_worst: float | None = None


class DeviceResult(msgspec.Struct, frozen=True, kw_only=True):
    """One device in the final evaluation. ``num_classes`` is the number of different labels on the device.

    ``class_name`` is its class in fleet.toml. Over the whole run, ``late`` counts the rounds in which the
    device was late, ``reboots`` its restarts, ``cuts`` the interruptions of its link, and the byte fields
    its traffic. ``central`` is its metric on the central test set before and after training, if there is
    such a set.
    """

    device: str
    num_train: Count
    num_test: Count
    num_classes: Count
    before: float
    after: float
    class_name: str = ""
    payload_up: Count = 0
    overhead_up: Count = 0
    resent_up: Count = 0
    payload_down: Count = 0
    overhead_down: Count = 0
    resent_down: Count = 0
    late: Count = 0
    reboots: Count = 0
    cuts: Count = 0
    central: tuple[float, float] | None = None


class ClassResult(msgspec.Struct, frozen=True, kw_only=True):
    """All devices of one class, including those that missed the final evaluation.

    ``before`` and ``after`` are means over the ``evaluated`` devices, or 0 if there are none. All other
    figures are sums over all ``devices`` in the class (see DeviceResult).
    """

    name: str
    devices: Count
    evaluated: Count
    before: float
    after: float
    payload_up: Count
    overhead_up: Count
    resent_up: Count
    payload_down: Count
    overhead_down: Count
    resent_down: Count
    late: Count
    reboots: Count
    cuts: Count


class RunTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of one strategy's run from its start to its end.

    The four totals are counted at the sockets: two for all devices together, two for the coordinator.
    ``update_payload_mean`` is the mean size of an encoded update, ``dense_update`` the size of one as plain
    float32. ``payload_up``, ``payload_down`` and ``resent`` (up and down) are parts of the devices' totals.
    """

    device_up: Count
    device_down: Count
    coordinator_up: Count
    coordinator_down: Count
    update_payload_mean: Annotated[float, Meta(ge=0)]
    dense_update: Count
    payload_up: Count = 0
    payload_down: Count = 0
    resent: Count = 0


# The fields of ``ClassResult`` that are sums over the class's devices.
_SUMMED = (
    "payload_up", "overhead_up", "resent_up", "payload_down", "overhead_down", "resent_down",
    "late", "reboots", "cuts",
)  # fmt: skip


class TensorShare(msgspec.Struct, frozen=True):
    """The personal parameters in one tensor: mean number per device, and share among all tensors."""

    tensor: str
    elements: Annotated[float, Meta(ge=0)]
    share: Share


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """The resources that a run used on this host.

    ``train_s`` is the time that all ``workers`` together spent in training and evaluation programs;
    ``overhead`` is the share of wall_s * workers that they spent elsewhere. ``device_rounds`` counts the
    completed jobs, ``peak_rss_bytes`` is the peak memory of all processes together, and ``trainer`` names
    the backend.
    """

    wall_s: Seconds
    train_s: Seconds
    workers: Count
    overhead: Share
    device_rounds: Count
    peak_rss_bytes: Count
    trainer: str


class CentralTest(msgspec.Struct, frozen=True, kw_only=True):
    """The metric on the ``examples`` in the central test set, for devices' models and the global model."""

    examples: Count
    before: Spread
    after: Spread
    global_model: float | None = None


class StrategyResult(msgspec.Struct, frozen=True, kw_only=True):
    """One strategy's run. ``before`` and ``after`` come from the final evaluation over all devices.

    ``remarks`` are the strategy's comments, one sentence each, on its options with this model. ``epochs``
    is how many epochs a device trains per round, counting every model that it trains, or 0 if unknown. For
    strategies with groups, ``partners`` counts, for each device, the rounds in which it learned with each
    other device.
    """

    name: str
    options: dict[str, Option]
    rounds: list[RoundResult]
    before: Spread
    after: Spread
    devices: list[DeviceResult]
    bytes: RunTraffic
    seconds: Seconds
    personal: list[TensorShare]
    engine: Engine | None = None
    classes: list[ClassResult] = []
    central: CentralTest | None = None
    remarks: list[str] = []
    epochs: Count = 0
    partners: dict[str, dict[str, Count]] = {}


class ModelSize(msgspec.Struct, frozen=True, kw_only=True):
    """The model: number of parameters, and its size in bytes as plain float32.

    ``from_cache`` is True if an earlier emulation exported and verified it.
    """

    name: str
    parameters: Count
    dense_bytes: Count
    from_cache: bool = False


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """The machine that the emulation ran on. ``versions`` maps packages to their versions."""

    cpus: Count
    platform: str
    python: str
    versions: dict[str, str]


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Result of an emulation (one fleet under each strategy) or of runs of a real ``fleet`` (stored.py).

    ``created`` is an ISO 8601 date or time. ``link`` is "memory" for virtual time, otherwise the broker's
    kind. ``settings`` has all keys of the fleet file with their values, including defaults, and null where
    the strategy decides. ``data_sha256`` identifies the content of the data and of the file that splits it.
    The result of a real fleet has only what its coordinator knows: ``before`` and ``after`` from each
    device's last round, bytes as counted by the coordinator, and no machine. Unknown strings are empty, and
    unknown counts are 0.
    """

    format: int = FORMAT
    created: str
    command: str
    dataset: str
    split: str
    devices: Count
    seed: int
    model: ModelSize
    machine: Machine | None
    strategies: list[StrategyResult]
    link: str = ""
    metric: Metric = ACCURACY
    settings: dict[str, Any] = {}
    data_sha256: str = ""
    fleet: str = ""


def spread(values: Sequence[float], metric: Metric = ACCURACY) -> Spread:
    """Summarise the devices' values. The worst tenth is at least one device, otherwise rounded down."""
    if not values:
        raise LocalError("spread: no values, expected one for each device")
    ordered = sorted(values)
    tenth = max(1, len(ordered) // 10)
    worst = ordered[:tenth] if metric.better == "higher" else ordered[-tenth:]
    return Spread(_mean(ordered), _mean(worst), ordered[0], ordered[-1])


def class_results(
    devices: Sequence[DeviceResult], absent: Sequence[DeviceResult] = ()
) -> list[ClassResult]:
    """Summarise the devices by class.

    The metric of ``absent`` devices, which were not evaluated, is ignored.
    """
    names = sorted({device.class_name for device in (*devices, *absent)})
    found: list[ClassResult] = []
    for name in names:
        evaluated = [device for device in devices if device.class_name == name]
        members = [*evaluated, *(device for device in absent if device.class_name == name)]
        found.append(
            ClassResult(
                name=name,
                devices=len(members),
                evaluated=len(evaluated),
                before=_mean(sorted(d.before for d in evaluated)) if evaluated else 0.0,
                after=_mean(sorted(d.after for d in evaluated)) if evaluated else 0.0,
                **{key: sum(getattr(d, key) for d in members) for key in _SUMMED},
            )
        )
    return found


def classes_of(strategy: StrategyResult) -> list[ClassResult]:
    """Return the strategy's classes, computed from the evaluated devices if the result has none."""
    return strategy.classes or class_results(strategy.devices)


def write_json(result: Result, path: Path) -> None:
    """Write the result atomically. Raises ``StorageError``."""
    write_whole(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n", path)


def read_json(path: Path) -> Result:
    """Load the result at ``path``. Raises ``StorageError`` if the file does not contain a result."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=Result)
    except OSError as exc:
        raise StorageError(f"{path}: {os_reason(exc)}") from exc
    except (msgspec.MsgspecError, UnicodeDecodeError) as exc:
        raise StorageError(f"{path}: {exc}, expected a result of format {FORMAT}") from exc
    if result.format != FORMAT:
        raise StorageError(f"{path}: format {result.format}, expected {FORMAT}")
    return result


def write_whole(data: bytes, path: Path) -> None:
    """Write ``data`` to a temporary file and rename it to ``path``, so nobody reads an incomplete file.

    Raises ``StorageError``.
    """
    partial = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        os.replace(partial, path)
    except OSError as exc:
        raise StorageError(f"{path}: {os_reason(exc)}") from exc


def _mean(values: Sequence[float]) -> float:
    # Rounding could move a mean above 1 if all values are 1, so the mean is clamped to the range of the
    # values.
    return min(max(sum(values) / len(values), values[0]), values[-1])
