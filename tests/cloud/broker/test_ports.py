"""A port of one's own, and waiting for a server."""

import socket

import pytest

from sedge_cloud.broker.ports import on_free_port, wait_until_accepting
from sedge_protocol.errors import LinkError


def test_another_port_is_tried_where_one_is_taken() -> None:
    tried: list[int] = []

    def start(port: int) -> None:
        tried.append(port)
        if len(tried) < 3:
            raise LinkError("taken")

    assert on_free_port(start) == tried[2]

    def never(port: int) -> None:
        tried.append(port)
        raise LinkError(f"taken: {port}")

    tried.clear()
    with pytest.raises(LinkError, match="taken"):
        on_free_port(never)
    assert len(tried) == 5


def test_waiting_for_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        wait_until_accepting("127.0.0.1", port, 5, lambda: True)
        # A stranger on our port must not pass for a server of ours that has ended.
        with pytest.raises(LinkError, match="exited while starting"):
            wait_until_accepting("127.0.0.1", port, 5, lambda: False)
    with pytest.raises(LinkError, match="still accepts no connections"):
        wait_until_accepting("127.0.0.1", port, 0.05, lambda: True)
