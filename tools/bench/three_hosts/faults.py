"""The faults. Each function injects a fault, undoes it, and returns the affected devices.

``Victims.since`` is when an update could be accepted again: the start of the fault if other hosts take
over, the return of a shared server if none can, or the first restart if every process was killed.
"""

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tools.bench.three_hosts.fleet import AGENTS, BROKER, OBJECTS
from tools.bench.three_hosts.scene import Scene

# A failed host returns after this long. By then its lease has expired, and other hosts have taken over.
REPLACED_S = 20.0
CUT_S = 60.0
PAUSED_S = 30.0
# How long a killed server stays down.
SERVER_S = 10.0
OBJECTS_S = 20.0


@dataclass(frozen=True)
class Victims:
    """The devices whose next update is awaited, and the time since which one can be accepted."""

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
    """Kill the coordinator that leads. It is restarted later."""
    return _killed(scene, scene.leader())


def ingest_killed(scene: Scene) -> Victims:
    """Kill a coordinator that does not lead. It is restarted later."""
    return _killed(scene, scene.follower())


def host_cut_off(scene: Scene) -> Victims:
    """Drop all packets to and from a host for a minute, without any error."""
    host = scene.any_host()
    found = Victims(time.monotonic(), scene.served_by(host))
    scene.network.cut(host)
    time.sleep(CUT_S)
    scene.network.heal(host)
    return found if len(scene.fleet.hosts) > 1 else _all(scene)


def process_paused(scene: Scene) -> Victims:
    """Pause a coordinator until its leases have expired, then let it continue where it was."""
    host = scene.any_host()
    found = Victims(time.monotonic(), scene.served_by(host))
    scene.fleet.processes[host].send(signal.SIGSTOP)
    time.sleep(PAUSED_S)
    scene.fleet.processes[host].send(signal.SIGCONT)
    return found if len(scene.fleet.hosts) > 1 else _all(scene)


def database_killed(scene: Scene) -> Victims:
    """Kill PostgreSQL and restart it."""
    scene.servers.postgres.stop()
    time.sleep(SERVER_S)
    scene.servers.postgres.start()
    return _all(scene)


def objects_unreachable(scene: Scene) -> Victims:
    """Drop all packets to and from the object store for a while, without any error."""
    scene.network.cut(OBJECTS)
    time.sleep(OBJECTS_S)
    scene.network.heal(OBJECTS)
    return _all(scene)


def broker_restarted(scene: Scene) -> Victims:
    """Kill the broker and restart it without its state."""
    scene.fleet.kill(BROKER)
    time.sleep(SERVER_S)
    scene.fleet.start(BROKER)
    return _all(scene)


def all_at_once(scene: Scene) -> Victims:
    """Kill every process on every host at once, and restart them in random order."""
    for name in (*scene.fleet.hosts, AGENTS, BROKER):
        scene.fleet.kill(name)
    scene.servers.postgres.stop()
    scene.servers.objects.stop()
    names = (*scene.fleet.hosts, AGENTS, BROKER)
    parts: list[Callable[[], None]] = [scene.servers.postgres.start, scene.servers.objects.start]
    parts += [partial(scene.fleet.start, name) for name in names]
    # ``since`` is taken before the first restart, so that recovery includes the start of every part.
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
