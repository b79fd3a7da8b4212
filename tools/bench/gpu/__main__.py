"""``make bench-gpu``, or python -m tools.bench gpu [--device cpu|cuda] [--stage NAME ...] [--budget S].

Prints progress and, at the end, one line of JSON; each row is written at once to a file of JSON lines.
Without CUDA, small sizes run on the CPU, and the output says so; ``--device cuda`` requires a GPU. The exit
status is 0, 1 if a stage was lost, 2 if nothing can be measured, or 130 if interrupted.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.bench.gpu.cells import Row
from tools.bench.gpu.children import UNUSABLE, run_stage
from tools.bench.gpu.goals import NO_GPU, Goal, judged
from tools.bench.gpu.result import GpuResult, Journal, StageResult, encoded, save
from tools.bench.gpu.shares import Limits
from tools.bench.gpu.sizes import FULL, SIZES, SMALL
from tools.bench.gpu.stages import CARD, STAGES, TOTAL_S, Stage
from tools.bench.gpu.words import line

INTERRUPTED = 130
# Default of --budget on a CPU, in seconds. It is longer than on a GPU (TOTAL_S), because GPUs are often
# rented.
CPU_S = 3 * TOTAL_S


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages. Returns the exit status."""
    parser = argparse.ArgumentParser("python -m tools.bench gpu", description="Measure one GPU.")
    names = [stage.name for stage in STAGES]
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda if it works")
    parser.add_argument("--stage", action="append", choices=names, help="default: all")
    parser.add_argument(
        "--budget", type=float, metavar="S",
        help=f"seconds for all stages (default: {TOTAL_S:.0f}; on a CPU {CPU_S:.0f})",
    )  # fmt: skip
    parser.add_argument(
        "--size", choices=tuple(SIZES), help="default: full on a GPU, small on a CPU"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench-gpu"), help="folder for the result rows"
    )
    parser.add_argument("--json", type=Path, help="also write the last line to this file")
    options = parser.parse_args(argv)
    if options.budget is not None and not options.budget > 0:
        parser.error(f"--budget {options.budget:g}, expected more than 0 seconds")
    chosen = [s for s in STAGES if not options.stage or s is CARD or s.name in options.stage]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return Run(chosen, options.budget, Journal(options.out)).run(
        options.device, options.size, options.json
    )


@dataclass
class Run:
    """A run of some stages, "card" first, within ``budget`` seconds. None means the device's default."""

    stages: Sequence[Stage]
    budget: float | None
    journal: Journal
    device: str = "cuda"
    size: str = FULL
    done: list[StageResult] = field(default_factory=list[StageResult])
    rows: dict[str, list[Row]] = field(default_factory=dict[str, list[Row]])
    limits: Limits = field(default_factory=Limits)
    start: float = field(default_factory=time.monotonic)
    granted: float = 0.0
    repeated: int = 0

    def run(self, device: str | None, size: str | None, save_to: Path | None) -> int:
        """Measure everything. ``device`` and ``size`` depend on the machine if None."""
        status = 0
        try:
            if not self._card(device, size):
                return UNUSABLE
            for stage in self.stages[1:]:
                self._stage(stage)
        except KeyboardInterrupt:
            status = INTERRUPTED
        done = {stage.name for stage in self.done}
        for stage in self.stages:
            if stage.name not in done:
                rows = self.rows.get(stage.name, [])
                self.done.append(StageResult(stage.name, stage.title, 0.0, rows, "interrupted"))
        self._end(save_to)
        return status or int(any(stage.why for stage in self.done))

    @property
    def remark(self) -> str:
        """A limitation of the figures, or "" if there is none."""
        if self.device == "cpu":
            return (
                f"{NO_GPU}: {self.size} sizes show that the command runs, but nothing about a GPU"
            )
        return "" if self.size == FULL else f"{self.size} sizes"

    def _card(self, device: str | None, size: str | None) -> bool:
        """Run the first stage, on a GPU if there is one. Returns False if nothing can be measured."""
        self.device, self.size = device or "cuda", size or (SMALL if device == "cpu" else FULL)
        print(f"rows are saved in {self.journal.path}", flush=True)
        if self._stage(self.stages[0]) == UNUSABLE:
            why = self.done.pop().why
            if device:
                print(why, file=sys.stderr)
                return False
            print(f"no GPU here: {why}")
            self.device, self.size = "cpu", size or SMALL
            self._stage(self.stages[0])
        self.limits = Limits.of(self.done[0].rows)
        self._warn()
        return True

    def _stage(self, stage: Stage) -> int:
        """Run one stage, and print its goals. Returns its exit status.

        The stage may take its share of the budget, plus the time that earlier stages have left unused.
        """
        budget = self.budget or (CPU_S if self.device == "cpu" else TOTAL_S)
        self.granted += stage.seconds * budget / sum(each.seconds for each in self.stages)
        limit = max(1.0, self.granted - (time.monotonic() - self.start))
        print(f"--- {stage.title}, at most {limit:.0f} s", flush=True)
        end = run_stage(stage, self.device, self.size, limit, lambda row: self._note(stage, row))
        self._tell_repeated()
        rows = self.rows.get(stage.name, [])
        self.done.append(StageResult(stage.name, stage.title, end.seconds, rows, end.why))
        if end.why and end.status != UNUSABLE:
            print(f"{stage.name} failed: {end.why}")
        for goal in self._goals():
            if goal.stage == stage.name:
                print(goal, flush=True)
        return end.status

    def _goals(self) -> list[Goal]:
        """Return the goals and whether they are met, according to the rows so far."""
        why = NO_GPU if self.device == "cpu" else self.remark
        return judged({stage.name: stage.rows for stage in self.done}, why)

    def _note(self, stage: Stage, row: Row) -> None:
        """Save a row, and print it unless it only repeats the reason of the previous row."""
        row, rows = self.limits.shared(row), self.rows.setdefault(stage.name, [])
        rows.append(row)
        self.journal.add(stage.name, row)
        if row.why and not row.figures and len(rows) > 1 and rows[-2].why == row.why:
            self.repeated += 1
            return
        self._tell_repeated()
        print(line(stage.name, row), flush=True)

    def _tell_repeated(self) -> None:
        if self.repeated:
            print(f"{'':<11} and {self.repeated} more", flush=True)
        self.repeated = 0

    def _warn(self) -> None:
        if self.remark:
            print(
                f"*** {self.remark.upper() if self.device == 'cpu' else self.remark} ***",
                flush=True,
            )

    def _end(self, save_to: Path | None) -> None:
        """Write the result to the terminal, to the journal and, if it is given, to ``save_to``."""
        seconds = time.monotonic() - self.start
        result = GpuResult(self.device, self.size, self.remark, seconds, self.done, self._goals())
        self.journal.end(encoded(result))
        for goal in result.goals:
            print(goal)
        print(f"{seconds:.0f} s; all rows are in {self.journal.path}")
        self._warn()
        if save_to is not None and not save(result, save_to):
            print(f"{save_to} holds a GPU's result and was not overwritten")
        print(encoded(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
