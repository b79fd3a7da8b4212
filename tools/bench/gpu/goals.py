"""The goals for training many devices on one GPU, and whether a run meets them. Does not import torch.

Goals apply only to full-size runs on a GPU. The loop to beat runs in float32 with torch's defaults, which
use TF32 for convolutions; the trainer's float32 never uses TF32.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec
from tools.bench.gpu.cells import Missing, Row

VECTORISED, COMBINED = "vectorised", "combined"
NO_GPU = "CPU only"
Rows = Mapping[str, Sequence[Row]]


class Goal(msgspec.Struct, frozen=True):
    """A stage's target, the measured value, and whether the target is met (None if unknown)."""

    stage: str
    what: str
    wanted: str
    measured: float | None = None
    met: bool | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.met is None:
            return f"goal: {self.what}, {self.wanted}: not measured ({self.why})"
        verdict = "met" if self.met else "NOT MET"
        return f"goal: {self.what}, {self.wanted}: {verdict}, {self.measured:.3g}"


@dataclass(frozen=True)
class _Wanted:
    stage: str
    what: str
    wanted: str
    measure: Callable[[Rows], float]
    meets: Callable[[float], bool]


def judged(rows: Rows, why: str) -> list[Goal]:
    """Return every goal, judged by the rows. ``why`` is the reason why no goal applies, or ""."""
    return [_judged(goal, rows, why) for goal in _GOALS]


def _judged(goal: _Wanted, rows: Rows, why: str) -> Goal:
    unknown = Goal(goal.stage, goal.what, goal.wanted, why=why)
    if why:
        return unknown
    try:
        found = goal.measure(rows)
    except Missing as exc:
        return msgspec.structs.replace(unknown, why=str(exc))
    return msgspec.structs.replace(unknown, measured=found, met=goal.meets(found))


def _figures(rows: Rows, stage: str, key: str, **setting: str | int) -> list[float]:
    """Return the figure ``key`` from each row in a stage that has these settings and no error.

    Raises ``Missing`` if there is none.
    """
    found = [*rows.get(stage, ()), *(rows.get(COMBINED, ()) if stage == VECTORISED else ())]
    chosen = [row for row in found if setting.items() <= row.setting.items()]
    if values := [row.figures[key] for row in chosen if key in row.figures and not row.why]:
        return values
    reasons = [row.why for row in chosen if row.why]
    raise Missing(f"{stage}: {reasons[0]}" if reasons else f"{stage}: nothing was measured")


def _cnn(rows: Rows) -> float:
    ours = _figures(rows, VECTORISED, "examples_s", model="avgcnn", precision="fp32")
    (loop,) = _figures(rows, "loop", "examples_s", model="avgcnn", precision="default")
    return max(ours) / loop


def _resnet(rows: Rows) -> float:
    return 100 * max(_figures(rows, VECTORISED, "of_peak", model="resnet8", precision="fp32"))


def _fleet(rows: Rows) -> float:
    setting: dict[str, str | int] = {"devices": 10_000, "a round": 10_000}
    return min(_figures(rows, "fleet", "command_s", **setting))


_GOALS = (
    _Wanted(
        VECTORISED,
        "the 4-layer CNN in fp32 against the loop on the same card",
        "at least 20 times",
        _cnn,
        lambda times: times >= 20,
    ),
    _Wanted(
        VECTORISED,
        "ResNet-8 in fp32, per cent of the card's fp32 peak",
        "at least 25",
        _resnet,
        lambda percent: percent >= 25,
    ),
    _Wanted(
        "fleet",
        "two rounds of the 4-layer CNN on all 10,000 devices",
        "at most 300 s",
        _fleet,
        lambda seconds: seconds <= 300,
    ),
)
