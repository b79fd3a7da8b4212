"""Counts the coordinator's work for each kind of message, and for closing, planning and opening a round.

A real coordinator with a real store and FedOBP receives the frames of a few devices. The second round is
traced, because every device then has a client model. The result has for each step:

    calls        how many times Python functions in Sedge were entered, not counting comprehensions and
                 resumed generators
    files        how many source files these functions are in
    switches     how many of the calls go from one file into another
    statements   how many SQL statements ran, excluding those that begin or end a transaction
    commits      how many transactions were committed
    fsyncs       how many files and folders Python synced, plus one for each commit (SQLite's log,
                 synchronous=FULL)

Sending the orders of the next round is a separate step. Every figure is a count, so it is the same on every
machine. With ``--step NAME`` the functions that ran in one step are listed, each with the number of calls
that it and its callees made.
"""

import os
import sqlite3
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

from tools.bench.coordinator import Online, synthetic_delta
from tools.bench.harness import Figure, Result, bench
from tools.bench.substitution import substituted

from sedge_cloud.config import RunConfig
from sedge_cloud.ingest.open_orders import OpenOrders
from sedge_cloud.rounds import scheduler
from sedge_cloud.store.opening import open_folder
from sedge_protocol.codec import ValueCoding, encode, top_k

SIZE = 100_000
SHARE = 0.3  # share of elements to send, too many for an offer, so the update needs a chunk
GENERATOR = 0x20  # the flag of a generator in its code object (inspect.CO_GENERATOR)
STEPS = ("hello", "offer", "last chunk", "close", "collect", "plan", "open", "send")


@dataclass
class Counts:
    """The counts for one step of the coordinator's work."""

    calls: int = 0
    files: set[str] = field(default_factory=set[str])
    switches: int = 0
    statements: int = 0
    commits: int = 0
    fsyncs: int = 0
    functions: Counter[str] = field(default_factory=Counter[str])

    def row(self) -> dict[str, int]:
        """Return the counts by name, without the functions."""
        return {
            "calls": self.calls,
            "files": len(self.files),
            "switches": self.switches,
            "statements": self.statements,
            "commits": self.commits,
            "fsyncs": self.fsyncs,
        }


class Tracer:
    """Counts the work done inside ``step``. An inner step's work does not count for the outer one."""

    def __init__(self) -> None:
        self.steps = {name: Counts() for name in STEPS}
        self._open: list[Counts] = []
        self._fsync = os.fsync

    @contextmanager
    def step(self, name: str) -> Generator[None]:
        """Reset the counts of this step, and count the work done within this context."""
        self.steps[name] = Counts()
        self._open.append(self.steps[name])
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            self._open.pop()
            sys.setprofile(self._profile if self._open else None)

    def within(self, owner: object, method: str, name: str) -> None:
        """Count later calls of a method as the step ``name`` if they happen during another step."""
        call: Callable[..., object] = getattr(owner, method)

        def counted(*args: object, **kwargs: object) -> object:
            if not self._open:
                return call(*args, **kwargs)
            with self.step(name):
                result = call(*args, **kwargs)
                return iter(list(result)) if isinstance(result, Generator) else result

        setattr(owner, method, counted)

    def statement(self, sql: str) -> None:
        """Count an SQL statement as SQLite starts it."""
        if not self._open or sql.startswith(("BEGIN", "SAVEPOINT", "RELEASE")):
            return
        is_commit, counts = sql.startswith("COMMIT"), self._open[-1]
        counts.commits += is_commit
        counts.fsyncs += is_commit
        counts.statements += not is_commit

    def fsync(self, descriptor: int) -> None:
        """Stand in for ``os.fsync``: count the call, then sync the file."""
        if self._open:
            self._open[-1].fsyncs += 1
        self._fsync(descriptor)

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not _is_ours(code) or _is_resumed(frame):
            return
        counts, stack, above = self._open[-1], list[CodeType](), frame.f_back
        while above is not None:
            if _is_ours(above.f_code):
                stack.append(above.f_code)
            above = above.f_back
        counts.calls += 1
        counts.files.add(code.co_filename)
        counts.switches += not stack or stack[0].co_filename != code.co_filename
        counts.functions.update({_name(each) for each in (code, *stack)})


