"""Blobs on their way to the device: what the orders need and the disk does not hold yet."""

import logging
from collections.abc import Callable, Iterable

import numpy as np

from sedge_edge.rounds.global_model import named_blobs, needed_blobs
from sedge_edge.rounds.state import DISK_RETRY_S
from sedge_edge.rounds.storage import Blobs
from sedge_protocol.errors import StorageError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Effect, Note, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import Frame
from sedge_protocol.wire.messages import Get, Order
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import Fetch, Manifest

OWNER = "fleet"


class Fetches:
    """Every download of the device. Methods raise ``StorageError`` when the disk refuses.

    ``holds`` says whether a version of the global model is here.
    """

    def __init__(
        self,
        fleet: str,
        blobs: Blobs,
        holds: Callable[[bytes], bool],
        peer: Peer,
        rng: np.random.Generator,
    ) -> None:
        self._fleet = fleet
        self._blobs = blobs
        self._holds = holds
        self._peer = peer
        self._rng = rng
        self._active: dict[bytes, Fetch] = {}
        self._listening: set[bytes] = set()
        self._later: dict[bytes, float] = {}  # until when it is not tried again
        self._connected = False

    def connected(self, now: float) -> list[Effect]:
        """The link is up (again): listen, and ask for what is missing."""
        self._connected = True
        self._listening.clear()
        for fetch in self._active.values():
            fetch.connected(now)
        return self._listen()

    def disconnected(self) -> None:
        """The link is down."""
        self._connected = False
        for fetch in self._active.values():
            fetch.disconnected()

    def sync(self, orders: Iterable[Order], now: float) -> list[Effect]:
        """Fetch what these orders need, and nothing else; what there is no room for, a while later."""
        wanted = {
            m.transfer: m
            for order in orders
            for m in needed_blobs(order, self._holds)
            if not self._blobs.has(m.sha256)
        }
        for transfer in [t for t in self._active if t not in wanted]:
            del self._active[transfer]
        self._later = {t: at for t, at in self._later.items() if t in wanted and at > now}
        found: list[Effect] = []
        for transfer, manifest in wanted.items():
            if transfer not in self._active and transfer not in self._later:
                found += self._begin(transfer, manifest, now)
        for transfer, fetch in list(self._active.items()):
            if fetch.complete:  # a crash or a full disk came between the last chunk and the whole
                found += self._complete(transfer, fetch, now)
        return [*found, *self._listen()]

    def _begin(self, transfer: bytes, manifest: Manifest, now: float) -> list[Effect]:
        """One more download. No room for it is no reason not to fetch what other orders need."""
        try:
            fetch = Fetch(manifest, self._blobs.open_part(OWNER, manifest), self._rng)
        except StorageError as exc:
            self._later[transfer] = now + DISK_RETRY_S
            self._peer.counters["storage_errors"] += 1
            return [Note(logging.ERROR, str(exc))]
        self._active[transfer] = fetch
        if self._connected:
            fetch.connected(now)
        return []

    def chunk(self, frame: Frame, now: float) -> list[Effect]:
        """A chunk has come; nothing for a blob that is not being fetched.

        Raises ``FrameError`` for a chunk that does not fit its manifest.
        """
        fetch = self._active.get(frame.transfer)
        if fetch is None:
            return []
        if fetch.chunk(frame.index, frame.body, now):
            try:
                self._blobs.write_part(OWNER, fetch.manifest, frame.index, frame.body)
            except StorageError:
                fetch.have.discard(frame.index)
                raise
        if not fetch.complete:
            return []
        return [*self._complete(frame.transfer, fetch, now), *self._listen()]

    def poll(self, orders: Iterable[Order], now: float) -> list[Effect]:
        """Ask for what is due."""
        found: list[Effect] = []
        for order in orders:
            for manifest in named_blobs(order):
                fetch = self._active.get(manifest.transfer)
                if fetch is None or manifest.transfer not in self._listening:
                    continue
                missing = fetch.poll(now)
                if missing is not None:
                    get = Get(order.run, order.round, missing)
                    found.append(self._peer.message(get, manifest.transfer))
        return found

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        due = [*self._later.values(), *(fetch.timer() for fetch in self._active.values())]
        return min((at for at in due if at is not None), default=None)

    def _complete(self, transfer: bytes, fetch: Fetch, now: float) -> list[Effect]:
        """Every chunk is there: make a blob of them, or start over later when the whole is not sound."""
        sound = self._blobs.finish_part(OWNER, fetch.manifest)
        del self._active[transfer]
        if sound:
            return []
        # The disk changed a chunk, or the manifest's hash is not that of its chunks and always fails.
        self._later[transfer] = now + DISK_RETRY_S
        name = fetch.manifest.sha256.hex()[:16]
        text = f"blob {name}: its chunks do not have its sha256; fetching it again in {DISK_RETRY_S:.0f} s"
        return [Note(logging.WARNING, text)]

    def _listen(self) -> list[Effect]:
        """Subscribe to what is being fetched and unsubscribe from the rest.

        Found by comparison, so that an error between two of them loses none.
        """
        if not self._connected:
            return []
        found: list[Effect] = [
            Unsubscribe(self._topic(t)) for t in self._listening if t not in self._active
        ]
        found += [Subscribe(self._topic(t)) for t in self._active if t not in self._listening]
        self._listening = set(self._active)
        return found

    def _topic(self, transfer: bytes) -> str:
        return topics.blob(self._fleet, transfer)
