"""Makes the smaller tables that follow a table of accuracies.

They show rounds that were published individually, bytes as a paper counts them, the widths of a mixed
fleet, and every method compared with the plain method over all seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean

from tools.reproduce.cells import FIRST_ROUNDS, Cell, Table
from tools.reproduce.outcome import Checkpoint, Outcome

from sedge_cloud.figures.numbers import size

NONE = "-"


@dataclass(frozen=True)
class Section:
    """A small table: a sentence that says what it shows, its column heads, and its rows."""

    words: str
    heads: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]


def sections(table: Table, outcomes: Sequence[Outcome]) -> Iterable[Section]:
    """Yield all smaller tables for the longest run with the default trainer, by cell and seed."""
    longest = list({(o.cell, o.seed): o for o in outcomes if not o.backend}.values())
    for outcome in longest:
        for make in (_singly, _accounted, _sizes):
            found = make(table, outcome)
            if found.lines:
                yield found
    if table.plain:
        yield from _against(table, longest)


def first_rounds(outcome: Outcome) -> Iterable[tuple[int, float, float, float, float]]:
    """Yield the number of each published round, with four accuracies in per cent.

    These are ours and the published one before training, then both after training.
    """
    known = FIRST_ROUNDS.get((outcome.cell, outcome.seed), ())
    for point, (before, after) in zip(outcome.points, known, strict=False):
        yield point.round, 100 * point.before, before, 100 * point.after, after


def _singly(_: Table, outcome: Outcome) -> Section:
    lines = (
        (str(number), *(f"{value:.2f}" for value in values))
        for number, *values in first_rounds(outcome)
    )
    return Section(
        f"{outcome.cell}, the participants of its first rounds:",
        ("round", "before", "published", "after", "published"),
        tuple(lines),
    )


def _accounted(table: Table, outcome: Outcome) -> Section:
    """Return a device's MiB per round: by the paper's rule, as published, and on our wire."""
    cell = table.cell(outcome.cell)
    beta = int(str(cell.options.get("beta", 0)))
    ways = [(way,) for way in cell.accounted] + [tuple(cell.accounted)] * bool(cell.accounted)
    lines = (
        (f"{' and '.join(way)}, {when}", *_bytes_of(cell, outcome, way, when == "after", beta))
        for way in ways
        for when in ("before beta", "after")
    )
    return Section(
        f"{outcome.cell}, seed {outcome.seed}, {outcome.rounds} rounds of which {beta} up to beta:",
        ("MiB per device and round", "counted", "published", "on the wire", "published / wire"),
        tuple(lines),
    )


def _bytes_of(
    cell: Cell, outcome: Outcome, ways: Sequence[str], after: bool, beta: int
) -> tuple[str, str, str, str]:
    """Return the counted, published and transferred MiB per device, and the ratio of the last two."""
    published = sum(cell.accounted[way][after] for way in ways)
    points = [point for point in outcome.points if (point.round > beta) == after]
    if not points:
        return NONE, f"{published:.2f}", NONE, NONE
    counted = wire = 0.0
    for way in ways:
        known = [getattr(point, f"accounted_{way}") for point in points]
        counted += mean(value for value in known if value is not None) / 2**20
        sent = mean(getattr(point, f"bytes_{way}") for point in points)
        wire += sent / outcome.participants / 2**20
    return f"{counted:.2f}", f"{published:.2f}", f"{wire:.2f}", f"{published / wire:.2f}"


def _sizes(_: Table, outcome: Outcome) -> Section:
    """Return what each width costs a device, and the accuracy of the devices that train it."""
    whole = max((one.multiply_adds for one in outcome.sizes), default=1)
    lines = (
        (
            f"{one.dropped:g}",
            str(one.devices),
            f"{one.parameters:,}",
            f"{one.multiply_adds / 1e6:.2f} M",
            f"{one.multiply_adds / whole:.2f}",
            size(one.bytes_up),
            size(one.bytes_down),
            f"{100 * one.before:.2f}",
            f"{100 * one.after:.2f}",
        )
        for one in outcome.sizes
    )
    return Section(
        f"{outcome.cell}, seed {outcome.seed}, by the share of channels that a device lacks; "
        "multiplications per forward pass, total bytes per device, accuracies per device:",
        (
            "dropped", "devices", "parameters", "multiply-adds", "of the largest", "up", "down",
            "before", "after",
        ),
        tuple(lines),
    )  # fmt: skip


def _against(table: Table, outcomes: Sequence[Outcome]) -> Iterable[Section]:
    """Compare every method with the plain method, seed by seed, over equal numbers of training rounds."""
    for rounds in sorted({outcome.rounds for outcome in outcomes}):
        ends = {(o.cell, o.seed): o.checkpoints[-1] for o in outcomes if o.rounds == rounds}
        lines = (_compared(name, table.plain, ends) for name in table.methods)
        found = tuple(line for line in lines if line)
        if len(found) > 1:
            yield Section(
                f"After {rounds} rounds, means over seeds; differences from {table.plain} with the "
                "same seed, their mean and range:",
                ("method", "seeds", "before", "difference", "after", "difference", "worst 10 %"),
                found,
            )


def _compared(name: str, plain: str, ends: Mapping[tuple[str, int], Checkpoint]) -> tuple[str, ...]:
    """Return a method's row over the seeds that the plain method also has, or () if there are none."""
    pairs = [
        (found, ends[plain, seed])
        for (cell, seed), found in ends.items()
        if cell == name and (plain, seed) in ends
    ]
    if not pairs:
        return ()
    before = [100 * found.before for found, _ in pairs]
    after = [100 * found.after for found, _ in pairs]
    return (
        name,
        str(len(pairs)),
        f"{mean(before):.2f}",
        _difference([100 * (found.before - other.before) for found, other in pairs]),
        f"{mean(after):.2f}",
        _difference([100 * (found.after - other.after) for found, other in pairs]),
        f"{mean(100 * found.before_worst_tenth for found, _ in pairs):.2f}",
    )


def _difference(points: Sequence[float]) -> str:
    if not any(points):
        return NONE
    ends = f" ({min(points):+.2f} to {max(points):+.2f})" if len(points) > 1 else ""
    return f"{mean(points):+.2f}{ends}"
