"""The rows of the coordinator's database. ``Store`` writes and reads their fields by position.

An encoded patch that is small enough to be sent inside its order is stored in the order's row, a larger
patch as a blob. A row never has both.
"""

import hashlib
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from sedge_cloud.store.schema import RUNNING
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.work import Work

# An update may arrive this many rounds late and still be accepted.
LATE_ROUNDS = 3


@lru_cache(maxsize=1024)
def _work(coded: bytes) -> Work:
    """Decode work. Results are cached, as a round's orders share a few kinds of work."""
    return msgspec.msgpack.decode(coded, type=Work)


class DeviceRow(msgspec.Struct, frozen=True):
    """One device, with its last ``hello`` in MessagePack, or None. For ``changed`` see ``SessionRow``."""

    device: str
    secret: bytes
    revoked: bool
    incarnation: int
    hello: bytes | None
    changed: int = 0
    enrolled: float = 0.0  # when it last got a secret, by the store's clock; 0 before schema 9

    def read_hello(self) -> Hello | None:
        """Decode the device's last hello; None if there is none, or if it cannot be read."""
        try:
            return None if self.hello is None else msgspec.msgpack.decode(self.hello, type=Hello)
        except ValueError:  # msgspec's errors are ValueErrors
            return None


class RunRow(msgspec.Struct, frozen=True):
    """One run; ``config`` and ``state`` are MessagePack of ``RunConfig`` and ``RunState``.

    ``bundle`` is the blob of the whole model's bundle. ``narrower`` is MessagePack of the blobs of bundles
    with fewer channels, widest first, ``terms`` of ``Terms``, and ``sums`` of ``RunSums``. ``frozen`` is
    the blob of frozen data. These four may be empty. ``why`` and ``ended`` say why and when it ended.
    """

    run: str
    status: str
    config: bytes
    bundle: bytes
    state: bytes
    created: float
    narrower: bytes = b""
    frozen: bytes = b""
    why: str = ""
    ended: float = 0.0
    terms: bytes = b""
    sums: bytes = b""

    @property
    def has_ended(self) -> bool:
        """Return True if the run is no longer running."""
        return self.status != RUNNING

    @property
    def bundles(self) -> tuple[bytes, ...]:
        """Return the blob of each width's bundle, the whole model's first. Raises ``StorageError``."""
        try:
            narrower = msgspec.msgpack.decode(self.narrower, type=tuple[bytes, ...])
        except ValueError as exc:  # msgspec's errors are ValueErrors
            if self.narrower:
                raise StorageError(f"run {self.run}: its bundles cannot be read: {exc}") from exc
            narrower = ()
        return (self.bundle, *narrower)


class RoundRow(msgspec.Struct, frozen=True):
    """One round; ``model`` is its global model's blob, and ``summary`` is MessagePack once it is closed.

    ``steps`` is MessagePack of the ``StepRow`` items that its orders name, oldest first, or empty. ``up``
    and ``down`` are the bytes that the coordinator sent and received on its own link while the round was
    open. An open round is in a ``phase`` (lifecycle.py) that ends at ``ends_at``, no later than its
    ``deadline``; ``needed`` updates are its quorum, and ``extended`` counts the extensions of its deadline.
    ``why`` says what closed it, and ``parts`` is MessagePack of ``RoundParts``, the devices' parts in a
    closed round, or empty. ``receipts`` counts the receipts written or changed for the round; a late
    receipt counts for the round in which its update counts. A process that closes the round has seen all
    receipts if the number has not changed. Times are seconds on the wall clock, 0 for unknown.
    """

    run: str
    round: int
    task: str
    open: bool
    model: bytes
    model_hash: bytes
    summary: bytes | None
    steps: bytes = b""
    up: int = 0
    down: int = 0
    phase: str = "open"
    opened: float = 0.0
    ends_at: float = 0.0
    deadline: float = 0.0
    closed: float = 0.0
    why: str = ""
    needed: int = 0
    extended: int = 0
    parts: bytes = b""
    receipts: int = 0


