"""The faults. Each ends with everything restored, and says where to look.

``Victims.since`` is when an update could be accepted again: when the fault began if others carry on, when
the shared server was back if nobody can, or when the first part was restarted if all were gone. ``devices``
are those that the fault affected.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tools.bench.three_hosts.fleet import AGENTS, BROKER, OBJECTS
from tools.bench.three_hosts.scene import Scene

# A host that has failed for good is replaced by others after this long, and comes back later.
REPLACED_S = 20.0
CUT_S = 60.0
PAUSED_S = 30.0
# The downtime of a server that somebody restarts.
SERVER_S = 10.0
OBJECTS_S = 20.0


@dataclass(frozen=True)
class Victims:
    """Where to look for the next update."""

    since: float
    devices: frozenset[str]


def _all(scene: Scene) -> Victims:
    return Victims(time.monotonic(), scene.devices)


def _killed(scene: Scene, host: str) -> Victims:
    devices = scene.served_by(host)
    scene.fleet.kill(host)
    found = Victims(time.monotonic(), devices)
    if len(scene.fleet.hosts) > 1:
        time.sleep(REPLACED_S)
    scene.fleet.start(host)
    return found


def leader_killed(scene: Scene) -> Victims:
    """The coordinator that leads dies; its host comes back later."""
    return _killed(scene, scene.leader())


def ingest_killed(scene: Scene) -> Victims:
    """A coordinator that does not lead dies; its host comes back later."""
    return _killed(scene, scene.follower())


def host_cut_off(scene: Scene) -> Victims:
    """Nothing reaches a host for a minute, without any notice."""
    host = scene.any_host()
    found = Victims(time.monotonic(), scene.served_by(host))
    scene.network.cut(host)
    time.sleep(CUT_S)
    scene.network.heal(host)
    return found if len(scene.fleet.hosts) > 1 else _all(scene)


def process_paused(scene: Scene) -> Victims:
    """A coordinator sleeps until its leases have expired, and wakes in the middle of its work."""
    host = scene.any_host()
    found = Victims(time.monotonic(), scene.served_by(host))
    scene.fleet.processes[host].send(signal.SIGSTOP)
    time.sleep(PAUSED_S)
    scene.fleet.processes[host].send(signal.SIGCONT)
    return found if len(scene.fleet.hosts) > 1 else _all(scene)


def database_killed(scene: Scene) -> Victims:
    """PostgreSQL dies and is restarted."""
    scene.servers.postgres.stop()
    time.sleep(SERVER_S)
    scene.servers.postgres.start()
    return _all(scene)


def objects_unreachable(scene: Scene) -> Victims:
    """Nothing reaches the object store for a while, without any notice."""
    scene.network.cut(OBJECTS)
    time.sleep(OBJECTS_S)
    scene.network.heal(OBJECTS)
    return _all(scene)


def broker_restarted(scene: Scene) -> Victims:
    """The broker dies and comes back without its state."""
    scene.fleet.kill(BROKER)
    time.sleep(SERVER_S)
    scene.fleet.start(BROKER)
    return _all(scene)


def all_at_once(scene: Scene) -> Victims:
    """Every process on every machine dies at once; all come back in random order."""
    for name in (*scene.fleet.hosts, AGENTS, BROKER):
        scene.fleet.kill(name)
    scene.servers.postgres.stop()
    scene.servers.objects.stop()
    names = (*scene.fleet.hosts, AGENTS, BROKER)
    parts: list[Callable[[], None]] = [scene.servers.postgres.start, scene.servers.objects.start]
    parts += [partial(scene.fleet.start, name) for name in names]
    # Before the first is back: the time to continue includes the start of every part.
    victims = _all(scene)
    for place in scene.rng.permutation(len(parts)):
        parts[place]()
    return victims


FAULTS: dict[str, Callable[[Scene], Victims]] = {
    fault.__name__.replace("_", "-"): fault
    for fault in (
        leader_killed, ingest_killed, host_cut_off, process_paused, database_killed, objects_unreachable,
        broker_restarted, all_at_once,
    )
}  # fmt: skip
