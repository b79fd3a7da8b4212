"""Ray, where a run or an emulation names a cluster: connected, or refused in one line.

Nothing here imports Ray before it is asked for: it is in the extra ``scale``.
"""

import logging
import os
import socket
from types import ModuleType
from typing import Any

from sedge_protocol.errors import ConfigError

LOCAL = "local"
# How long a cluster's address may take to accept a connection; Ray itself would try for minutes.
_REACH_S = 5.0


def connected_ray(address: str, key: str, processors: int) -> ModuleType:
    """Ray, connected to the cluster at ``address`` (host:port), or to one of this process's own: "local".

    ``processors`` is the size of the latter, and ``key`` what named the address. Raises ``ConfigError``
    without Ray, for an address where nothing answers, and for a cluster with another Ray or Python.
    """
    # Ray reports its use to its makers unless told otherwise; so does a cluster that it starts.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as exc:
        expected = "Ray, which it needs: pip install 'sedge-fl[scale]'"
        raise ConfigError(key, address, expected) from exc
    own: dict[str, Any] = {"num_cpus": processors, "include_dashboard": False}
    if address != LOCAL:
        own = {}
        _reach(address, key)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (RuntimeError, ConnectionError, ValueError) as exc:
        # A cluster with another Ray or Python is told over several lines.
        expected = f"a Ray cluster that takes this process ({' '.join(str(exc).split())})"
        raise ConfigError(key, address, expected) from exc
    return ray


def _reach(address: str, key: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except (OSError, ValueError, OverflowError) as exc:
        expected = f"{LOCAL}, or the host:port of a Ray cluster ({exc})"
        raise ConfigError(key, address, expected) from exc
