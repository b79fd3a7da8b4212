"""Connects to the Ray cluster that ``--ray`` names, or reports why it cannot.

Ray is imported only when it is needed, as it belongs to the optional extra ``ray``.
"""

import logging
import os
import signal
import socket
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from sedge_protocol.errors import ConfigError, NotInstalled

KEY = "--ray"
LOCAL = "local"
# How long to wait for a cluster's address to accept a connection; Ray itself would try for minutes.
_REACH_S = 5.0


def connected_ray(address: str, processors: int) -> ModuleType:
    """Returns Ray, connected to the cluster at ``address`` (host:port), or to a new local one for "local".

    ``processors`` is the size of a local cluster. Raises ``ConfigError`` if Ray is not installed, if
    nothing answers at the address, and for a cluster with another version of Ray or Python.
    """
    # Ray, and a cluster that it starts, report usage to Ray's makers unless told otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if find_spec("ray") is None:
        raise NotInstalled(f"{KEY} {address!r}", "Ray", "ray")
    own: dict[str, Any] = {"num_cpus": processors, "include_dashboard": False}
    if address != LOCAL:
        own = {}
        _reach(address)
    import ray
    from ray.exceptions import RayError

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (RuntimeError, OSError, ValueError, RayError) as exc:
        # Joined into one line, as Ray's error about a wrong version of Ray or Python spans several.
        expected = f"a Ray cluster that takes this process ({' '.join(str(exc).split())})"
        raise ConfigError(KEY, address, expected) from exc
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray has replaced the handler
    return ray


def _reach(address: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except (OSError, ValueError, OverflowError) as exc:
        expected = f"{LOCAL}, or the host:port of a Ray cluster ({exc})"
        raise ConfigError(KEY, address, expected) from exc
