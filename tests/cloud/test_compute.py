"""A cluster that is not there; one that is, tests/emulate/workers/test_cluster.py starts."""

import os
import socket
from typing import Any

import numpy as np
import pytest
from tests.fleet import always

from sedge_cloud.algorithms import collaboration
from sedge_cloud.algorithms.collaboration import overlaps
from sedge_cloud.compute import ComputeConfig, RayCompute, connected_ray
from sedge_protocol.errors import ConfigError


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.compute.find_spec", always(None))
    for asked in (lambda: connected_ray("local", "compute.ray", 2), ComputeConfig("local").compute):
        with pytest.raises(ConfigError, match=r"compute.ray 'local' needs Ray, .*-fl\[scale\]'"):
            asked()


def test_an_address_where_nothing_answers() -> None:
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        for found in (address, "nonsense", "host:port"):
            with pytest.raises(ConfigError, match=f"--ray: found '{found}', expected local, or"):
                connected_ray(found, "--ray", 2)


def test_without_its_cluster_a_coordinator_works_alone(caplog: pytest.LogCaptureFixture) -> None:
    compute = ComputeConfig("nonsense").compute()
    assert list(compute.map(pow, 2, range(5))) == [1, 2, 4, 8, 16]
    assert "compute.ray: found 'nonsense'" in caplog.text
    assert "this process does the work alone" in caplog.text


class _Ray:
    """A cluster that does ``pow``, and fails at one step."""

    def __init__(self, fails: str) -> None:
        self._fails = fails

    def _step(self, name: str, given: Any) -> Any:
        if name == self._fails:
            raise ConnectionError("the cluster is gone\nand more about it")
        return given

    def remote(self, *given: Any, num_cpus: int = 0) -> Any:
        return self._step("remote", pow(*given)) if given else self._task

    def _task(self, function: object) -> "_Ray":
        return self

    def put(self, shared: Any) -> Any:
        return self._step("put", shared)

    def get(self, ref: Any) -> Any:
        return self._step("get", ref)

    def cluster_resources(self) -> Any:
        return self._step("cluster_resources", {"CPU": 1.0})

    def shutdown(self) -> None:
        """It was joined for this task alone."""


@pytest.mark.parametrize("fails", ["put", "remote", "cluster_resources", "get"])
def test_whatever_ray_fails_at_the_coordinator_does_and_says_so_once(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sedge_cloud.compute.connected_ray", always(_Ray(fails)))
    assert list(RayCompute("local").map(pow, 2, range(6))) == [1, 2, 4, 8, 16, 32]
    (said,) = caplog.messages
    assert said == "Ray: ConnectionError: the cluster is gone; this process does the work"


@pytest.mark.slow
def test_a_task_that_fails_on_rays_worker_is_done_here(caplog: pytest.LogCaptureFixture) -> None:
    def odd_worker(here: int, one: int) -> int:
        if os.getpid() != here and one % 2:
            raise OSError("no such library here")
        return one

    assert list(RayCompute("local").map(odd_worker, os.getpid(), range(4))) == [0, 1, 2, 3]
    assert caplog.messages == ["Ray: OSError: no such library here; this process does the work"]


@pytest.mark.slow
def test_overlaps_on_ray_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaboration, "_LARGE", 0)
    rng = np.random.default_rng(0)
    masks = [rng.integers(0, 2**63, 700, np.uint64) for _ in range(70)]
    alone = overlaps(masks)
    assert len(set(alone.flat)) > 100
    assert overlaps(masks, ComputeConfig("local").compute()).tobytes() == alone.tobytes()
