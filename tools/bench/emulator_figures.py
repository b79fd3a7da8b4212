"""Figures of emulated fleets: training, the engine, hostile devices, other frameworks."""

from pathlib import Path
from statistics import fmean
from typing import Any

from tools.bench.figure import Figure, loaded

from sedge_cloud.figures.numbers import percent, size

# Milliseconds besides training that a device may cost an emulation, and the share of the example's time.
TARGET_DISPATCH_MS, TARGET_OVERHEAD = 5.0, 0.05
# The error with two hostile devices of ten, relative to that of a fleet without any.
TARGET_ERROR = 2.0
NOBODY_HOSTILE = "nobody hostile"


def attacks(path: Path) -> list[Figure]:
    """What two hostile devices of ten cost: each strategy without any, then attack by attack."""
    cells: list[dict[str, Any]] = loaded(path)["cells"]
    clean = {
        cell["strategy"]: fmean(cell["error"]) for cell in cells if cell["attack"] == NOBODY_HOSTILE
    }
    return [_attack(cell, clean[cell["strategy"]]) for cell in cells]


def _attack(cell: dict[str, Any], clean: float) -> Figure:
    """One cell. The targets are for the default rule and for what destroys models."""
    error, attack, success = fmean(cell["error"]), cell["attack"], cell.get("success")
    what = f"error of the honest devices, {cell['strategy']}: {attack}"
    if attack == NOBODY_HOSTILE:
        return Figure(what, percent(error))
    measured = f"{percent(error)}; named in {percent(fmean(cell['named']))} of rounds"
    if success:
        measured += (
            f"; {percent(fmean(success))} of marked images are taken for the attackers' label"
        )
    if rule := cell.get("rule"):
        return Figure(f'{what}, rule = "{rule}"', measured)
    target = (f"at most {TARGET_ERROR:g} times", error <= TARGET_ERROR * clean)
    return Figure(what, measured, () if success else (target,))


def training(path: Path) -> list[Figure]:
    """The batched trainer against a simulator's loop."""
    figures: list[Figure] = []
    for name, row in loaded(path)["training"].items():
        if name == "beside":
            for example, ratios in row.items():
                speeds = ", ".join(f"{n} {r:.2f}" for n, r in ratios.items() if n != "autograd")
                what = f"training of examples/{example} by other trainers, autograd is 1"
                figures.append(Figure(what, speeds))
            continue
        met = ((f"at least {row['target']:g} times", row["ratio"] >= row["target"]),)
        what = f"devices trained on one host, {name} ({row['trainer']}), against FL-bench's loop"
        measured = (
            f"{row['rate']:,.0f} examples/s, {row['ratio']:.2f} times as fast "
            f"({row['per_core']:.2f} per core and processor time)"
        )
        figures.append(Figure(what, measured, met))
    return figures


def emulator(path: Path) -> list[Figure]:
    """What an emulation costs besides training."""
    found = loaded(path)
    figures: list[Figure] = []
    for row in found["emulator"]:
        what = f"emulated devices, {row['devices']:,} of which {row['cohort']:,} in a round"
        measured = (
            f"{row['cost_ms']:.1f} ms of a core a device round beside training, "
            f"{row['device_rounds_per_s']:g} device rounds a second, "
            f"{size(row['peak_rss_bytes'])} of memory"
        )
        target = f"at most {TARGET_DISPATCH_MS:g} ms"
        met = ((target, row["cost_ms"] <= TARGET_DISPATCH_MS),)
        figures.append(Figure(what, measured, met))
    example = found["example"]
    what = f"examples/thousand.toml, {example['device_rounds']:,} device rounds"
    measured = (
        f"{example['wall_s']:.0f} s, {example['device_rounds_per_s']:g} device rounds a second, "
        f"{example['overhead']:.1%} of the time beside training, "
        f"{size(example['peak_rss_bytes'])} of memory"
    )
    target = f"at most {TARGET_OVERHEAD:.0%} beside training"
    met = ((target, example["overhead"] <= TARGET_OVERHEAD),)
    return [*figures, Figure(what, measured, met)]


def frameworks(path: Path) -> list[Figure]:
    """The same work in other frameworks."""
    found = loaded(path)["frameworks"]
    own = found["sedge"]
    figures: list[Figure] = []
    for name, row in found.items():
        versions = ", ".join(f"{key} {value}" for key, value in row.get("versions", {}).items())
        title = f"{name} ({versions})" if versions else name
        what = f"ten devices of 256 images, one round of FedAvg by {title}"
        if "why" in row:
            figures.append(Figure(what, row["why"]))
            continue
        measured = (
            f"{row['round_s']:.2f} s, {row['examples_s']:,.0f} examples/s, "
            f"{row['dispatch_ms']:.1f} ms a device without training"
        )
        if name == "sedge":
            met = (
                (f"at most {TARGET_DISPATCH_MS:g} ms", row["dispatch_ms"] <= TARGET_DISPATCH_MS),
            )
            figures.append(Figure(what, measured, met))
        else:
            ratio = row["round_s"] / own["round_s"] if "round_s" in own else None
            against = f"; sedge-emulate is {ratio:.1f} times as fast" if ratio else ""
            figures.append(Figure(what, measured + against))
    return figures
