"""The rows of the coordinator's database, as ``Store`` writes and reads them: field by field, by position.

A coded patch lies in its row while it is small enough to travel inside its order, and among the blobs
where it is larger; a row has one of the two.
"""

import hashlib

import msgspec

from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Work


class DeviceRow(msgspec.Struct, frozen=True):
    """One enrolled device; ``hello`` is the last one's MessagePack, or None."""

    device: str
    secret: bytes
    revoked: bool
    incarnation: int
    hello: bytes | None


class RunRow(msgspec.Struct, frozen=True):
    """One run; ``config`` and ``state`` are MessagePack (config.RunConfig, run_store.RunState).

    ``bundle`` is the blob of the whole model's bundle, ``narrower`` MessagePack of the blobs of those with
    fewer channels, widest first, or empty.
    """

    run: str
    status: str
    config: bytes
    bundle: bytes
    state: bytes
    created: float
    narrower: bytes = b""

    @property
    def bundles(self) -> tuple[bytes, ...]:
        """The blob of each width's bundle, the whole model's first. Raises ``StorageError``."""
        try:
            found = msgspec.msgpack.decode(self.narrower, type=tuple[bytes, ...])
        except ValueError as exc:  # msgspec's errors; empty is none
            if self.narrower:
                raise StorageError(f"run {self.run}: its bundles cannot be read: {exc}") from exc
            found = ()
        return (self.bundle, *found)


class RoundRow(msgspec.Struct, frozen=True):
    """One round; ``model`` is the blob of the coded global, ``summary`` MessagePack once closed.

    ``steps`` is MessagePack of the ``StepRow`` that its orders name, oldest first, or empty.
    """

    run: str
    round: int
    task: str
    open: bool
    model: bytes
    model_hash: bytes
    summary: bytes | None
    steps: bytes = b""


class OrderRow(msgspec.Struct, frozen=True):
    """What one device was given; ``patch`` is coded, ``work`` MessagePack of ``Work``, ``arrays`` a blob.

    ``context`` is the blob of the mask that its update may be coded against, and ``patch_context`` that of
    the mask without which its patch cannot be decoded. ``model`` is the blob of a start vector that takes
    the place of the round's model, and ``model_hash`` its hash. ``correction`` is the blob of a vector that
    the device adds to its gradients. ``holds`` is the hash of the global model that its last update began
    with: it holds that one or a later one. ``step`` is the blob of a step from there to the round's model
    that takes the place of several. Each is empty where there is none.
    ``width`` counts the run's bundles from 0. ``trusted`` is that of the client model which the order was
    planned from (strategy.ClientModel), ``num_train`` the examples that the device said hello with, 0
    unknown; it is told neither.
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

    @property
    def patch_hash(self) -> bytes:
        """The name of the coded patch; empty for none."""
        return self.patch_blob or (hashlib.sha256(self.patch).digest() if self.patch else b"")

    def blobs(self, model: bytes) -> tuple[bytes, ...]:
        """The blobs that the client model will name when its update comes; ``model`` is the round's."""
        named = (
            self.model or model,
            self.arrays,
            self.context,
            self.patch_blob,
            self.patch_context,
        )
        return tuple(blob for blob in named if blob)

    def read_work(self) -> Work:
        """What is in ``work``. Raises ``StorageError`` when it cannot be read."""
        try:
            return msgspec.msgpack.decode(self.work, type=Work) if self.work else Work()
        except ValueError as exc:  # msgspec's errors
            text = f"run {self.run}, round {self.round}, order of {self.device}: {exc}"
            raise StorageError(text) from exc


class UpdateRow(msgspec.Struct, frozen=True):
    """One receipt, good (``rejected`` empty) or not; repeated offers get the same answer.

    ``late`` is 0 or, for an update that came after its round had closed, the round that was open then, or
    the next to open.
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


class ClientModelRow(msgspec.Struct, frozen=True):
    """A device's last model in references: model blob + patch + update blob give the vector.

    ``patch`` or the blob ``patch_blob`` is what the device started with: of its order's patch the part
    that it had picked, where it could.
    ``context`` is the blob of the mask that the update blob may need to be decoded, ``mask`` that of its
    own mask, which the device holds as well; each is empty where there is none. ``width`` tells which of
    the run's layouts the vector has. ``mix``, ``step_s`` (0: unknown) and ``steps`` are from the
    report, and ``remembered`` says that the device was to keep what it sent.
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
        """The blobs that it is made from."""
        named = (
            self.model,
            self.blob,
            self.arrays,
            self.context,
            self.patch_blob,
            self.patch_context,
        )
        return tuple(blob for blob in named if blob)

    @property
    def patch_hash(self) -> bytes:
        """The name of the coded patch; empty for none."""
        return self.patch_blob or (hashlib.sha256(self.patch).digest() if self.patch else b"")
