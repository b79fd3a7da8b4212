"""Notices and the log of problems: what is told, how often, and that a failing receiver is logged once."""

import http.server
import json
import logging
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from sedge_cloud.config import CloudConfig
from sedge_cloud.facts.records import Code, Problem, Severity
from sedge_cloud.outlets.notices import MAX_NOTICES, Notice, Notices, Sender
from sedge_cloud.outlets.problem_log import MOST, QUIET_S, ProblemLog
from sedge_cloud.outlets.settings import NotifyConfig

EVERY_100_S = CloudConfig("home", notify=NotifyConfig(every_s=100))


def problem(subject: str, code: Code = "device_lost", severity: Severity = "error") -> Problem:
    return Problem(code=code, severity=severity, subject=subject, run="one", text="is offline")


def test_what_lasts_is_told_once_in_a_while() -> None:
    notices = Notices(EVERY_100_S)
    lost, mild = problem("pi-1"), problem("pi-1", "device_waits")
    assert notices.due([lost, mild], 0) == []  # perhaps it is back at the next look
    (notice,) = notices.due([lost, mild], 10)
    assert (notice.text, notice.problem, notice.more) == ("pi-1: is offline", lost, 0)
    assert notices.due([lost], 20) == []
    assert notices.due([], 30) == []
    assert notices.due([lost], 40) == [] == notices.due([lost], 50)  # it flaps
    assert len(notices.due([lost], 111)) == 1


def test_a_fleet_without_network_is_a_few_notices() -> None:
    notices = Notices(EVERY_100_S)
    everyone = [problem(f"pi-{i}") for i in range(1000)]
    notices.due(everyone, 0)
    told = notices.due(everyone, 10)
    assert len(told) == MAX_NOTICES and {n.more for n in told} == {1000 - MAX_NOTICES}
    assert notices.due(everyone, 20) == []


def test_a_problem_is_logged_when_it_lasts_and_when_it_ends() -> None:
    log, one = ProblemLog(), problem("pi-1")
    slow = problem("pi-2", "device_slow", "warning")
    told = (logging.WARNING, "pi-2: is offline (device_slow, run one)")
    assert log.lines([one], 0) == []  # perhaps it is back at the next look
    assert log.lines([one, slow], 2) == [(logging.ERROR, "pi-1: is offline (device_lost, run one)")]
    assert log.lines([one, slow], 4) == [told]
    assert log.lines([slow], 6) == [(logging.INFO, "pi-1: no longer device_lost")]
    for at, seen in ((8, [one, slow]), (10, [one, slow]), (QUIET_S + 6, [slow])):
        assert log.lines(seen, at) == []  # one comes and goes again, the other stays


def test_a_fleet_without_network_is_a_few_lines_of_the_log() -> None:
    log = ProblemLog()
    everyone = [problem(f"pi-{i}") for i in range(1000)]
    log.lines(everyone, 0)
    more = 1000 - MOST
    begun, ended = log.lines(everyone, 2), log.lines([], 4)
    assert len(begun) == len(ended) == MOST + 1
    assert begun[-1] == (logging.ERROR, f"{more} more problems have begun: device_lost {more}")
    assert ended[-1] == (logging.INFO, f"{more} more problems have ended: device_lost {more}")


@contextmanager
def receiver(*statuses: int) -> Generator[tuple[str, list[bytes]]]:
    """The address of a server that gives these answers, the last one again and again; what it was sent."""
    got: list[bytes] = []

    class Receiver(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(statuses[min(len(got), len(statuses)) - 1])
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def do_GET(self) -> None:
            got.append(b"GET")

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with http.server.HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", got
        server.shutdown()
        thread.join()


def test_both_ways_get_it_and_a_failure_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    written = tmp_path / "notice"
    command = (sys.executable, "-c",
               f"import sys; open({str(written)!r}, 'a').write(sys.stdin.read() + '\\n')")  # fmt: skip
    with receiver(500, 500, 204) as (url, got):
        send = Sender(NotifyConfig(url, command))
        for i in range(3):
            send(Notice("home", problem(f"pi-{i}"), "text"))
    assert len(caplog.messages) == 1 and "notify.webhook" in caplog.messages[0]
    assert [json.loads(body)["problem"]["subject"] for body in got] == ["pi-0", "pi-1", "pi-2"]
    lines = written.read_text().splitlines()
    notices = [msgspec.json.decode(line, type=Notice) for line in lines]
    assert [notice.problem.subject for notice in notices] == ["pi-0", "pi-1", "pi-2"]


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed(caplog: pytest.LogCaptureFixture, status: int) -> None:
    with receiver(status) as (url, got):
        Sender(NotifyConfig(url))(Notice("home", problem("pi-1"), "text"))
    assert len(got) == 1 and b"pi-1" in got[0]
    assert [str(status) in line and "notify.webhook" in line for line in caplog.messages] == [True]


def test_no_http_leaves_the_other_way(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    written = tmp_path / "notice"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with server.accept()[0] as client:
                client.recv(65536)
                client.sendall(b"SSH-2.0-hello\r\n")
                client.recv(65536)

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        Sender(NotifyConfig(url, ("touch", str(written))))(Notice("home", problem("pi-1"), "text"))
        thread.join()
    assert written.exists() and len(caplog.messages) == 1
