"""A cluster that is not there; one that is, tests/emulate/workers/test_cluster.py starts."""

import socket

import numpy as np
import pytest

from sedge_cloud.algorithms import collaboration
from sedge_cloud.algorithms.collaboration import overlaps
from sedge_cloud.compute import ComputeConfig, connected_ray
from sedge_protocol.errors import ConfigError


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> None:
        return None

    monkeypatch.setattr("sedge_cloud.compute.find_spec", nothing)
    for asked in (
        lambda: connected_ray("local", "compute.ray", 2),
        ComputeConfig("local").compute,
    ):
        with pytest.raises(ConfigError, match=r"compute.ray: found 'local', .*'sedge-fl\[scale\]'"):
            asked()


def test_an_address_where_nothing_answers() -> None:
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        for found in (address, "nonsense", "host:port"):
            with pytest.raises(ConfigError, match=f"--ray: found '{found}', expected local, or"):
                connected_ray(found, "--ray", 2)


def test_without_its_cluster_a_coordinator_works_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    compute = ComputeConfig("nonsense").compute()
    assert list(compute.map(pow, 2, range(5))) == [1, 2, 4, 8, 16]
    assert "compute.ray: found 'nonsense'" in caplog.text
    assert "this process does it alone" in caplog.text


@pytest.mark.slow
def test_overlaps_on_ray_are_those_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collaboration, "_LARGE", 0)
    rng = np.random.default_rng(0)
    masks = [rng.integers(0, 2**63, 700, np.uint64) for _ in range(70)]
    alone = overlaps(masks)
    assert len(set(alone.flat)) > 100
    assert overlaps(masks, ComputeConfig("local").compute()).tobytes() == alone.tobytes()
