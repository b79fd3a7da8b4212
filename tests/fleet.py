"""Stand-ins that tests of several parts share: bundles without a runtime, orders, a link, a crash.

What only the coordinator's tests need is in cloud/helper.py, what only the agent's need in edge/harness.py.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sedge_protocol.host.mqtt import BrokerSettings, LinkEvent
from sedge_protocol.layout import Layout
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import Bundle, BundleManifest, Program, TensorSpec, Verification
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.reconnect import Reconnect
from sedge_protocol.wire.work import Work

EMPTY_PROGRAM = bytes.fromhex("08093a0312016742040a001014")  # an ONNX model without a node


class Crash(BaseException):
    """The process is gone."""


def manifest_of(layout: Layout, *programs: Program, **changes: Any) -> BundleManifest:
    """The manifest of a classifier of rows of three numbers, with other values in these fields."""
    plain = BundleManifest(
        format=bundles.FORMAT,
        name="drift",
        layout=layout,
        batch_size=8,
        input=TensorSpec("float32", (3,)),
        target=TensorSpec("int64", ()),
        num_classes=4,
        uses_batch_statistics=False,
        programs=programs,
        verification=Verification(0.0, 0.0, 1e-4, {}),
    )
    return msgspec.structs.replace(plain, **changes)


def bundle_of(
    layout: Layout,
    files: dict[str, bytes],
    width: int,
    classes: int,
    backend: str = bundles.ONNXRUNTIME,
    **changes: Any,
) -> Bundle:
    """A bundle of these programs, by name, for rows of so many numbers and so many classes."""
    listed = [
        Program(name, backend, name, hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    ]
    row = TensorSpec("float32", (width,))
    return Bundle(manifest_of(layout, *listed, input=row, num_classes=classes, **changes), files)


def changed(order: Order, **changes: Any) -> Order:
    """The order with other values in these fields; those of ``Work`` are fields of its ``work``."""
    asked = {name: changes.pop(name) for name in Work.__struct_fields__ if name in changes}
    if asked:
        changes["work"] = msgspec.structs.replace(order.work, **asked)
    return msgspec.structs.replace(order, **changes)


class FakeLink:
    """A link whose events the test decides, and that keeps what it is given."""

    def __init__(
        self,
        settings: BrokerSettings,
        subscriptions: tuple[str, ...],
        will: Callable[[], Any] = lambda: None,
        reconnect: Reconnect | None = None,
        admit: Callable[[str, bytes], bool] = lambda topic, payload: True,
    ) -> None:
        self.settings, self.subscriptions = settings, subscriptions
        self.will, self.admit = will, admit
        self.reconnect = reconnect or Reconnect(np.random.default_rng(1))
        self.events: list[LinkEvent] = []
        self.sent: list[Send] = []
        self.topics: list[str] = []
        self.closed, self.due, self.room = False, 1e12, 16

    def step(self) -> list[LinkEvent]:
        events, self.events = self.events, []
        return events

    def send(self, topic: str, payload: bytes) -> None:
        self.sent.append(Send(topic, payload))

    def subscribe(self, topic: str) -> None:
        self.topics.append(topic)

    def unsubscribe(self, topic: str) -> None:
        self.topics.remove(topic)

    def fileno(self) -> int | None:
        return 17

    def wants_write(self) -> bool:
        return True

    def timer(self) -> float:
        return self.due

    def close(self) -> None:
        self.closed = True


def always(value: object) -> Callable[..., Any]:
    """A function that returns this, whatever it is given."""

    def function(*_: object, **__: object) -> object:
        return value

    return function


def is_alive(pid: int | None) -> bool:
    """Whether a process is there and does not only wait to be fetched by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def begin_emulation(
    folder: Path, text: str, *words: str, **environment: str
) -> subprocess.Popen[str]:
    """``sedge-emulate run`` of a fleet, in a process group of its own; its result goes to out."""
    folder.mkdir(exist_ok=True)
    (folder / "fleet.toml").write_text(text)
    command = [sys.executable, "-m", "sedge_emulate", "run", "fleet.toml", "--out", "out", *words]
    return subprocess.Popen(
        command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONUNBUFFERED": "1", **environment}, start_new_session=True,
    )  # fmt: skip


@pytest.fixture(autouse=True)
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No disk loses power where a conftest imports this: flushes are tested where power is cut."""

    def nothing(descriptor: int) -> None:
        return

    monkeypatch.setattr(os, "fsync", nothing)


@contextmanager
def failing(owner: object, name: str, error: BaseException) -> Generator[None]:
    """Every call of this function of an object, class or module raises the error meanwhile."""

    def fail(*_: object, **__: object) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fail)
        yield
