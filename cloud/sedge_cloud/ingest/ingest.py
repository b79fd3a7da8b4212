"""The ingest: handles the frames of its devices, and returns effects and hints.

    hello     -> welcome, and the open orders that the device has yet to answer
    get       -> chunks of a blob; requests are collected briefly and served to the whole fleet at once
    offer     -> the stored receipt | busy | have
    chunk     -> written; after the last one: validated, stored with its receipt -> committed
    decline   -> stored; the round no longer waits for this device
    join      -> the new secret that the device offers is stored (renewing.py)
    goodbye   -> the device is offline

It reads devices with their sessions, runs, and open rounds with their orders and receipts. It writes what
the table says, traffic and, mostly through recorder.py, sessions. It never calls the leader (hints.py).
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from sedge_cloud import hints
from sedge_cloud.clocks import Wall
from sedge_cloud.disk_errors import disk_error
from sedge_cloud.events import CloudEffect
from sedge_cloud.ingest.absent import Absent
from sedge_cloud.ingest.admission import FrameAdmission
from sedge_cloud.ingest.broadcast import Broadcast
from sedge_cloud.ingest.device import Device
from sedge_cloud.ingest.device_cache import save_hello, save_hellos
from sedge_cloud.ingest.downloads import Downloads
from sedge_cloud.ingest.incoming import Answer, reported
from sedge_cloud.ingest.muting import Muting
from sedge_cloud.ingest.open_orders import OpenOrders
from sedge_cloud.ingest.progress import OrderProgress
from sedge_cloud.ingest.rate_limit import LogQuota
from sedge_cloud.ingest.renewing import Renewing
from sedge_cloud.ingest.sessions import DeviceRegistry
from sedge_cloud.ingest.settings import SettingsSender
from sedge_cloud.ingest.traffic import Traffic
from sedge_cloud.ingest.uploads import RETRY_MS, Uploads
from sedge_cloud.outage import Outage
from sedge_cloud.runs.capabilities import terms_of
from sedge_cloud.runs.loaded import Runs
from sedge_cloud.runs.manifests import Manifests
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.leases import LEASE_S
from sedge_cloud.store.rows import RunRow, TrafficRow
from sedge_protocol.errors import RemoteError, StorageError, VersionError
from sedge_protocol.wire import messages
from sedge_protocol.wire.effects import Note, Send
from sedge_protocol.wire.frame import Frame, asks, latest_incarnation
from sedge_protocol.wire.messages import Hello, Message
from sedge_protocol.wire.transfer import from_bitmap

# Sent after a disk error; the device then asks again.
BUSY = messages.Busy(RETRY_MS, "storage")
# The ingest's effects, and its hints to the leader.
Effects: TypeAlias = list[CloudEffect | hints.Hint]


class Ingest:
    """Serves the devices of a fleet; ``devices`` implements ``Reach``."""

    def __init__(
        self,
        fleet: str,
        run_store: RunStore,
        manifests: Manifests,
        gather_s: float,
        incarnation: int,
        versions: Sequence[int],
        counters: Counter[str],
        wall: Wall,
    ) -> None:
        self.store = run_store.store
        self.counters = counters
        self.devices = DeviceRegistry(fleet, incarnation, self.store, versions, wall)
        self.progress = OrderProgress(self.devices)
        self._renewing = Renewing(fleet, self.devices, self.store)
        self._settings = SettingsSender(self.devices, self.store)
        self.traffic = Traffic()
        self.outage, self._absent = Outage(), Absent(self.devices)
        self._gave_up_at = self.outage.back_at  # the end of the last outage that was handled
        self._runs = Runs(self.store)
        self.open = OpenOrders(self.store, self._runs, self.devices, manifests.of, counters)
        self._downloads = Downloads(self.store.blobs, gather_s)
        self.broadcast = Broadcast(self._downloads, manifests, self._runs, self.open, self.traffic)
        self._uploads = Uploads(self.store, run_store, self.open.find)
        self._log = LogQuota()
        self.muting = Muting(fleet, self.devices, self._left)
        self._admission = FrameAdmission(self.devices, self._log, counters, self.muting)
        self._incarnation, self._wall = incarnation, wall
        self._started: float | None = None
        self._told: list[hints.Hint] = []
        self._keeping: list[Device] = []  # devices that have begun to keep a model from another run

    def load(self, runs: Iterable[RunRow], now: float) -> Effects:
        """Load the devices and these runs from the store. Raises ``StorageError``."""
        effects: Effects = [*self.devices.load(now)]
        self._renewing.load(now)
        self._settings.load(now)
        if self._started is None:
            self._started = now
        self._runs.load(runs)
        self.open.look()
        return self._counted(effects)

    def take(self, shards: frozenset[str], now: float) -> Effects:
        """Serve exactly the devices in these shards from now on. Raises ``StorageError``."""
        lost, gained = self.devices.shards - shards, shards - self.devices.shards
        self.devices.lose(lost)  # before anything can fail: other processes own these devices now
        self._uploads.drop(lost)
        self._downloads.drop(lost)
        if not gained:
            return []
        # A higher start count makes our frames newer than the ones sent by the devices' previous process.
        self._incarnation = self.store.next_incarnation(int(self._wall(now)))
        self._started = now
        self.open.take()
        effects = self.devices.gain(gained, self._incarnation)
        if self.devices.returning:
            self.outage.ends(now, LEASE_S, self.devices.num_active)
        return self._counted(effects)

    def load_orders(self, now: float) -> Effects:
        """Load the changes made by a leader in another process. Raises ``StorageError``."""
        before, effects = self.open.keys(), self.open.load(now)
        self.traffic.follow(before, self.open.rounds())
        return self._counted(effects)

    def connected(self, now: float, silent_s: float, max_packet: int) -> Effects:
        """Handle a new connection: ask every device for a hello, which is answered with its open orders.

        ``silent_s`` means the same as in ``Outage``; ``max_packet`` is the broker's packet limit in bytes.
        """
        self.devices.max_packet = max_packet
        self.outage.ends(now, silent_s, self.devices.num_active)
        return self._counted(self.devices.request_hellos())

    def disconnected(self, now: float) -> None:
        """Handle the loss of the connection: every device is offline until its next hello."""
        self.devices.disconnected(now)
        self.outage.begins(now)
        self.muting.disconnected()
        self._downloads.clear()
        self.traffic.disconnected()
        self.open.disconnected()

    def timer(self) -> float | None:
        """Return the time at which ``poll`` must next be called; None if nothing is due."""
        parts = (
            self._downloads, self._uploads, self._log, self.muting, self.open, self._absent,
            self._renewing, self._settings,
        )  # fmt: skip
        return min((at for part in parts if (at := part.timer()) is not None), default=None)

    def poll(self, now: float) -> Effects:
        """Perform everything that is due, except sending chunks."""
        effects: Effects = self.commit(now)
        due: Effects = [*self._admission.poll()]
        try:
            for effect in self._poll_devices(now):  # keeps the effects from before an error
                due.append(effect)
        except StorageError as exc:
            due += self._failed(exc)
        return effects + self._counted([*due, *self._take_told(), *self._log.poll(now)])

    def _poll_devices(self, now: float) -> Iterator[CloudEffect | hints.Hint]:
        yield from self.muting.poll(now)
        yield from self._renewing.poll(now)
        yield from self._settings.poll(now)
        back_at = self.outage.back_at
        if back_at <= now and (self._gave_up_at != back_at or self.devices.returning):
            self._gave_up_at = back_at
            self._absent.begin([*self.open.waiting(), *self.devices.give_up_returning()], now)
        yield from self._absent.poll(now)
        for device, transfer, have in self._uploads.poll(now):
            yield self.devices[device].peer.message(have, transfer)
        yield from self.open.poll(now)

    def serve(self, now: float, room: int) -> Effects:
        """Send at most ``room`` of the chunks that devices have requested."""
        told: Effects = [*self.broadcast.pass_on(now)]
        try:
            chunks = [self.devices.chunk(*chunk) for chunk in self._downloads.poll(now, room)]
        except StorageError as exc:  # the device asks again
            return self._failed(exc)
        return [*told, *self._counted(chunks)]

    def hear(self, hint: hints.ToIngest, now: float) -> Effects:
        """React to the leader's hint."""
        match hint:
            case hints.Ordered():
                if hint.is_new:
                    self.traffic.opened(hint.row.run, hint.orders)
                return self._counted(self.open.ordered(hint, now))
            case hints.Over():
                self.traffic.closed(hint.run)
                self._downloads.clear()  # devices request again what they still need
                return self._counted(self.open.over(hint))
            case hints.Begun():
                try:
                    self._runs.load(self.store.runs())
                    run = self._runs.get(hint.run)
                except StorageError as exc:
                    return self._failed(exc)
                refused = self.devices.refuse_unable(run.name, terms_of(run)) if run else ()
                return self._counted(refused)
            case hints.LeftOut():
                if hint.device not in self.devices:
                    return []
                return self._counted(self.devices.refuse(hint.device, hint.run, hint.features))

    def admits(self, topic: str, payload: bytes, now: float) -> bool:
        """Return True if a frame is to be processed (admission.py). Call it exactly once per frame."""
        if not self.devices.has_shard_of(topic):
            self.counters["foreign_shards"] += 1
            return False
        return self._admission.admits(topic, payload, now)

    def receive(self, topic: str, payload: bytes, now: float) -> Effects:
        """Process an admitted frame. A malformed one is counted, logged and answered, but changes nothing.

        If a disk error prevents processing, the frame is treated as lost, and its sender repeats it.
        """
        try:
            device = self.devices.sender(topic)
            if device is None:
                return self._counted(self.devices.refusals.refuse(topic, payload, now))
        except StorageError as exc:
            return self._failed(exc)
        self.devices.note(device, heard=self._wall(now))
        self.traffic.received(device.row.device, payload)
        effects = self._counted(self._open_and_dispatch(device, topic, payload, now))
        effects = self._log.admit(f"device {device.row.device}", effects, now)
        return effects + self.commit(now) if self._uploads.is_turn_full else effects

    def commit(self, now: float) -> Effects:
        """End a turn: store the updates that ``receive`` accepted, and only then send the answers."""
        effects: Effects = []
        failed: StorageError | None = None
        for name, transfer, answer in self._uploads.commit():
            if name not in self.devices:  # the device's new process will answer
                continue
            device = self.devices[name]
            if isinstance(answer, StorageError):
                effects.append(device.peer.message(BUSY, transfer))
                if answer is not failed:  # logged once if all failed for the same reason
                    effects += self._failed(answer)
                failed = answer
            else:
                answered = self._answer(device, transfer, answer)
                effects += self._log.admit(f"device {name}", answered, now)
                effects += [] if answer.left is None else self._failed(answer.left)
        devices, self._keeping = self._keeping, []
        try:
            save_hellos(self.store, devices)  # a hello lists the runs whose model the device keeps
        except StorageError as exc:
            effects += self._failed(exc)
        return self._counted(effects)

    def _counted(self, effects: Iterable[CloudEffect | hints.Hint]) -> Effects:
        """Count the bytes that these effects send to each device. Returns the effects."""
        counted = list(effects)
        for effect in counted:
            if isinstance(effect, Send):
                self.traffic.sent(effect)
        return counted

    def _failed(self, error: StorageError) -> Effects:
        return [disk_error(self.counters, error), hints.DiskFailed()]

    def _open_and_dispatch(self, device: Device, topic: str, payload: bytes, now: float) -> Effects:
        try:
            if asks(payload):
                return [*self.devices.answer_doctor(device, payload)]
            device = self._renewing.heard(device, topic, payload, now)
            # The highest plausible start count: ours (a clock reading) plus the time since we started.
            latest = latest_incarnation(self._incarnation + now - (self._started or 0.0))
            opened = device.peer.open(payload, topic, latest)
            if opened is None:
                return [*self.devices.stale_frame(device, payload, now)]
            return self._dispatch(device, *opened, now)
        except RemoteError as exc:
            self.counters["version" if isinstance(exc, VersionError) else "refused"] += 1
            return [*self.devices.bad_frame(device, exc, now), *self._take_told()]
        except StorageError as exc:
            return self._failed(exc)

    def _dispatch(
        self, device: Device, frame: Frame, message: Message | None, now: float
    ) -> Effects:
        name = device.row.device
        match message:
            case None:
                return self._chunk(device, frame, now)
            case Hello():
                return self._hello(device, frame, message, now)
            case messages.Goodbye():
                if device.hello is not None and device.hello.nonce == message.nonce:
                    self._left(device, now)
                return self._take_told()
            case messages.Get():
                return self._get(device, frame.transfer, message, now)
            case messages.Offer():
                return self._offer(device, frame.transfer, message, now)
            case messages.Join():
                self._renewing.offered(device, message, now)
                return []
            case messages.Decline():
                reason = f"{message.reason}: {message.detail}"
                return self.open.decline(message.run, message.round, name, reason)
            case _:
                raise RemoteError(f"{type(message).__name__} from {name} is not for a coordinator")

    def _left(self, device: Device, now: float) -> None:
        """Mark a device offline until its next hello."""
        self.devices.leave(device, now)
        self.open.leave(device.row.device)
        self._told.append(hints.Left(device.row.device))

    def _take_told(self) -> Effects:
        told, self._told = self._told, []
        return [*told]

    def _hello(self, device: Device, frame: Frame, hello: Hello, now: float) -> Effects:
        name = device.row.device
        try:
            device.peer.agree(hello.versions)
        except VersionError:  # with no common version, no order can reach the device from now on
            self._left(device, now)
            raise
        if hello.leaves:
            self._left(device, now)
            return [*self.devices.revoke(name, now), *self._take_told()]
        hello = self.devices.limited(hello)
        is_renewed = device.is_another(hello, frame.incarnation)
        save_hello(self.store, device, hello, frame.incarnation)
        effects: Effects = [*self.devices.ignored_welcomes.greet(device, hello, now)]
        effects.append(device.peer.message(self._settings.welcome(device, hello)))
        effects += [] if device.online else [Note(logging.INFO, f"device {name} is online")]
        self.devices.arrive(device, hello, now)
        effects += self._renewing.greet(device)
        for run in self._runs.running():
            effects += self.devices.refuse_unable(run.name, terms_of(run), [name])
        return [*effects, *self.open.arrive(name, now), hints.DeviceOnline(name, is_renewed)]

    def _get(self, device: Device, transfer: bytes, get: messages.Get, now: float) -> Effects:
        current, name = self.open.round(get.run), device.row.device
        run = self._runs.get(get.run)
        if run is None or current is None or self.open.find(get.run, get.round, name) is None:
            over = messages.Cancel(get.run, get.round, "the round is over")
            return [device.peer.message(over)]
        orders, others = self.open.order_builder, self.broadcast.others
        served = orders.served(run, current, name)
        queued, one = self._downloads.request(name, transfer, get.missing, served, now, others)
        device.bucket.charge(queued)
        self.progress.fetches(device, transfer, get, one.what, one.manifest.count, now)
        self.traffic.asked(name, transfer, from_bitmap(get.missing, 8 * len(get.missing)))
        model = orders.describe(name)(current.row.model).transfer
        if transfer != model or not current.orders[name].holds or run.config.broadcast.whole:
            return []
        # The device had a model, but fetches a whole one. Store that now, as a restart loses byte counts.
        if self.traffic.fell_back(get.run, name):
            self.counters["whole_models"] += 1
            self.store.save_traffic([TrafficRow(get.run, get.round, name, 0, 0, True)])
        return []

    def _offer(self, device: Device, transfer: bytes, offer: messages.Offer, now: float) -> Effects:
        try:
            run = self._runs.get(offer.run)
            answer = self._uploads.offer(device.row.device, transfer, offer, run, now)
            if isinstance(answer.reply, messages.Have):
                self.progress.sends(device, offer.run, offer.round, now)
        except StorageError as exc:
            return self._busy(device, transfer, exc)
        return self._answer(device, transfer, answer)

    def _chunk(self, device: Device, frame: Frame, now: float) -> Effects:
        try:
            answer = self._uploads.chunk(device.row.device, frame, self._runs.get, now)
        except StorageError as exc:
            return self._busy(device, frame.transfer, exc)
        return self._answer(device, frame.transfer, answer)

    def _busy(self, device: Device, transfer: bytes, error: StorageError) -> Effects:
        return [device.peer.message(BUSY, transfer), *self._failed(error)]

    def _answer(self, device: Device, transfer: bytes, answer: Answer) -> Effects:
        reply, name = answer.reply, device.row.device
        effects: Effects = [] if reply is None else [device.peer.message(reply, transfer)]
        if isinstance(reply, messages.Committed | messages.Reject):
            known = device.hello
            device.keep(reply.run)
            if device.hello != known and self.devices.is_shared:  # a remote leader reads the row
                self._keeping.append(device)
            counts = isinstance(reply, messages.Committed)
            self.open.answered(reply.run, reply.round, name, counts)
            effects.append(hints.Answered(reply.run, reply.round, name, counts))
        return [*effects, *reported(answer, self.counters)]
