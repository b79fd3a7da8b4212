"""Makes the figures for coordinators: one's update rate, faults among several, and what several cost."""

from typing import Any

from tools.bench.harness import Figure, Result, at_least, at_most

# Target updates per second on one core, by the share of elements that an update has.
TARGET_UPDATES = {0.5: 200, 0.01: 900}


def coordinator(found: Result) -> list[Figure]:
    """Return figures for one coordinator's updates per second with a store that survives power cuts."""
    rows = found["rows"]
    figures: list[Figure] = []
    for row in rows:
        if not row["durable"]:
            continue
        (loose,) = [
            r for r in rows
            if not r["durable"] and (r["delta"], r["share"]) == (row["delta"], row["share"])
        ]  # fmt: skip
        share, rate = row["share"], row["updates_per_s"]
        what = f"updates of the largest {share:g} in bf16 ({row['delta']}), on one core"
        measured = f"{rate:,.0f} per second ({loose['updates_per_s']:,.0f} without fsync)"
        target = TARGET_UPDATES.get(share)
        met = (at_least(target, rate, "per second"),) if target else ()
        figures.append(Figure(what, measured, met))
    return figures


def three_hosts(found: Result) -> list[Figure]:
    """Return a figure for each fault: updates lost or counted twice, bytes, and the time until recovery."""
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


def processes(found: Result) -> list[Figure]:
    """Return figures for the cost of each number of coordinators, and the longest silence at a change."""
    figures = [
        Figure(
            f"{row['processes']} on {row['engine']}",
            f"{row['update_ms']:g} ms of processor time per update ({row['fixed_ms']:g} ms per round and "
            f"{row['more_ms']:g} ms more for each), {row['kb_round']:g} kB per round to the "
            f"broker; idle {100 * row['idle']:.1f} % of a core each",
        )
        for row in found["rows"]
    ]
    target, number = found["target"], found["processes"]
    for what, key in (("processor time", "times_cpu"), ("bytes sent", "times_bytes")):
        met = (at_most(target[key], found[key]),)
        figures.append(
            Figure(
                f"{what} with {number} coordinators, relative to one",
                f"{found[key]:.2f} times",
                met,
            )
        )
    silence = found["silence"]
    words = (
        f"{silence['added_s']:g} s, {silence['removed_s']:g} s; otherwise {silence['calm_s']:g} s"
    )
    figures.append(Figure("longest silence when a coordinator joins, leaves", words))
    return figures
