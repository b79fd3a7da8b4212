"""Connects to the Ray cluster named by a coordinator or an emulation, or reports why it cannot.

Ray is imported only when it is needed, as it belongs to the optional extra ``scale``.
"""

import logging
import os
import signal
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from sedge_cloud.algorithms.slices import IN_PLACE, Compute
from sedge_protocol.errors import ConfigError, NotInstalled

LOCAL = "local"
# The key in cloud.toml that names the cluster.
KEY = "compute.ray"
# How long to wait for a cluster's address to accept a connection; Ray itself would try for minutes.
_REACH_S = 5.0


def connected_ray(address: str, key: str, processors: int) -> ModuleType:
    """Return Ray, connected to the cluster at ``address`` (host:port), or to a new local one for "local".

    ``processors`` is the size of a local cluster, and ``key`` the setting that named the address. Raises
    ``ConfigError`` if Ray is not installed, if nothing answers at the address, or if the cluster has
    another version of Ray or Python.
    """
    # Ray, and a cluster that it starts, report usage to Ray's makers unless told otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    require_ray(address, key)
    own: dict[str, Any] = {"num_cpus": processors, "include_dashboard": False}
    if address != LOCAL:
        own = {}
        _reach(address, key)
    import ray
    from ray.exceptions import RayError

    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (RuntimeError, OSError, ValueError, RayError) as exc:
        # Ray's error about a wrong version of Ray or Python spans several lines; join them.
        expected = f"a Ray cluster that accepts this process ({' '.join(str(exc).split())})"
        raise ConfigError(key, address, expected) from exc
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray has replaced the handler
    return ray


def require_ray(address: str, key: str) -> None:
    """Raise ``ConfigError``, which says what to install, if Ray is missing."""
    if find_spec("ray") is None:
        raise NotInstalled(f"{key} {address!r}", "Ray", "scale")


def _reach(address: str, key: str) -> None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except (OSError, ValueError, OverflowError) as exc:
        expected = f"{LOCAL}, or the host:port of a Ray cluster ({exc})"
        raise ConfigError(key, address, expected) from exc


S = TypeVar("S")
T = TypeVar("T")
R = TypeVar("R")


class ComputeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[compute]: a cluster that speeds up comparing devices in rounds with thousands of them.

    Only FedCAC and FedPURIN compare devices. To install Ray: pip install 'sedge-fl[scale]'.
    """

    ray: Annotated[str, Meta(min_length=1)] | None = None
    """Ray cluster that this host belongs to, as host:port, or ``local`` to start one; by default, none is
    used."""

    def compute(self) -> Compute:
        """Return the ``Compute`` to use. Raises ``ConfigError`` if Ray is configured but missing."""
        if self.ray is None:
            return IN_PLACE
        require_ray(self.ray, KEY)
        return RayCompute(self.ray)


class RayCompute:
    """Computes slices on the processors of a cluster.

    It connects for each task separately, so the coordinator does not depend on the cluster between tasks.
    """

    def __init__(self, address: str) -> None:
        self._address = address

    def map(self, function: Callable[[S, T], R], shared: S, slices: Iterable[T]) -> Iterator[R]:
        """Yield ``function(shared, slice)`` per slice, in order; computed here if the cluster is gone."""
        try:
            ray = connected_ray(self._address, KEY, os.cpu_count() or 1)
        except ConfigError as exc:
            logging.getLogger("sedge.cloud").warning("%s; this process does the work alone", exc)
            yield from IN_PLACE.map(function, shared, slices)
            return
        try:
            yield from _mapped(ray, function, shared, slices)
        finally:
            ray.shutdown()


def _mapped(
    ray: ModuleType, function: Callable[[S, T], R], shared: S, slices: Iterable[T]
) -> Iterator[R]:
    """Compute one slice per processor at a time, with as many again queued.

    A slice that fails in Ray is computed again in this process, which also raises any error of ``function``
    itself.
    """
    pending: deque[tuple[T, Any]] = deque()
    is_warned = False

    def attempt(step: Callable[..., Any], *given: object) -> Any:
        """Return the result of a call to Ray, or None if the call raises anything."""
        nonlocal is_warned
        try:
            return step(*given)
        except Exception as exc:
            if not is_warned:
                text = _line(exc)
                logging.getLogger("sedge.cloud").warning(
                    "Ray: %s; this process does the work", text
                )
                is_warned = True
            return None

    def first() -> R:
        one, ref = pending.popleft()
        found = None if ref is None else attempt(lambda: [ray.get(ref)])
        done: R = function(shared, one) if found is None else found[0]
        return done

    task, placed = ray.remote(num_cpus=1)(function), attempt(ray.put, shared)
    resources: dict[str, float] = attempt(ray.cluster_resources) or {}
    at_once = 2 * int(resources.get("CPU", 0))
    for one in slices:
        pending.append((one, None if placed is None else attempt(task.remote, placed, one)))
        if len(pending) > at_once:
            yield first()
    while pending:
        yield first()


def _line(error: Exception) -> str:
    """Return the first line of an error. For a task's error, which has a long trace, use its cause."""
    cause = getattr(error, "cause", None) or error
    return f"{type(cause).__name__}: {str(cause).strip().split(chr(10))[0]}"
