"""The JSON result of a whole run, and the file that keeps its rows while it runs. Does not import torch."""

import time
from pathlib import Path

import msgspec
from tools.bench.gpu.cells import Row
from tools.bench.gpu.goals import Goal


class StageResult(msgspec.Struct, frozen=True):
    """A stage's rows. ``why`` says why it failed or did not start."""

    name: str
    title: str
    seconds: float
    rows: list[Row]
    why: str = ""


class GpuResult(msgspec.Struct, frozen=True):
    """The result of a run on "cpu" or "cuda". ``remark`` names a limitation of the figures, or is ""."""

    device: str
    size: str
    remark: str
    seconds: float
    stages: list[StageResult]
    goals: list[Goal]


class _Line(msgspec.Struct, frozen=True):
    gpu: GpuResult


def encoded(result: GpuResult) -> str:
    """Encode a result as one line of JSON."""
    return msgspec.json.encode(_Line(result)).decode()


def decoded(text: str | bytes) -> GpuResult:
    """Decode a line made by ``encoded``. Raises ``msgspec.ValidationError`` for any other text."""
    return msgspec.json.decode(text, type=_Line).gpu


class Journal:
    """A file of JSON lines. Each row is written at once, so an interrupted run does not lose them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / time.strftime("%Y%m%d-%H%M%S.jsonl")

    def add(self, stage: str, row: Row) -> None:
        """Append a row to the file."""
        self._append(msgspec.json.encode({"stage": stage, "row": row}))

    def end(self, line: str) -> None:
        """Append the last line to the file."""
        self._append(line.encode())

    def _append(self, line: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(line + b"\n")


def save(result: GpuResult, path: Path) -> bool:
    """Write the result to ``path``, but never replace a GPU's result with a CPU's.

    Returns True if it was written.
    """
    if result.device == "cpu" and path.exists() and decoded(path.read_bytes()).device != "cpu":
        return False
    path.write_text(encoded(result) + "\n")
    return True
