"""Outcomes of reproduced cells, made up."""

from tools.reproduce.outcome import Checkpoint, Outcome, Point


def checkpoint(number: int, before: float, after: float = 0.95) -> Checkpoint:
    return Checkpoint(
        round=number, before=before, after=after, before_mean=before, after_mean=after,
        before_worst_tenth=before / 2, after_worst_tenth=after / 2,
    )  # fmt: skip


def point(number: int, before: float, after: float, sparse: float | None = None) -> Point:
    return Point(
        round=number, before=before, after=after, sparse=sparse, bytes_up=1000, bytes_down=2000
    )


def outcome(
    table: str,
    cell: str,
    checkpoints: tuple[Checkpoint, ...],
    points: tuple[Point, ...] = (),
    seed: int = 42,
    rounds: int = 100,
) -> Outcome:
    return Outcome(
        table=table, cell=cell, strategy="fedavg", options={"quantile": 0.5}, seed=seed, rounds=rounds,
        created="2026-01-01", versions={"numpy": "2"}, trainer="autograd", workers=2, seconds=61.0,
        bytes_up=1_000_000, bytes_down=2_000_000, parameters=10, participants=2,
        checkpoints=checkpoints, points=points or (point(1, 0.5, 0.6), point(2, 0.7, 0.8)),
    )  # fmt: skip
