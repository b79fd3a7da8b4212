"""Figures of several coordinators: what goes wrong with them, and what their number costs."""

from pathlib import Path
from typing import Any

from tools.bench.figure import Figure, loaded


def three_hosts(path: Path) -> list[Figure]:
    """Fault by fault: updates lost and counted twice, bytes, and the time to go on."""
    found = loaded(path)
    most: float = found["target_s"]

    def figure(row: dict[str, Any]) -> Figure:
        same = "same" if row["same_bytes"] else "other"
        seconds = row["seconds"]
        whole = not (row["lost"] or row["twice"]) and row["same_bytes"]
        measured = (
            f"{row['receipts']:,} receipts, {row['lost']} lost, {row['twice']} twice, {same} bytes; "
            f"the next update after {'-' if seconds is None else f'{seconds:.1f}'} s"
        )
        met = (
            ("0 lost, 0 twice, the same bytes", whole),
            (f"at most {most:g} s", seconds is not None and seconds <= most),
        )
        what = f"{row['fault'].replace('-', ' ')}, seed {row['seed']}"
        return Figure(what, measured, met)

    return [figure(row) for row in found["rows"]]


def processes(path: Path) -> list[Figure]:
    """Coordinators by their number, and devices' silence when it changes."""
    found = loaded(path)
    figures = [
        Figure(
            f"{row['processes']} on {row['engine']}",
            f"{row['update_ms']:g} ms of processor an update, {row['kb_round']:g} kB a round to the "
            f"broker; idle {100 * row['idle']:.1f} % of a core each",
        )
        for row in found["rows"]
    ]
    target, number = found["target"], found["processes"]
    for what, key in (("processor time", "times_cpu"), ("bytes that leave", "times_bytes")):
        met = ((f"at most {target[key]:g}", found[key] <= target[key]),)
        figures.append(Figure(f"{what} of {number}, beside one's", f"{found[key]:.2f} times", met))
    silence = found["silence"]
    words = f"{silence['added_s']:g} s, {silence['removed_s']:g} s; in calm {silence['calm_s']:g} s"
    figures.append(Figure("longest silence when a coordinator comes, goes", words))
    return figures
