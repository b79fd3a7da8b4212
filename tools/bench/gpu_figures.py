"""Makes the figures of one GPU from the last line that ``make bench-gpu`` prints."""

from collections.abc import Iterable, Sequence

import msgspec
from tools.bench.gpu.cells import CUDA_ONLY, Row, named
from tools.bench.gpu.goals import COMBINED, VECTORISED, Goal
from tools.bench.gpu.result import GpuResult, StageResult
from tools.bench.gpu.words import figures, told
from tools.bench.harness import Figure, Result

# These stages have a separate figure for each setting; the others are combined.
_ONE_BY_ONE = ("thousand", "fleet", "processes")


def gpu(result: Result) -> list[Figure]:
    """Return figures for the GPU, for each stage and for the goals.

    Raises ``msgspec.ValidationError``, which is a ``ValueError``, if the result is invalid.
    """
    found = msgspec.convert(result["gpu"], GpuResult)
    stages = {stage.name: stage for stage in found.stages}
    written = [_card(found, stages.get("card")), _tests(stages.get("tests"))]
    written += _by_model([stages.get("loop")])
    written += _by_model([stages.get(VECTORISED), stages.get(COMBINED)])
    for name in _ONE_BY_ONE:
        if stage := stages.get(name):
            written += [_row(stage, row) for row in stage.rows]
    lost = [
        Figure(stage.title, f"not measured: {stage.why}")
        for stage in found.stages
        if stage.why and not stage.rows
    ]
    return (
        [figure for figure in written if figure is not None] + lost + list(map(_goal, found.goals))
    )


def _card(found: GpuResult, stage: StageResult | None) -> Figure:
    """Return the GPU's name and limits."""
    rows = stage.rows if stage else []
    words = [found.remark] if found.remark else []
    for row in rows:
        if row.setting["what"] == "card":
            versions = [
                f"{key} {row.setting[key]}"
                for key in ("driver", "cuda", "cudnn", "torch")
                if key in row.setting
            ]
            words += [str(row.setting["name"]), *versions, *figures(row.figures)]
        else:
            words.append(f"{named(row.setting)} {told(row)}")
    return Figure("where", "; ".join(words) or "unknown")


def _tests(stage: StageResult | None) -> Figure | None:
    """Return the combined figure of all test files."""
    if stage is None or not stage.rows:
        return None
    sums = {key: sum(row.figures.get(key, 0) for row in stage.rows) for key in ("passed", "failed")}
    words = figures(sums) if any(sums.values()) else []
    words += dict.fromkeys(row.why for row in stage.rows if row.why)
    return Figure(f"{stage.title}, in {len(stage.rows)} files", "; ".join(words))


def _by_model(stages: Iterable[StageResult | None]) -> list[Figure]:
    """Return a figure per model and precision: the best setting's rate and shares, then the other rates."""
    grouped: dict[tuple[str, str, str], list[Row]] = {}
    for stage in filter(None, stages):
        for row in stage.rows:
            key = (stage.title, str(row.setting["model"]), str(row.setting["precision"]))
            grouped.setdefault(key, []).append(row)
    return [
        Figure(", ".join(key), _rates(rows))
        for key, rows in grouped.items()
        if not all(row.why == CUDA_ONLY for row in rows)
    ]


def _rates(rows: Sequence[Row]) -> str:
    """Format rates as ``5,120 examples/s (…): 128 devices, graphs, unfold; others …``."""
    measured = [row for row in rows if row.figures]
    if not measured:
        return "not measured: " + "; ".join(dict.fromkeys(row.why for row in rows))
    best = max(measured, key=lambda row: row.figures["examples_s"] * (not row.why))
    words = [
        _with_form(best, ", ".join([*figures(best.figures), *([best.why] if best.why else [])]))
    ]
    words += [
        _with_form(row, f"{row.figures['examples_s']:,.0f}{', ' + row.why if row.why else ''}")
        for row in measured
        if row is not best
    ]
    return "; ".join(words)


def _with_form(row: Row, words: str) -> str:
    """Append the row's setting, except for its model and precision, which the title already names."""
    form = {key: value for key, value in row.setting.items() if key not in ("model", "precision")}
    return f"{words} ({named(form)})" if form else words


def _row(stage: StageResult, row: Row) -> Figure:
    return Figure(f"{stage.title}: {named(row.setting)}", told(row))


def _goal(goal: Goal) -> Figure:
    if goal.met is None or goal.measured is None:
        return Figure(f"goal: {goal.what}, {goal.wanted}", f"not measured: {goal.why}")
    return Figure(f"goal: {goal.what}", f"{goal.measured:.3g}", ((goal.wanted, goal.met),))
