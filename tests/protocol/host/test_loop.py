"""The event loop: who is stepped, and when; and the lock of a state folder."""

import select
import signal
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from sedge_protocol.errors import StorageError
from sedge_protocol.host import loop as loop_module
from sedge_protocol.host.loop import Loop, lock_folder

FAR = 1e12


class FakeStation:
    def __init__(self, due: float = FAR, sock: socket.socket | None = None) -> None:
        self.due = due
        self.sock = sock
        self.writing = False
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        self.due = FAR
        if self.sock is not None:
            readable, _, _ = select.select([self.sock], [], [], 0)
            if readable:
                self.sock.recv(100)

    def fileno(self) -> int | None:
        return None if self.sock is None else self.sock.fileno()

    def wants_write(self) -> bool:
        return self.writing

    def timer(self) -> float:
        return self.due


class Running:
    """A loop and its stations, run until one of them has been stepped often enough."""

    def __init__(self, *stations: FakeStation) -> None:
        self.loop = Loop()
        self.stations = stations

    def until_steps(self, count: int) -> list[int]:
        """Run until there were this many steps; how many each station had."""
        end = time.monotonic() + 20

        def done() -> bool:
            assert time.monotonic() < end, "the loop stepped nobody"
            return sum(station.steps for station in self.stations) >= count

        try:
            self.loop.run(self.stations, done)
        finally:
            self.loop.close()
        return [station.steps for station in self.stations]


def test_a_due_timer_steps_its_station_alone() -> None:
    assert Running(FakeStation(), FakeStation(due=0.0), FakeStation()).until_steps(1) == [0, 1, 0]


def test_a_readable_socket_steps_its_station_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.send(b"x")
        assert Running(FakeStation(), FakeStation(sock=ours)).until_steps(1) == [0, 1]


def test_a_writable_socket_counts_only_when_it_is_asked_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        station = FakeStation(sock=ours)
        assert Running(station, FakeStation(due=time.monotonic() + 0.05)).until_steps(1) == [0, 1]
        station.writing = True
        assert Running(station, FakeStation()).until_steps(1) == [1, 0]


def test_a_closed_socket_steps_its_station() -> None:
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert Running(FakeStation(sock=ours)).until_steps(1) == [1]


def test_a_wake_from_another_thread_steps_everyone() -> None:
    running = Running(FakeStation(), FakeStation())
    waker = threading.Timer(0.05, running.loop.wake)
    waker.start()
    assert running.until_steps(1) == [1, 1]
    waker.join()


def test_wakes_before_the_run_are_not_lost_and_never_block() -> None:
    running = Running(FakeStation())
    for _ in range(100_000):  # more than a socket's buffer holds
        running.loop.wake()
    assert running.until_steps(1) == [1]


def test_an_idle_loop_looks_up_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that an operator's stop is noticed even when no station has anything to do."""
    monkeypatch.setattr(loop_module, "MAX_WAIT_S", 0.01)
    asked: list[float] = []

    def until() -> bool:
        asked.append(time.monotonic())
        return len(asked) > 3

    loop = Loop()
    station = FakeStation()
    loop.run([station], until)
    loop.close()
    assert station.steps == 0


def test_the_watchdog_is_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[str] = []

    def notify(state: str) -> None:
        fed.append(state)

    def interval_s() -> float:
        return 0.02

    monkeypatch.setattr(loop_module, "notify", notify)
    monkeypatch.setattr(loop_module, "watchdog_interval_s", interval_s)
    monkeypatch.setattr(loop_module, "MAX_WAIT_S", 0.005)
    loop = Loop()
    loop.run([FakeStation()], lambda: len(fed) >= 3)
    loop.close()
    assert set(fed) == {"WATCHDOG=1"}


def test_a_state_folder_has_one_holder(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    with lock_folder(folder):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with pytest.raises(StorageError, match="another process is using this state folder"):
            lock_folder(folder)
    with lock_folder(folder):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="file"):
        lock_folder(tmp_path / "file" / "state")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_in_order(number: signal.Signals) -> None:
    before = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    loop = Loop()
    asked: list[int] = []

    def until() -> bool:
        asked.append(1)
        if len(asked) == 2:
            signal.raise_signal(number)
        return len(asked) > 5

    try:
        loop.stop_on_signals()
        loop.run([], until)
    finally:
        loop.close()
        for n, handler in before.items():
            signal.signal(n, handler)
    assert (len(asked), loop.interrupted) == (2, number == signal.SIGINT)
