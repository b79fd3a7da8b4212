"""Strangers who connect to the status page and send nothing take neither the page nor file handles."""

import http.client
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.cloud.outlets.test_status_server import Site

from sedge_cloud.outlets.page import connections

# Connects as often as it is told, waits for a line, and says how many of the connections are still open.
FLOOD = """
import resource, socket, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("connected", flush=True)
sys.stdin.readline()
def is_open(one):
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
print(sum(map(is_open, held)), flush=True)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


@contextmanager
def flood(site: Site, number: int) -> Generator["subprocess.Popen[str]"]:
    """So many silent connections from another process."""
    words = [sys.executable, "-c", FLOOD, str(site.server.port), str(number)]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "connected\n"
        yield process


def still_open(process: "subprocess.Popen[str]") -> int:
    """How many of its connections the server has kept."""
    return int(process.communicate("\n")[0])


@pytest.fixture
def few_handles() -> Iterator[int]:
    """The process may have 400 file handles more than the tests before this one have left open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = len(list(Path("/proc/self/fd").iterdir())) + 400
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_many_silent_connections_leave_the_process_its_handles(
    few_handles: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 3600.0)
    with flood(site, 3 * few_handles) as strangers:
        assert site.ask("/healthz") == (200, "ok\n")
        assert site.ask("/metrics")[0] == 200
        with ExitStack() as stack:  # what the database and the link need
            for _ in range(100):
                stack.enter_context(Path(__file__).open("rb"))
        assert 0 < still_open(strangers) <= few_handles // 4


def test_a_newcomer_finds_room_when_all_work(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 3)
    with ExitStack() as stack:
        for _ in range(3):
            one = stack.enter_context(
                closing(socket.create_connection(("127.0.0.1", site.server.port), 20))
            )
            one.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        assert site.ask("/healthz") == (200, "ok\n")


def test_a_client_that_reads_nothing_is_closed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "ANSWER_S", 0.5)
    requests = b"GET /api/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1000
    with (
        closing(socket.socket()) as deaf,
        pytest.raises((ConnectionResetError, BrokenPipeError)),
    ):
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            deaf.setsockopt(socket.SOL_SOCKET, buffer, 4096)
        deaf.settimeout(20)
        deaf.connect(("127.0.0.1", site.server.port))
        while True:  # until both directions are full
            deaf.sendall(requests)


def test_a_connection_without_a_request_is_closed_and_a_stream_is_not(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.2)
    stream = http.client.HTTPConnection("127.0.0.1", site.server.port, timeout=20)
    stream.request("GET", "/events")
    answer = stream.getresponse()
    address = ("127.0.0.1", site.server.port)
    with closing(stream), closing(socket.create_connection(address, 20)) as half:
        half.sendall(b"GET /healthz HTTP/1.1\r\n")
        wait_for_close(half)
        site.seen.cloud.hello("b")
        site.seen.record()
        assert answer.readline() == b"retry: 3000\n"  # and a change comes after the others closed
        assert any(line == b"event: change\n" for line in iter(answer.readline, b""))


def test_an_answered_connection_is_closed_too(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "IDLE_S", 0.2)
    with closing(socket.create_connection(("127.0.0.1", site.server.port), 20)) as kept:
        kept.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")
        kept.sendall(b"GET")  # which ends uvicorn's own timeout
        wait_for_close(kept)


def test_what_strangers_do_floods_no_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """Requests that are no HTTP; and connections that cannot be accepted, as every handle is taken."""
    for _ in range(20):
        with closing(socket.create_connection(("127.0.0.1", site.server.port), 20)) as one:
            one.sendall(b"\x16\x03\x01 TLS\r\n\r\n")
            assert one.recv(4096).startswith(b"HTTP/1.1 400")
    assert not caplog.messages
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        waiting = [stack.enter_context(closing(socket.socket())) for _ in range(20)]
        taken = max(int(one.name) for one in Path("/proc/self/fd").iterdir())
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 1, hard))
        with suppress(OSError):
            while True:
                stack.enter_context(Path(__file__).open("rb"))
        for one in waiting:
            one.connect(("127.0.0.1", site.server.port))
        while not caplog.messages:
            threading.Event().wait(0.01)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert site.ask("/healthz") == (200, "ok\n")
    (line,) = caplog.messages
    assert "cannot serve a connection" in line and "Too many open files" in line


def wait_for_close(one: socket.socket) -> None:
    """Read until the other side closes; a socket's timeout of 20 s is the test's failure."""
    with suppress(ConnectionResetError):
        while one.recv(4096):
            pass