class OrderRow(msgspec.Struct, frozen=True, dict=True):
    """One device's order. Unused fields of bytes are empty. A "blob" below is a blob's name.

    patch          the coded patch; if it is large, ``patch_blob`` is its blob instead
    patch_context  blob of the mask needed to decode the patch
    work           ``Work`` in MessagePack
    arrays         blob of the strategy's arrays for the device
    context        blob of the mask against which the update may be coded
    model          blob of a start vector that replaces the round's model; ``model_hash`` is its hash
    correction     blob of a vector that the device adds to its gradients
    declined       why the device declined the order; empty if it did not
    holds          hash of the global model its last update started from; the device has this or a later one
    step           blob of one step from ``holds`` to the round's model, sent in place of several
    width          index of one of the run's bundles
    bundle         blob of another bundle, which a rollout gives the device
    trusted        copied from the client model from which the order was planned; not sent
    num_train      number of training examples in the device's hello, 0 if unknown; not sent
    """

    run: str
    round: int
    device: str
    patch: bytes
    work: bytes
    arrays: bytes
    declined: str = ""
    context: bytes = b""
    model: bytes = b""
    model_hash: bytes = b""
    width: int = 0
    patch_blob: bytes = b""
    patch_context: bytes = b""
    trusted: bool = True
    num_train: int = 0
    correction: bytes = b""
    holds: bytes = b""
    step: bytes = b""
    bundle: bytes = b""

    @cached_property
    def patch_hash(self) -> bytes:
        """Return the SHA-256 of the encoded patch; empty if there is none."""
        return self.patch_blob or (hashlib.sha256(self.patch).digest() if self.patch else b"")

    def blobs(self, model: bytes) -> tuple[bytes, ...]:
        """Return the blobs that the client model will name after the update; ``model`` is the round's."""
        named = self.model or model, self.arrays, self.context, self.patch_blob, self.patch_context
        return tuple(filter(None, named))

    def read_work(self) -> Work:
        """Decode ``work``. Raises ``StorageError`` when it cannot be read."""
        try:
            return _work(self.work) if self.work else Work()
        except ValueError as exc:  # msgspec's errors are ValueErrors
            text = f"run {self.run}, round {self.round}, order of {self.device}: {exc}"
            raise StorageError(text) from exc


class UpdateRow(msgspec.Struct, frozen=True):
    """A receipt for an accepted (``rejected`` is empty) or rejected update. It answers repeated offers.

    ``late`` is 0 or, for an update that arrived after its round had closed, the round that was then open or
    next to open. The outlier filter needs ``patch_length``, the Euclidean distance from the model of the
    update's own round to its patch, and ``delta_length``, the length of its delta; None: not measured.
    """

    run: str
    round: int
    device: str
    blob: bytes
    report: bytes
    size: int
    late: int
    rejected: str = ""
    detail: str = ""
    patch_length: float | None = None
    delta_length: float | None = None

    def refused(self, reason: str, detail: str) -> "UpdateRow":
        """Return the same receipt, marked as rejected."""
        return msgspec.structs.replace(self, report=b"", rejected=reason, detail=detail[:1000])


class RoundReceipts(NamedTuple):
    """A round's ``receipts``, sorted by device, including receipts for rejected and late updates.

    ``late`` has the updates for earlier rounds that arrived in the meantime, oldest round first.
    """

    receipts: list[UpdateRow]
    late: list[UpdateRow]

    @property
    def counted(self) -> list[UpdateRow]:
        """Return the round's updates that arrived in time and were not rejected."""
        return [update for update in self.receipts if not update.rejected and not update.late]


class ClientModelRow(msgspec.Struct, frozen=True):
    """A device's last model, as references: model blob + patch + update blob give the vector.

    ``patch`` or the blob ``patch_blob`` is the patch that the device applied: its order's patch, or none if
    the device chose to start without it. ``context`` is the blob of a mask that may be needed to decode the
    update, and ``mask`` the blob of the update's own mask, which the device also has; each is empty if
    there is none. ``width`` says which of the run's layouts the vector has. ``mix``, ``step_s`` (0:
    unknown) and ``steps`` are from the report, and ``remembered`` says that the device has kept its update.
    """

    run: str
    device: str
    round: int
    model: bytes
    patch: bytes
    blob: bytes
    arrays: bytes
    mask: bytes = b""
    context: bytes = b""
    width: int = 0
    patch_blob: bytes = b""
    patch_context: bytes = b""
    mix: float | None = None
    step_s: float = 0.0
    remembered: bool = False
    steps: int = 0

    @property
    def blobs(self) -> tuple[bytes, ...]:
        """Return the blobs needed to decode the model."""
        vectors = self.model, self.blob, self.arrays
        patches = self.context, self.patch_blob, self.patch_context
        return tuple(filter(None, vectors + patches))

    @property
    def patch_hash(self) -> bytes:
        """Return the SHA-256 of the encoded patch; empty if there is none."""
        return self.patch_blob or (hashlib.sha256(self.patch).digest() if self.patch else b"")


