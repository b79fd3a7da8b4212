"""The moments at which a device's model is measured, and the devices that each moment covers.

    newcomer   on receipt, by devices that have taken part in no training round
    before     on receipt, by the devices that took part until the end
    after      after local training, by the same devices
    away       on receipt, by devices that return after the rounds that they missed

``absent_rounds`` of a device's class determines its moments. Without it, all devices are measured
``before`` and ``after``.
"""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from sedge_emulate.result import DeviceResult, Result, StrategyResult

Moment: TypeAlias = Literal["newcomer", "before", "after", "away"]
MOMENTS: tuple[Moment, ...] = ("newcomer", "before", "after", "away")
WORDS: Mapping[Moment, str] = {
    "newcomer": "newcomer's download",
    "before": "before",
    "after": "after",
    "away": "after rounds away",
}


def measured_at(
    result: Result, strategy: StrategyResult
) -> dict[Moment, list[tuple[DeviceResult, float]]]:
    """Return, for each moment, its devices with their metric at that moment.

    Moments without devices are left out.
    """
    found: dict[Moment, list[tuple[DeviceResult, float]]] = {moment: [] for moment in MOMENTS}
    missed = _missed(result.settings)
    num_rounds = result.settings["rounds"]["num_rounds"]
    for device in strategy.devices:
        rounds = missed.get(device.class_name, 0)
        if not rounds:
            found["before"].append((device, device.before))
            found["after"].append((device, device.after))
        else:
            moment: Moment = "newcomer" if rounds >= num_rounds else "away"
            found[moment].append((device, device.before))
    return {moment: devices for moment, devices in found.items() if devices}


def _missed(settings: Mapping[str, Any]) -> dict[str, int]:
    return {kind["name"]: kind.get("absent_rounds", 0) for kind in settings.get("classes", ())}