def _is_ours(code: CodeType) -> bool:
    return "/sedge_" in code.co_filename and not code.co_name.startswith("<")


def _name(code: CodeType) -> str:
    return f"{code.co_filename.rpartition('/sedge_')[2]} {code.co_qualname}"


def _is_resumed(frame: FrameType) -> bool:
    """Return True if a generator is resumed rather than entered."""
    return bool(frame.f_code.co_flags & GENERATOR) and frame.f_lasti > 2


class Bench(Online):
    """A coordinator and its devices, with a store whose work is traced."""

    def __init__(self, folder: Path, devices: int, tracer: Tracer) -> None:
        self.tracer = tracer
        options = {"quantile": 0.999}
        config = RunConfig(strategy="fedobp", options=options, num_rounds=3, quorum=1.0)
        super().__init__(folder, open_folder(folder / "state"), devices, SIZE, config)

    def trace(self) -> dict[str, Counts]:
        """Return the counts for every step of a round in which all devices have client models."""
        self._answer()
        self._watch()
        with self.tracer.step("hello"):
            self.hello(self.devices[0])
        self._answer("offer", "last chunk")
        with self.tracer.step("close"):
            self.poll()
        return self.tracer.steps

    def _watch(self) -> None:
        within = self.tracer.within
        within(self.core.garbage, "collect_if_due", "collect")
        within(scheduler.Scheduler, "_open", "open")
        within(scheduler, "plan_cohort", "plan")
        within(OpenOrders, "ordered", "send")

    def _answer(self, offer: str = "", chunk: str = "") -> None:
        """Let every device send its update.

        The first device's offer and last chunk are traced as the steps ``offer`` and ``chunk``; "" traces
        nothing.
        """
        for number, device in enumerate(self.devices):
            delta = synthetic_delta("random", SIZE, number)
            payload = encode(top_k(delta, round(SHARE * SIZE)), ValueCoding.BF16)
            frames = device.frames(device.order(self.effects), self.layout, payload, number)
            assert len(frames) == 2  # an offer and one chunk
            for name, frame in zip((offer, chunk), frames, strict=True):
                traced = self.tracer.step(name) if name and not number else nullcontext()
                with traced:
                    self.core.receive(device.topic, frame, self.now)
                    self.core.commit(self.now)
        if not offer:
            self.poll()


def trace(folder: Path, devices: int) -> dict[str, Counts]:
    """Trace the coordinator with a store in ``folder``. Returns the counts for every step."""
    tracer = Tracer()
    connect: Callable[..., sqlite3.Connection] = sqlite3.connect

    def connected(*args: object, **kwargs: object) -> sqlite3.Connection:
        connection = connect(*args, **kwargs)
        connection.set_trace_callback(tracer.statement)
        return connection

    with substituted(sqlite3, "connect", connected), substituted(os, "fsync", tracer.fsync):
        return Bench(folder, devices, tracer).trace()


def figures(found: Result) -> list[Figure]:
    """Return a figure for each step, and one for each function in the requested step."""
    steps = [
        Figure(step, ", ".join(f"{count} {name}" for name, count in row.items()))
        for step, row in found["steps"].items()
    ]
    return steps + [Figure(name, f"{count} calls") for name, count in found["functions"].items()]


@bench("What a message costs the coordinator", figures)
def measure(devices: int = 2, folder: Path | None = None, step: str = "") -> Result:
    """Trace with a store in a new folder below ``folder`` (by default the system's temporary one).

    The functions of ``step`` are listed.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        steps = trace(Path(name), devices)
    functions = dict(steps[step].functions.most_common()) if step else {}
    return {
        "devices": devices,
        "steps": {each: counts.row() for each, counts in steps.items()},
        "functions": functions,
    }