JoinState: TypeAlias = Literal["pending", "accepted", "admitted", "refused"]
# (receipt, client model that comes with it, the update itself if it is small)
NewReceipt: TypeAlias = tuple[UpdateRow, ClientModelRow | None, bytes]


class TokenRow(msgspec.Struct, frozen=True):
    """A token, with its 32-byte ``secret`` and a broker account named after it, for ``uses`` devices.

    ``device`` is the id of the only device that may use it, or empty, and ``tags`` is MessagePack of the
    tags that devices get. With ``accepts``, they join without anyone's approval. ``expires`` is on the
    coordinator's wall clock. ``account`` says whether a coordinator manages its broker account; if not, it
    was created manually. ``refused`` says why the token last refused a device.
    """

    token: str
    secret: bytes
    device: str
    tags: bytes
    uses: int
    accepts: bool
    created: float
    expires: float
    revoked: bool = False
    account: bool = True
    refused: str = ""
    refused_at: float = 0.0

    def read_tags(self) -> dict[str, str]:
        """Decode the tags."""
        return msgspec.msgpack.decode(self.tags, type=dict[str, str])


class JoinRow(msgspec.Struct, frozen=True):
    """A device's request to join, under its public key ``point``; ``secret`` is what the device gets."""

    point: bytes
    token: str
    device: str
    secret: bytes
    state: JoinState
    asked: float
    detail: str = ""


class RenewalRow(msgspec.Struct, frozen=True):
    """A device that has been due to change its secret since ``asked``.

    ``secret`` and its key ``point`` are empty until the device offers them. ``account`` says whether the
    broker has the new password.
    """

    device: str
    asked: float
    point: bytes
    secret: bytes
    account: bool


class TrafficRow(msgspec.Struct, frozen=True):
    """A device's traffic in one round: ``up`` bytes from it and ``down`` bytes to it.

    ``whole`` says that it fetched the whole model, although it had one and the run broadcasts changes.
    """

    run: str
    round: int
    device: str
    up: int
    down: int
    whole: bool


class HistoryRow(msgspec.Struct, frozen=True):
    """A device's history in the closed rounds of a run: ``past`` is MessagePack of ``DevicePast``.

    ``round`` is the last round in which it took part; for ``changed`` see ``SessionRow``.
    """

    run: str
    device: str
    round: int
    past: bytes
    changed: int = 0


class SessionRow(msgspec.Struct, frozen=True):
    """A device as the coordinator has observed it; by default, a device that it never has.

    It has been ``online``, or offline, ``since``; ``heard`` is when it was last heard from. Its last
    dropped message was at ``error_at``, for the reason ``error``; it has waited since ``waits_since``, for
    the reason ``waits``. ``run`` and ``round`` name the order that it has yet to answer (round 0: none);
    ``state`` and ``state_since`` give its progress, with ``done`` of ``total`` chunks transferred. Times
    are seconds on the wall clock, 0 for unknown. ``changed`` grows with each change to a device.
    """

    device: str = ""
    online: bool = False
    since: float = 0.0
    heard: float = 0.0
    error: str = ""
    error_at: float = 0.0
    waits: str = ""
    waits_since: float = 0.0
    run: str = ""
    round: int = 0
    state: str = ""
    state_since: float = 0.0
    done: int = 0
    total: int = 0
    changed: int = 0


class CoordinatorRow(msgspec.Struct, frozen=True):
    """A serving process: when it ``started``, when its last heartbeat was ``heard``, and its link.

    ``id`` is its token, or 1 if processes have none. ``link`` is the state of its link to the broker;
    ``max_packet`` is the largest message that the broker lets through, in bytes; 0: not measured yet.
    ``counters`` is MessagePack of its counters, and ``error`` the last error that it logged. The state
    takes ``used`` bytes, on a disk of ``total`` bytes with ``free`` bytes free (0: not measured yet). Times
    are seconds on the wall clock, 0 for unknown.
    """

    id: int = 1
    running: bool = False
    started: float = 0.0
    heard: float = 0.0
    link: bool = False
    link_since: float = 0.0
    link_error: str = ""
    max_packet: int = 0
    error: str = ""
    error_at: float = 0.0
    counters: bytes = b""
    used: int = 0
    free: int = 0
    total: int = 0


class DiskRow(msgspec.Struct, frozen=True):
    """The size of the state, in bytes, at one moment."""

    at: float
    used: int
