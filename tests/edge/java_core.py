"""The harness around the agent in Java: one JVM for many cores, each called by a line (``ServeCore``).

What it keeps is read from its disk, and handed over as the agent in Python keeps it.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import count
from math import isnan
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.android.java import JAVA
from tests.edge.disk_faults import Counted, PowerCut
from tests.edge.harness import LAYOUT, SECRET, UP, Harness

from sedge_edge.agent import AgentEffect, StartJob
from sedge_edge.jobs.job import Job, Kept
from sedge_edge.rounds.state import AgentState
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainRequest
from sedge_protocol.codec import Compression
from sedge_protocol.errors import SedgeError, StorageError
from sedge_protocol.layout import Role
from sedge_protocol.wire.effects import Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.messages import Hello, Order, encode_body
from sedge_protocol.wire.training import Training

LEVELS = {"SEVERE": 40, "WARNING": 30, "INFO": 20}
# Of org.sedge.edge.rounds.Abilities.
ABILITIES = (
    "int4", "sign", "freeze", "phases", "correction", "optimizer", "schedule", "average",
    "blend",
)  # fmt: skip
HEAD_BYTES = 40  # of a journal: its magic, and the SHA-256 of the value
STATISTICS = [t.slice for t in LAYOUT.tensors if t.role is Role.STATISTIC]

# Answers theta (n,) with the gradient, the loss, and the statistics (k,) after the step.
Gradient = Callable[[bytes], tuple[bytes, bytes, bytes]]


def no_gradient(theta: bytes) -> tuple[bytes, bytes, bytes]:
    raise AssertionError("a training")


class Jvm:
    """A process that serves cores until it is closed; anew after a core has ended it."""

    def __init__(self, class_path: str) -> None:
        memory = Path("/dev/shm")  # where a flush, of which every commit has three, costs nothing
        self._folders = tempfile.mkdtemp(dir=memory if memory.is_dir() else None, prefix="sedge-")
        self._words = [*JAVA, "-cp", class_path, "org.sedge.edge.rounds.ServeCore"]
        self._process: subprocess.Popen[str] | None = None
        self.numbers = count()
        self.heard: list[str] = []  # by the listeners of all cores

    @property
    def alive(self) -> bool:
        return self._process is not None

    def close(self) -> None:
        """End the process."""
        shutil.rmtree(self._folders)
        self._end()

    def folder(self, folder: Path) -> Path:
        """Where a device's folder is instead."""
        return Path(self._folders, hashlib.sha256(str(folder).encode()).hexdigest()[:16])

    def call(
        self, core: int, words: Sequence[object], gradient: Gradient = no_gradient
    ) -> tuple[list[AgentEffect], str]:
        """The effects of a call of a core, and its result. After any other end the JVM is another."""
        try:
            return self._called(core, words, gradient)
        except (PowerCut, StorageError):
            raise
        except BaseException:  # what is left of the answer is nobody's
            self._end()
            raise

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _called(
        self, core: int, words: Sequence[object], gradient: Gradient
    ) -> tuple[list[AgentEffect], str]:
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(self._words, stdin=pipe, stdout=pipe, text=True)
        self._say(core, *words)
        effects: list[AgentEffect] = []
        assert self._process.stdout is not None
        for line in self._process.stdout:
            word, _, rest = line.rstrip("\n").partition(" ")
            if word.startswith("."):
                return effects, word[1:]
            if word == "killed":
                raise PowerCut
            if word == "refused":
                raise StorageError(rest)
            if word == "gradient":
                self._answer(rest, gradient)
            elif word == "heard":
                self.heard.append(rest)
            else:
                effects.append(EFFECTS[word](*rest.split(" ", 1)))
        raise AssertionError("the JVM has ended")

    def _answer(self, theta: str, gradient: Gradient) -> None:
        try:
            found = gradient(bytes.fromhex(theta))
        except (SedgeError, MemoryError) as exc:
            self._say("error", type(exc).__name__, str(exc).encode().hex())
        else:
            self._say("gradient", *(value.hex() for value in found))

    def _say(self, *words: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()


def started(order: str, kept: str) -> StartJob:
    """A job, as far as a test looks at it."""
    entry = msgspec.msgpack.decode(bytes.fromhex(kept))
    return StartJob(
        Job(msgspec.msgpack.decode(bytes.fromhex(order), type=Order), msgspec.convert(entry, Kept))
    )


def sent(topic: str, payload: str) -> Send:
    return Send(topic, bytes.fromhex(payload))


def noted(level: str, text: str) -> Note:
    return Note(LEVELS[level], bytes.fromhex(text).decode())


EFFECTS: dict[str, Callable[..., AgentEffect]] = {
    "send": sent,
    "note": noted,
    "subscribe": Subscribe,
    "unsubscribe": Unsubscribe,
    "start": started,
}


class JavaCore:
    """A core in Java, with the methods of ``sedge_edge.agent.Agent`` that tests call."""

    def __init__(self, jvm: Jvm, folder: Path, *options: object) -> None:
        self._jvm, self._core = jvm, next(jvm.numbers)
        jvm.call(self._core, ["begin", folder, *options])

    def close(self) -> None:
        """As a power cut would."""
        self._jvm.call(self._core, ["end"])

    def will(self) -> tuple[str, bytes]:
        return UP, bytes.fromhex(self._asked("will"))

    def goodbye(self) -> list[Any]:
        return self.told("goodbye")

    def connected(self, now: float, max_packet: int) -> list[Any]:
        return self.told("connected", now, max_packet)

    def other_password(self) -> str | None:
        password = self._asked("other-password")
        return None if password == "null" else password

    def disconnected(self) -> None:
        self.told("disconnected")

    def receive(self, topic: str, payload: bytes, now: float) -> list[Any]:
        return self.told("receive", now, topic, payload.hex())

    def failed(self, error: SedgeError, now: float) -> list[Any]:
        return self.told("failed", now, type(error).__name__, str(error).encode().hex())

    def interrupted(self, checkpoint: bytes | None = None) -> list[Any]:
        return self.told("interrupted", 0, (checkpoint or b"").hex())

    def poll(self, now: float) -> list[Any]:
        return self.told("poll", now)

    def timer(self) -> float | None:
        at = float(self._asked("timer"))
        return None if isnan(at) else at

    @property
    def idle(self) -> bool:
        return self._asked("idle") == "true"

    @property
    def welcomed(self) -> bool:
        return self._asked("welcomed") == "true"

    def must_stop(self, now: float) -> bool:
        return self._asked("must-stop", now) == "true"

    def told(self, *words: object, gradient: Gradient = no_gradient) -> list[AgentEffect]:
        return self._jvm.call(self._core, words, gradient)[0]

    def _asked(self, *words: object) -> str:
        return self._jvm.call(self._core, words)[1]


class JavaDisk:
    """What befalls the disks of devices in Java, at each call of a blob folder or a journal."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    @contextmanager
    def full(self, first: int, count: int, code: int = errno.ENOSPC) -> Generator[Counted]:
        with self._turns(first, count, "refuse", os.strerror(code)) as counted:
            yield counted

    @contextmanager
    def cut(self, at: int, loses: bool) -> Generator[Counted]:
        with self._turns(at, 1, "lose" if loses else "kill") as counted:
            yield counted

    @contextmanager
    def _turns(self, first: int, count: int, how: str, why: str = "") -> Generator[Counted]:
        counted = Counted()
        self._jvm.call(0, ["turns", first, count, how, why.replace(" ", "_")])
        try:
            yield counted
        finally:
            counted.calls = int(self._jvm.call(0, ["turns", -1, 0, "", ""])[1])


class JavaHarness(Harness):
    """The harness around a core in Java."""

    agent: Any
    compression = Compression.ZLIB  # it has no zstd

    def __init__(
        self, jvm: Jvm, folder: Path, chunk_bytes: int = 4096, ca: Path | None = None
    ) -> None:
        self._jvm, self._ca = jvm, [] if ca is None else [str(ca)]
        self._written: dict[Path, Examples] = {}
        super().__init__(jvm.folder(folder), chunk_bytes)

    def start(self, incarnation: int = 1) -> Any:
        if hasattr(self, "agent"):
            self.agent.close()
        hello = Hello(bytes(16), "test", ("onnxruntime",), (), ABILITIES, num_train=10,
                      num_test=10, memory_mb=self.memory_mb)  # fmt: skip
        most = self.limits
        words = "-"
        if most is not None:
            words = f"{most.orders_per_hour},{most.megabytes_per_day},{most.training_hours_per_day}"
        self.topics.clear()
        pinned = ",".join(self.pinned) or "-"
        options = SECRET.hex(), encode_body(hello).hex(), words, pinned, incarnation, *self._ca
        agent = JavaCore(self._jvm, self.folder, *options)
        agent.will()
        return agent

    @contextmanager
    def refusing(self, call: str, least: int = 0, but: bytes = b"") -> Generator[None]:
        self.agent.told("refuse", call.replace(" ", "-"), least, but.hex())
        try:
            yield
        finally:
            if self._jvm.alive:
                self.agent.told("refuse", "-", 0, "")

    @property
    def counters(self) -> Counter[str]:
        return Counter(refused=-1, replayed=-1, storage_errors=-1, http_failed=-1)

    def must_stop(self, now: float) -> bool:
        stops: bool = self.agent.must_stop(now)
        return stops

    def on_disk(self) -> AgentState:
        raw = msgspec.msgpack.decode((self.folder / "journal").read_bytes()[HEAD_BYTES:])
        raw["coordinator_incarnation"] = raw.pop("coordinator")
        for entry in raw["runs"].values():
            entry["kept"] = {name: entry.get(name) for name in Kept.__struct_fields__}
        return msgspec.convert(raw, AgentState)

    def known(self) -> AgentState:
        return self.on_disk()

    def work(self, job: Job, steps: int = -1) -> list[AgentEffect]:
        files = [self.folder / "train.npz", self.folder / "test.npz"]
        for path, examples in zip(files, (self.train, self.test), strict=True):
            if self._written.get(path) is not examples:
                np.savez(path, x=examples.inputs, y=examples.targets)
                self._written[path] = examples

        def gradient(theta: bytes) -> tuple[bytes, bytes, bytes]:
            start = np.frombuffer(theta, "<f4").copy()
            training = job.order.work.training or Training()
            request = TrainRequest(start, training, job.order.seed, gradient=True)
            trained = self.trainer.train(request, self.train, lambda: False)
            with np.errstate(over="ignore"):
                way = start - trained.theta if trained.gradient is None else trained.gradient
            statistics = np.concatenate([trained.theta[place] for place in STATISTICS])
            loss = np.float32(trained.loss)
            return way.astype("<f4").tobytes(), loss.tobytes(), statistics.tobytes()

        words = "work", self.now, steps, *files
        effects: list[AgentEffect] = self.agent.told(*words, gradient=gradient)
        return effects
