"""Emulated devices over a real broker: their secrets, their disks, and what becomes of their jobs."""

from collections.abc import Generator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.edge.home import DEAD_URL
from tests.emulate.workers.fleet_of_four import make_shares

from sedge_cloud.store.opening import open_folder
from sedge_edge.jobs.job import Job
from sedge_edge.runtime import Runtime
from sedge_emulate.broker.device import Site, bring_up, enrol
from sedge_emulate.workers.worker import Finished, Request
from sedge_protocol.errors import CodecError, LinkError, StorageError
from sedge_protocol.wire.keys import DeviceKeys

SHARES = make_shares(3)
JOB: Any = Job(order=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class NotedPool:
    """It takes jobs, and a test says what becomes of them."""

    def __init__(self) -> None:
        self.requests: list[tuple[Request, int]] = []
        self.futures: list[Future[Finished]] = []

    def submit(self, request: Request, size: int) -> Future[Finished]:
        self.requests.append((request, size))
        self.futures.append(Future())
        return self.futures[-1]


CENTRAL: dict[int, tuple[float, float]] = {}


@pytest.fixture
def pool() -> NotedPool:
    return NotedPool()


def start(folder: Path, pool: Any, number: int = 1, secret: bytes = b"s" * 32) -> Runtime:
    site = Site("fleet", folder, DEAD_URL, pool, lambda: None, central=CENTRAL)
    return bring_up(number, SHARES, secret, site, seed=7)


@pytest.fixture
def runtime(tmp_path: Path, pool: NotedPool) -> Generator[Runtime]:
    """Device 1, closed in the end."""
    with closing(start(tmp_path, pool)) as runtime:
        yield runtime


def test_store_and_device_have_the_same_secret(tmp_path: Path, pool: NotedPool) -> None:
    store = open_folder(tmp_path / "cloud")
    secrets = enrol(store, SHARES)
    devices = {row.device: row.secret for row in store.devices()}
    assert devices == dict(zip(["device-0", "device-1", "device-2"], secrets, strict=True))
    assert len(set(secrets)) == 3
    for number, secret in enumerate(secrets):
        runtime = start(tmp_path, pool, number, secret)
        identity = runtime.agent.identity
        assert identity.keys == DeviceKeys.of(secret)
        assert (identity.fleet, identity.device) == ("fleet", f"device-{number}")
        assert identity.hello.num_train == SHARES.num_train(number)
        assert identity.hello.num_test == 10
        # Runs of several strategies share a broker: the fleet's name keeps their sessions apart.
        assert runtime.link.settings.name == f"fleet-device-{number}"
        assert (tmp_path / f"device-{number}" / "journal").exists()
        runtime.close()
    store.close()


def test_a_device_that_was_enrolled_keeps_its_secret(tmp_path: Path) -> None:
    store = open_folder(tmp_path / "cloud")
    store.add_device("device-1", b"old" * 8 + b"12345678")
    store.add_device("pi-1", b"p" * 32)
    first = enrol(store, SHARES)
    assert first[1] == b"old" * 8 + b"12345678"
    assert enrol(store, SHARES) == first
    assert {row.device for row in store.devices()} == {"pi-1", *(SHARES.name(i) for i in range(3))}
    store.close()


def test_a_job_goes_to_the_pool_with_the_devices_own_folder_and_comes_back_without_the_bytes(
    runtime: Runtime, pool: NotedPool, tmp_path: Path
) -> None:
    job = runtime._work(JOB)
    assert pool.requests == [(Request(1, JOB, tmp_path / "device-1"), SHARES.num_train(1))]
    outcome: Any = object()
    pool.futures[0].set_result(Finished(outcome, b"update", (0.5, 0.75)))
    assert job.result(timeout=0) is outcome
    assert CENTRAL == {1: (0.5, 0.75)}  # which the agent has no place for
    broken = runtime._work(JOB)
    pool.futures[1].set_exception(CodecError("bad bytes"))
    with pytest.raises(CodecError, match="bad bytes"):
        broken.result(timeout=0)


def test_a_worker_that_has_died_is_not_the_devices_doing(runtime: Runtime, pool: NotedPool) -> None:
    """The device would decline its order for it; the fleet looks at the pool itself."""
    dead, closed = runtime._work(JOB), runtime._work(JOB)
    pool.futures[0].set_exception(LinkError("a worker process has died"))
    pool.futures[1].cancel()
    pool.futures[1].set_running_or_notify_cancel()
    assert not dead.done() and not closed.done()
    assert dead.cancel()


def test_a_job_of_a_device_that_was_closed_ends_unheard(
    runtime: Runtime, pool: NotedPool, caplog: pytest.LogCaptureFixture
) -> None:
    job = runtime._work(JOB)
    runtime._job = job
    runtime.close()
    assert job.cancelled()
    outcome: Any = object()
    pool.futures[0].set_result(Finished(outcome, b"update"))
    assert caplog.records == []  # the standard library logs what a callback raises


def test_nothing_is_written_where_nothing_can_be(tmp_path: Path, pool: NotedPool) -> None:
    (tmp_path / "device-1").write_text("in the way")
    with pytest.raises(StorageError, match="device-1"):
        start(tmp_path, pool)
