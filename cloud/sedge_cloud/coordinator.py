"""The coordinator: runs ingest and leader in one process, single-threaded over a durable store.

Its methods take frames and the time, and return effects. Whatever an effect mentions is already in the
store, and a store method returns only once its write is durable. The process can therefore be killed
between any two effects and restart from the store alone. It then loses the byte counts of open rounds
(ingest/traffic.py), changes to sessions in the last second (recorder.py), counters, token buckets and
mutes. It also loses updates accepted in the current turn, which devices offer again, and download queues,
which devices fill again.

ingest.py handles frames and leader.py handles rounds; this module passes their hints (hints.py) to each
other. If several processes serve a fleet, each has an ingest for its shards, and one of them has the
leader. When a process changes rows, the others are notified and reload them.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from sedge_cloud.algorithms.slices import IN_PLACE, Compute
from sedge_cloud.clocks import Wall, as_it_is
from sedge_cloud.config import KeepConfig
from sedge_cloud.disk_errors import DISK_RETRY_S, disk_error
from sedge_cloud.events import CloudEffect
from sedge_cloud.hints import Answered, Declined, Hint, Lacking, LeftOut, ToIngest, ToLeader
from sedge_cloud.ingest.ingest import Ingest
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_cloud.outage import RETURN_S
from sedge_cloud.processes.signals import Changed, Signal
from sedge_cloud.rounds.cohort import Draw, draw_cohort
from sedge_cloud.rounds.elsewhere import Everywhere, MeterEverywhere
from sedge_cloud.rounds.leader import Leader
from sedge_cloud.rounds.lifecycle import OpenRound
from sedge_cloud.rounds.reach import Reach, TrafficMeter
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.manifests import Manifests
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.cache import Memory
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RunRow, TrafficRow
from sedge_protocol.errors import FrameError, StorageError
from sedge_protocol.wire.frame import MAX_PACKET_BYTES, VERSIONS
from sedge_protocol.wire.topics import shard_of


class Coordinator:
    """One fleet's coordinator, without network or timers. ``draw`` selects a round's devices.

    ``versions`` are the protocol versions that it speaks, ``keep`` says how much to keep from runs that
    have ended, ``memory`` bounds its caches, and ``wall`` converts loop time to wall-clock time. By default
    it serves all shards and leads. If ``shared``, ``take`` sets its shards and whether it leads.

    ``signals`` holds the messages to send to other processes.
    """

    def __init__(
        self,
        fleet: str,
        store: Store,
        gather_s: float,
        incarnation: int,
        draw: Draw = draw_cohort,
        versions: Sequence[int] = VERSIONS,
        keep: KeepConfig | None = None,
        memory: Memory | None = None,
        wall: Wall = as_it_is,
        shared: bool = False,
        compute: Compute = IN_PLACE,
    ) -> None:
        self.fleet = fleet
        self.store = store
        self.run_store = RunStore(store, memory, compute)
        self.garbage = Garbage(store, keep)
        self.counters: Counter[str] = Counter()
        self.signals: list[Signal] = []
        self._draw, self._shared = draw, shared
        self._manifests = manifests = Manifests(store.blobs, self.run_store.memory)
        self.ingest = Ingest(
            fleet, self.run_store, manifests, gather_s, store.next_incarnation(incarnation), versions,
            self.counters, wall,
        )  # fmt: skip
        self._wall = wall
        self._everywhere: Everywhere | None = None
        self._leader = None if shared else self._new_leader(self.devices, self.ingest.traffic)
        if shared:
            self.devices.lose(self.devices.shards)
            self.ingest.broadcast.is_here = False
        # The time at which the previous process was last known to be alive.
        self._heard_at = store.coordinator().heard
        # What was loaded last: the store's version, and what this process changes by itself.
        self._version: tuple[int, ...] | None = None
        self._load_at = 0.0

    @property
    def devices(self) -> DeviceRegistry:
        """Return the devices that belong to this process."""
        return self.ingest.devices

    @property
    def runs(self) -> dict[str, Run]:
        """Return all loaded runs, by name."""
        return {} if self._leader is None else self._leader.runs

    @property
    def open(self) -> dict[str, OpenRound]:
        """Return the open rounds, by run."""
        return {} if self._leader is None else self._leader.open

    def load(self, now: float) -> list[CloudEffect]:
        """Load devices and runs from the store: at startup, and whenever another process has changed them.

        Also load them when a device has left the fleet or an old run was deleted, as rounds may be open.

        Raises ``StorageError`` when the store cannot be read at startup; a later failure is retried.
        """
        effects: list[CloudEffect] = []
        if now < self._load_at:
            return effects
        try:
            version = self.store.version(), self.store.enrolment(), self.garbage.deleted_runs
            if version != self._version:
                runs = self.store.runs()
                effects += self._passed_on(self.ingest.load(runs, now), now)
                if self._leader is None:
                    effects += self._passed_on(self.ingest.load_orders(now), now)
                else:
                    effects += self._lead(self._leader, runs, now)
                self._version = version
        except StorageError as exc:
            if self._version is None:
                raise
            self._load_at = now + DISK_RETRY_S
            effects.append(disk_error(self.counters, exc))
        return effects

    def listen(self, shards: frozenset[str], now: float) -> set[str]:
        """Set the shards whose frames this process receives.

        Returns the topics to subscribe to when connecting.
        """
        self.ingest.muting.listen(shards, now)
        return self.ingest.muting.wildcards()

    def traffic_for_leader(self) -> list[TrafficRow]:
        """Return this process's byte counts for devices in open rounds, if another process leads."""
        rows = list[TrafficRow]()
        for current in self.ingest.open.rounds() if self._leader is None else ():
            names = [name for name in current.orders if self._is_ours(name)]
            moved, _ = self.ingest.traffic.of_round(current.row.run, current.row.round, names)
            rows += (row for row in moved if self._is_ours(row.device) and (row.up or row.down))
        return rows

    def take(self, shards: frozenset[str], leads: bool, now: float) -> list[CloudEffect]:
        """Set the shards to serve, and whether to lead. Raises ``StorageError``."""
        effects = self._passed_on(self.ingest.take(shards, now), now)
        if leads != (self._leader is not None):
            self._leader = self._everywhere = None
            self.ingest.broadcast.is_here = leads
            if leads:
                self._everywhere = Everywhere(self.devices, self.store, self._is_ours)
                meter = MeterEverywhere(self.ingest.traffic, self.store, self._is_ours)
                self._leader = self._new_leader(self._everywhere, meter)
                self._leader.connected(now + RETURN_S)
        self._version, self._load_at = None if self._version is None else (), 0.0
        return effects + self.load(now)

    def connected(self, now: float, max_packet: int = MAX_PACKET_BYTES) -> list[CloudEffect]:
        """Handle a new connection to a broker that relays MQTT packets of up to ``max_packet`` bytes."""
        silent_s = self._wall(now) - (self._heard_at or self._wall(now))
        effects = self.ingest.connected(now, silent_s, max_packet)
        if self._leader is not None:
            self._leader.connected(self.ingest.outage.back_at)
        return self._passed_on(effects, now)

    def disconnected(self, now: float) -> None:
        """Handle the loss of the connection: every device is offline until its next hello."""
        self.ingest.disconnected(now)
        if self._leader is not None:
            self._leader.disconnected()

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        due = self.ingest.timer(), None if self._leader is None else self._leader.timer()
        return min((at for at in due if at is not None), default=None)

    def poll(self, now: float, room: int) -> list[CloudEffect]:
        """Perform everything that is due, sending at most ``room`` chunks."""
        effects = self._passed_on(self.ingest.poll(now), now)
        if self._leader is not None:
            effects += self._passed_on(self._leader.poll(now), now)
        return effects + self._passed_on(self.ingest.serve(now, room), now)

    def admits(self, topic: str, payload: bytes, now: float) -> bool:
        """Return True if a frame is to be processed. Call it exactly once per frame."""
        return self.ingest.admits(topic, payload, now)

    def receive(self, topic: str, payload: bytes, now: float) -> list[CloudEffect]:
        """Process an admitted frame."""
        return self._passed_on(self.ingest.receive(topic, payload, now), now)

    def commit(self, now: float) -> list[CloudEffect]:
        """End a turn: store the updates that ``receive`` accepted, and only then send the answers."""
        return self._passed_on(self.ingest.commit(now), now)

    def _new_leader(self, devices: Reach, traffic: TrafficMeter) -> Leader:
        return Leader(
            self.run_store, self.garbage, self._manifests, devices, traffic, self.counters, self._draw,
            self._wall,
        )  # fmt: skip

    def _lead(self, leader: Leader, runs: Sequence[RunRow], now: float) -> list[CloudEffect]:
        """Have the leader load the runs, and the answers and online devices recorded by other processes."""
        effects = list[CloudEffect]()
        for hint in self._everywhere.load() if self._everywhere is not None else ():
            effects += self._passed_on(leader.hear(hint, now), now)
        return effects + self._passed_on(leader.load(runs, now), now)

    def _is_ours(self, device: str) -> bool:
        return shard_of(device) in self.devices.shards

    def wanted(self, asker: int, lacking: Lacking, now: float) -> list[CloudEffect]:
        """Queue chunks of a broadcast blob that another process's devices lack."""
        try:
            self.ingest.broadcast.want(f"process {asker}", lacking, now)
        except StorageError as exc:
            return [disk_error(self.counters, exc)]
        except FrameError:
            self.counters["refused"] += 1
        return []

    def left_out(self, hint: LeftOut, now: float) -> list[CloudEffect]:
        """Handle a message from a leader in another process: a device lacks features that a run needs."""
        try:
            return self._passed_on(self.ingest.hear(hint, now), now)
        except StorageError as exc:
            return [disk_error(self.counters, exc)]

    def _tell(self, hint: Hint) -> None:
        """Queue a signal to other processes that rows have changed, or that a device lacks features."""
        if isinstance(hint, Lacking | LeftOut):
            if isinstance(hint, Lacking) or not self._is_ours(hint.device):
                self.signals.append(hint)
        elif self._shared and self._is_news(hint) and Changed() not in self.signals:
            self.signals.append(Changed())

    def _is_news(self, hint: Hint) -> bool:
        """Return True if other processes must be told about this hint now.

        An answer is news only if it is the last one that this process was waiting for.
        """
        if not isinstance(hint, Answered | Declined):
            return True
        current = self.ingest.open.round(hint.run)
        return current is None or not current.present - current.excused

    def _passed_on(self, found: Iterable[CloudEffect | Hint], now: float) -> list[CloudEffect]:
        """Pass on the hints in ``found``. Returns its effects, and the effects that the hints cause."""
        effects: list[CloudEffect] = []
        for one in found:
            if isinstance(one, ToLeader):
                if self._leader is not None:
                    effects += self._passed_on(self._leader.hear(one, now), now)
                else:
                    self._tell(one)
            elif isinstance(one, Lacking):
                self._tell(one)
            elif isinstance(one, ToIngest):
                self._tell(one)
                effects += self._passed_on(self.ingest.hear(one, now), now)
            else:
                effects.append(one)
        return effects
