"""sd_notify over a real datagram socket."""

import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from sedge_protocol.host.systemd import JournalFormatter, is_journal, notify, watchdog_interval_s


@pytest.fixture(params=["path", "abstract"])
def manager(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    """A service manager's socket, named in the environment."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@sedge-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0"))
        listener.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        yield listener


def test_states_arrive_as_datagrams(manager: socket.socket) -> None:
    states = ["READY=1", "WATCHDOG=1", "STATUS=round 3, 2 of 10 epochs", "STOPPING=1"]
    for state in states:
        assert notify(state)
        assert manager.recv(4096).decode() == state


def test_nothing_happens_outside_systemd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")


@pytest.mark.parametrize("address", ["/nobody/listens/here", "@nobody", "vsock:2:1234", "relative"])
def test_a_lost_manager_is_no_error(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    assert not notify("READY=1")


@pytest.mark.parametrize(
    ("limit_us", "pid", "expected"),
    [
        ("120000000", None, 60.0),
        ("3000000", "own", 1.5),
        ("3000000", "1", None),
        ("0", None, None),
        ("soon", None, None),
        (None, None, None),
    ],
)
def test_watchdog_interval(
    limit_us: str | None, pid: str | None, expected: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = str(os.getpid()) if pid == "own" else pid
    for name, value in {"WATCHDOG_USEC": limit_us, "WATCHDOG_PID": pid}.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert watchdog_interval_s() == expected


def test_the_journal_gets_priorities(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    formatter = JournalFormatter("%(levelname)s %(name)s: %(message)s")
    for level, prefix in (
        (logging.CRITICAL, "<3>"), (logging.ERROR, "<3>"), (logging.WARNING, "<4>"),
        (logging.INFO, "<6>"), (logging.DEBUG, "<7>"),
    ):  # fmt: skip
        record = logging.LogRecord("sedge", level, "", 0, "one\ntwo", None, None)
        lines = formatter.format(record).splitlines()
        assert [line[:3] for line in lines] == [prefix, prefix] and lines[1] == f"{prefix}two"
    with (tmp_path / "stream").open("w") as stream:
        found = os.fstat(stream.fileno())
        assert not is_journal(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert is_journal(stream.fileno()) and not is_journal(0)
