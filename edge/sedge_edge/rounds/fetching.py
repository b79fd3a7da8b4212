"""Downloads the blobs that the orders need and that are not on disk yet."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np

from sedge_edge.jobs.global_model import needed_blobs
from sedge_edge.jobs.storage import Blobs
from sedge_edge.rounds.blob_limits import may_begin
from sedge_edge.rounds.effects import FetchedChunk, SpanEffect, SpanEnd
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_edge.rounds.places import STALL_S, Permits, Places
from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_protocol.errors import FrameError, StorageError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import Frame
from sedge_protocol.wire.messages import Get, Order
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import Fetch, Manifest

OWNER = "fleet"

FetchEffect: TypeAlias = Effect | SpanEffect


class Fetches:
    """All downloads of the device. Methods raise ``StorageError`` if the disk fails.

    ``holds`` says whether a vector, such as a version of the global model, is stored. Frozen data that does
    not fit into ``memory_mb`` is not fetched, because the job will decline the order. ``permits`` says
    whether a URL may be requested over HTTP; None permits none.
    """

    def __init__(
        self,
        fleet: str,
        blobs: Blobs,
        holds: Callable[[bytes], bool],
        peer: Peer,
        rng: np.random.Generator,
        memory_mb: int = 0,
        permits: Permits | None = None,
    ) -> None:
        self._fleet = fleet
        self._memory_mb = memory_mb
        self._blobs = blobs
        self._holds = holds
        self._peer = peer
        self._rng = rng
        self._active: dict[bytes, Fetch] = {}
        self._wanted: dict[bytes, Order] = {}
        self._listening: set[bytes] = set()
        self._retry_at: dict[bytes, float] = {}
        self._refused: dict[bytes, str] = {}
        self._connected = False
        self.places = Places(permits, peer.counters, rng)

    def connected(self, now: float) -> list[FetchEffect]:
        """Handle a new connection: subscribe, and request what is missing."""
        self._connected = True
        self._listening.clear()
        for fetch in self._active.values():
            fetch.connected(now)
        return [*self._listen()]

    def woken(self, now: float) -> None:
        """Repeat requests that are unanswered, because the coordinator is known to be online."""
        for fetch in self._active.values():
            fetch.woken(now)

    def disconnected(self) -> None:
        """Handle the loss of the connection."""
        self._connected = False
        for fetch in self._active.values():
            fetch.disconnected()

    def missing(self, order: Order) -> list[Manifest]:
        """Return an order's blobs that are not on disk.

        The list includes the frozen data only if the bundle has arrived and the data fits into memory.
        """
        needed = needed_blobs(order, self._holds)
        facts = bundle_facts(order.bundle.sha256, self._blobs)
        if facts is not None and facts.frozen is not None and facts.frozen.fits(self._memory_mb):
            needed.append(facts.frozen.cut_as(order.frozen))
        return [manifest for manifest in needed if not self._blobs.has(manifest.sha256)]

    @property
    def refused(self) -> str:
        """Why the disk has no room for one of the blobs, or "" if it has room for all."""
        return next(iter(self._refused.values()), "")

    def sync(self, orders: Iterable[Order], now: float) -> list[FetchEffect]:
        """Fetch the blobs that these orders need, and stop all other downloads.

        A blob for which there is no room (``refused``) is tried again later.
        """
        pairs = [
            (order, manifest)
            for order in orders
            for manifest in self.missing(order)
            if may_begin(order, manifest, self._blobs)
        ]
        wanted = {manifest.transfer: manifest for _, manifest in pairs}
        self._wanted = {manifest.transfer: order for order, manifest in reversed(pairs)}
        urls = {
            manifest.transfer: place.url
            for order, manifest in reversed(pairs)
            for place in order.places
            if place.sha256 == manifest.sha256
        }
        for transfer in [t for t in self._active if t not in wanted]:
            del self._active[transfer]
        self._retry_at = {t: at for t, at in self._retry_at.items() if t in wanted and at > now}
        self._refused = {t: why for t, why in self._refused.items() if t in self._retry_at}
        effects: list[FetchEffect] = []
        for transfer, manifest in wanted.items():
            if transfer not in self._active and transfer not in self._retry_at:
                effects += self._begin(transfer, manifest, now)
        for transfer, fetch in list(self._active.items()):
            if fetch.complete:  # a crash or a full disk prevented assembling it
                effects += self._complete(transfer, fetch, now)
        effects += self.places.sync(self._active, urls, now, self._connected)
        return [*effects, *self._listen()]

    def _begin(self, transfer: bytes, manifest: Manifest, now: float) -> list[Effect]:
        """Start a download. If there is no room, schedule a retry, so that other downloads can start."""
        try:
            fetch = Fetch(manifest, self._blobs.open_part(OWNER, manifest), self._rng)
        except StorageError as exc:
            self._retry_at[transfer], self._refused[transfer] = now + DISK_RETRY_S, str(exc)
            self._peer.counters["storage_errors"] += 1
            return [Note(logging.ERROR, str(exc))]
        self._active[transfer] = fetch
        if self._connected:
            fetch.connected(now)
        return []

    def chunk(self, frame: Frame, now: float) -> list[Effect]:
        """Store a chunk, if its blob is being fetched.

        Raises ``FrameError`` for a chunk that does not match the blob's manifest.
        """
        fetch = self._active.get(frame.transfer)
        return [] if fetch is None else self._keep(fetch, frame.index, frame.body, now)

    def _keep(self, fetch: Fetch, index: int, data: bytes, now: float) -> list[Effect]:
        if fetch.chunk(index, data, now):
            try:
                self._blobs.write_part(OWNER, fetch.manifest, index, data)
            except StorageError:
                fetch.have.discard(index)
                raise
        if not fetch.complete:
            return []
        return [*self._complete(fetch.manifest.transfer, fetch, now), *self._listen()]

    def fetched(self, part: FetchedChunk | SpanEnd, now: float) -> list[FetchEffect]:
        """Handle data that have arrived over HTTP. The data are ignored if their span has been stopped."""
        span = self.places.asked
        fetch = None if span is None else self._active.get(span.manifest.transfer)
        if span is None or fetch is None or span.number != part.number:
            return []
        if isinstance(part, SpanEnd):
            # The device's own network may be at fault, not the server.
            if part.error and not self._connected:
                return [*self.places.halt()]
            if part.error:
                return self._over_mqtt(part.error, now)
            self.places.ended()
            return []
        try:
            effects = self._keep(fetch, part.index, part.data, now)
        except FrameError as exc:
            return self._over_mqtt(f"{span.url.partition('?')[0]}: {exc}", now)
        self.places.heard(len(part.data), now)
        if fetch.complete:  # a server without range support may be sending more
            return [*effects, *self.places.halt()]
        return [*effects]

    def _over_mqtt(self, why: str, now: float) -> list[FetchEffect]:
        """Fetch the remaining chunks over MQTT, because the web server failed."""
        left = [fetch for t, fetch in self._active.items() if self.places.takes(t)]
        effects: list[FetchEffect] = [*self.places.failed(why, now)]
        for fetch in left if self._connected else ():
            fetch.connected(now)
        return [*effects, *self._listen()]

    def poll(self, now: float) -> list[FetchEffect]:
        """Send the requests that are due. Each names the first order that needs the blob."""
        effects: list[FetchEffect] = []
        if (stall_at := self.places.timer()) is not None and now >= stall_at:
            effects += self._over_mqtt(f"no chunk arrived within {STALL_S:.0f} s", now)
        for transfer, fetch in self._active.items():
            missing = fetch.poll(now) if transfer in self._listening else None
            if missing is not None:
                order = self._wanted[transfer]
                get = Get(order.run, order.round, missing)
                effects.append(self._peer.message(get, transfer))
        return effects

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        asked = (fetch.timer() for t, fetch in self._active.items() if not self.places.takes(t))
        due = [*self._retry_at.values(), self.places.timer(), *asked]
        return min((at for at in due if at is not None), default=None)

    def _complete(self, transfer: bytes, fetch: Fetch, now: float) -> list[Effect]:
        """Assemble the blob from its chunks. If its hash is wrong, start over later."""
        valid = self._blobs.finish_part(OWNER, fetch.manifest)
        del self._active[transfer]
        if valid:
            return []
        # Either the disk has corrupted a chunk, or the manifest is wrong and the same will happen every
        # time.
        self._retry_at[transfer] = now + DISK_RETRY_S
        name = fetch.manifest.sha256.hex()[:16]
        text = f"blob {name}: its chunks do not match its sha256; fetching it again in {DISK_RETRY_S:.0f} s"
        return [Note(logging.WARNING, text)]

    def _listen(self) -> list[Effect]:
        """Subscribe to the topics of running downloads, and unsubscribe from all others.

        The difference is recomputed each time, so that no subscription is lost if an error interrupts a
        call.
        """
        if not self._connected:
            return []
        wanted = [transfer for transfer in self._active if not self.places.takes(transfer)]
        effects: list[Effect] = [
            Unsubscribe(self._topic(t)) for t in self._listening if t not in wanted
        ]
        effects += [Subscribe(self._topic(t)) for t in wanted if t not in self._listening]
        self._listening = set(wanted)
        return effects

    def _topic(self, transfer: bytes) -> str:
        return topics.blob(self._fleet, transfer)
