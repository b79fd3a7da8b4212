"""Brings a fleet to the middle of a round, where a fault can be injected."""

import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from tools.bench.parts.servers import Servers
from tools.bench.three_hosts.fleet import Fleet
from tools.bench.three_hosts.network import Network
from tools.bench.three_hosts.watch import Watch, wait_for

from sedge_protocol.wire.topics import shard_of

# The name of the lease that the leader holds. A shard's lease has the shard's name.
LEADER = "leader"
PATIENCE_S = 180.0


class Scene:
    """A fleet, its servers, and a ``Watch`` on its database. ``rng`` chooses moments and victims."""

    def __init__(
        self, network: Network, servers: Servers, folder: Path, hosts: tuple[str, ...], devices: int,
        seed: int,
    ) -> None:  # fmt: skip
        self.network, self.servers = network, servers
        self.rng = np.random.default_rng(seed)
        self.fleet = Fleet(network, folder, hosts, servers, devices)
        self._stack = ExitStack()
        self._stack.callback(self.fleet.close)
        self.devices = frozenset(
            home.name for home in (folder / "devices").iterdir() if home.is_dir()
        )
        self.watch = Watch(self.fleet.config.store.url or "")
        self._stack.callback(self.watch.close)

    def begin(self, bundle: Path) -> None:
        """Start every part of the fleet, then both runs."""
        self.fleet.start_all()
        self.fleet.begin(bundle)

    def reach_the_middle(self) -> None:
        """Wait until each run has closed a round and some updates of the next round have arrived."""
        wait_for(lambda: self.watch.closed() >= 1, PATIENCE_S, "a round of each run closes")
        seen = len(self.watch.accepted)
        more = int(self.rng.integers(1, 2 * len(self.devices)))
        wait_for(
            lambda: len(self.watch.accepted) >= seen + more, PATIENCE_S, f"{more} updates come"
        )
        time.sleep(float(self.rng.uniform(0, 0.3)))

    def go_on(self, rounds: int = 2) -> None:
        """Wait until each run has closed this many more rounds."""
        goal = self.watch.closed() + rounds
        wait_for(
            lambda: self.watch.closed() >= goal, PATIENCE_S, f"round {goal} of each run closes"
        )

    def served_by(self, host: str) -> frozenset[str]:
        """Return the devices whose shards a host holds, or all devices if it is the only host."""
        if len(self.fleet.hosts) == 1:
            return self.devices
        holders = self.watch.holders()
        return frozenset(d for d in self.devices if holders.get(shard_of(d)) == host)

    def leader(self) -> str:
        """Return the host whose coordinator leads."""
        return self.fleet.hosts[0] if len(self.fleet.hosts) == 1 else self.watch.holders()[LEADER]

    def follower(self) -> str:
        """Return a random host whose coordinator does not lead, or the only host."""
        others = [host for host in self.fleet.hosts if host != self.leader()]
        return str(self.rng.choice(others or self.fleet.hosts))

    def any_host(self) -> str:
        """Return a random host."""
        return str(self.rng.choice(self.fleet.hosts))

    def close(self) -> None:
        """Kill the fleet's processes and stop the watch. The servers keep running."""
        self._stack.close()
