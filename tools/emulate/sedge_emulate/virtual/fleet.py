"""Runs one strategy in virtual time, with the real cores, an in-memory broker and training processes.

The whole run is a function of its description and keeps no state of its own. If it is killed at any
point and replayed, it finds the finished jobs in the cache, and its result is the same, byte for byte.
"""

import gc
import hashlib
import logging
import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import msgspec

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import CloudEffect, Event
from sedge_cloud.rounds.cohort import Draw, draw_cohort
from sedge_cloud.store.opening import open_folder
from sedge_edge.agent import Identity
from sedge_edge.training.examples import holdout_size
from sedge_emulate.data.shares import Shares
from sedge_emulate.emulation import StrategyRun, budget_of
from sedge_emulate.virtual.clock import Alarm, Clock
from sedge_emulate.virtual.device import VirtualDevice, World
from sedge_emulate.virtual.disk import HostDisk
from sedge_emulate.virtual.link import MemoryBroker
from sedge_emulate.virtual.plan import Plan
from sedge_emulate.virtual.result_cache import ResultCache
from sedge_emulate.watch import Totals, Watch
from sedge_emulate.workers.pool import WorkerPool
from sedge_protocol.errors import LinkError
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.effects import Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Order

# The coordinator waits this long for more devices to request a blob before it sends the blob.
GATHER_S = 0.5
# How many chunks the coordinator may send at once. The plan limits the rate of each device's link.
ROOM = 1024
# A run in which nothing happens for this many deadlines is considered stuck.
SILENT_DEADLINES = 100


