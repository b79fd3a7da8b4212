"""A cluster that is not there; one that is, tests/emulate/workers/test_cluster.py starts."""

import socket
import sys
from types import SimpleNamespace

import pytest

from sedge_cloud.compute import connected_ray
from sedge_protocol.errors import ConfigError


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"--ray: found 'local', .*'sedge-fl\[scale\]'"):
        connected_ray("local", "--ray", 2)


def test_an_address_where_nothing_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    with socket.socket() as held:  # bound, but nobody listens
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        for found in (address, "nonsense", "host:port"):
            with pytest.raises(ConfigError, match=f"--ray: found '{found}', expected local, or"):
                connected_ray(found, "--ray", 2)