class VirtualCloud:
    """Runs the coordinator core on the virtual clock. ``observe`` is called with every event."""

    def __init__(self, clock: Clock, core: Coordinator, observe: Callable[[Event], None]) -> None:
        self.core = core
        self.broker = MemoryBroker(clock, core.fleet, self._receive)
        self._clock = clock
        self._observe = observe
        self._alarm = Alarm(clock, self._poll)
        self._log = logging.getLogger("sedge.cloud")

    def start(self) -> None:
        """Load the coordinator's state from the store, and connect it."""
        self._do(self.core.load(self._clock.now))
        self._do(self.core.connected(self._clock.now))
        self._alarm.set(self._clock.now)

    def _receive(self, topic: str, frame: bytes) -> None:
        if self.core.admits(topic, frame, self._clock.now):
            self._do(self.core.receive(topic, frame, self._clock.now))
        self._alarm.set(self._clock.now)

    def _poll(self) -> None:
        self._do(self.core.poll(self._clock.now, ROOM))
        self._alarm.set(self.core.timer())

    def _do(self, effects: list[CloudEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self.broker.send_down(effect.topic, effect.payload)
                case Note():
                    self._log.log(effect.level, "%s", effect.text)
                case Subscribe() | Unsubscribe():
                    pass
                case _:
                    self._observe(effect)


class VirtualFleet:
    """A fleet in virtual time, which performs a single run.

    ``name`` is a digest of the data, the trainer and the versions; every job key includes it. ``draw``
    chooses the devices for a round.
    """

    def __init__(
        self,
        strategy_run: StrategyRun,
        bundle: Path,
        shares: Shares,
        plan: Plan,
        pool: WorkerPool,
        name: bytes,
        draw: Draw = draw_cohort,
    ) -> None:
        self.store = open_folder(strategy_run.folder / "cloud", durable=False)
        self._clock = Clock()
        self._strategy_run = strategy_run
        self._run = strategy_run.config
        self._bundle = bundle
        self._shares = shares
        self._plan = plan
        self._pool = pool
        self._home = strategy_run.folder / "disk"
        manifest = load(bundle)[0].manifest
        self._batch_size, self._model_bytes = manifest.batch_size, 4 * manifest.layout.size
        self._name = name
        self._draw = draw
        self._devices: list[VirtualDevice] = []
        self._cloud: VirtualCloud | None = None

    def play(self, watch: Watch) -> None:
        """Play the run from the devices' first power-on to its end.

        Raises ``LinkError`` if nothing has happened for too long, and ``StorageError`` if this host's
        disk is full.
        """
        gc.freeze()  # keeps the garbage collector away from torch's modules
        forms, budget = self._strategy_run.narrower, budget_of(self._run, len(self._shares))
        start_run(self.store, "run", self._bundle, self._run, forms, budget=budget)
        identities = [self._identity(number) for number in range(len(self._shares))]
        core = Coordinator("emulated", self.store, GATHER_S, 1, self._draw)
        cloud = self._cloud = VirtualCloud(self._clock, core, watch.observe)
        cache = ResultCache(self._strategy_run.folder / "cache" / self._cache_name())
        watch.playing_back(cache.ahead)
        disk = HostDisk(self._home, cache.caught_up, self.store.blobs)
        world = World(
            self._clock, cloud.broker, self._pool, cache, disk, self._home, self._name, self._steps,
            self._strategy_run.attack,
        )  # fmt: skip
        self._devices += [
            VirtualDevice(number, identity, self._plan.device(number), world)
            for number, identity in enumerate(identities)
        ]
        cloud.start()
        longest_s = SILENT_DEADLINES * self._run.deadline_s + self._plan.away_s
        looked_s = 0.0
        while not watch.ended:
            is_over = not self._clock.step()
            silent_s = self._clock.now - watch.last_event_s
            if is_over or silent_s > longest_s:
                raise LinkError(
                    f"virtual fleet: nothing has happened for {longest_s:.0f} virtual seconds, with "
                    f"{core.devices.present} of {len(identities)} devices online; see the log (--verbose)"
                )
            if silent_s > self._run.deadline_s and self._clock.now > looked_s:
                self.store.parts.require_room(self._model_bytes)
                looked_s = self._clock.now + self._run.deadline_s
        for device in self._devices:
            device.close()

    def _cache_name(self) -> str:
        """Return the name of the cache folder for these settings.

        Results of different settings must not share a folder: a replay has caught up only once it has
        used every result in it. The number of rounds is left out, so that a run may be continued for more
        rounds.
        """
        settings = msgspec.json.encode(msgspec.structs.replace(self._run, num_rounds=1))
        return hashlib.sha256(self._name + settings).hexdigest()

    def clock(self) -> float:
        """Return the virtual time in seconds."""
        return self._clock.now

    def seen(self, number: int) -> dict[str, object]:
        """Return a device's traffic, reboots, cuts and central test, as fields of a ``DeviceResult``."""
        device = self._devices[number]
        up, down = device.meter.up, device.meter.down
        return {
            "class_name": device.plan.class_name,
            "payload_up": up.payload,
            "overhead_up": up.overhead,
            "resent_up": up.resent,
            "payload_down": down.payload,
            "overhead_down": down.overhead,
            "resent_down": down.resent,
            "reboots": max(0, device.reboots),
            "cuts": device.cuts,
            "central": device.central,
        }

    def totals(self) -> Totals:
        """Return the traffic so far, of each device and of the coordinator."""
        meters = [device.meter for device in self._devices]
        broker = self._cloud.broker if self._cloud else None
        return Totals(
            {
                self._shares.name(number): (meter.up.total, meter.down.total)
                for number, meter in enumerate(meters)
            },
            (broker.cloud_sent, broker.cloud_received) if broker else (0, 0),
            sum(meter.up.payload for meter in meters),
            sum(meter.down.payload for meter in meters),
            sum(meter.up.resent + meter.down.resent for meter in meters),
            {
                self._shares.name(number): (
                    meter.up.messages + meter.down.messages,
                    meter.up.units + meter.down.units,
                )
                for number, meter in enumerate(meters)
            },
        )

    def close(self) -> None:
        """Close the coordinator's store."""
        self.store.close()

    def _identity(self, number: int) -> Identity:
        """Enrol a device and return its identity.

        Nothing needs protection, so its secret is derived from its name.
        """
        device = self._shares.name(number)
        secret = hashlib.sha256(f"emulated/{device}".encode()).digest()
        self.store.add_device(device, secret)
        attack, num_train = self._strategy_run.attack, self._shares.num_train(number)
        hello = msgspec.structs.replace(
            self._strategy_run.hello,
            num_train=attack.config.claimed(number, num_train),
            num_test=self._shares.num_test(number),
            memory_mb=self._plan.device(number).config.memory_mb,
        )
        return Identity(device, "emulated", DeviceKeys.of(secret), hello)

    def _steps(self, number: int, order: Order) -> int:
        """Return how many training steps an order takes on device ``number``; a partial batch is one step.

        Steps of a narrower model count for less, in proportion to its parameters.
        """
        examples = self._shares.num_train(number)
        if order.work.choice is not None:
            examples -= holdout_size(examples, order.work.choice.holdout)
        batches = -(-examples // self._batch_size)
        phases = [order.training, *order.work.then]
        if order.work.own_model is not None and not order.work.own_model.mixes:
            phases.append(order.work.own_model.training)
        steps = batches * sum(phase.local_epochs for phase in phases)
        return math.ceil(steps * self._share(order.bundle.sha256))

    def _share(self, bundle: bytes) -> Fraction:
        """Return the size of a bundle's model as a fraction of the whole model's number of parameters."""
        run = self._cloud.core.runs["run"] if self._cloud else None
        if run is None:
            return Fraction(1)
        sizes = {
            packed.sha256: width.layout.size
            for packed, width in zip(run.bundles, run.widths, strict=True)
        }
        whole = run.manifest.layout.size
        return Fraction(sizes.get(bundle, whole), whole)  # a rollout's bundle has the full layout
