"""The bodies of control frames: MessagePack maps, one struct per frame kind.

Unknown keys are ignored, so a newer peer of the same version may say more; missing keys without a
default, wrong types and broken limits are refused as ``FrameError`` before anything acts on them.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import FrameError, LocalError
from sedge_protocol.layout import MAX_NAME_CHARS, MAX_TENSORS
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.topics import ID_PATTERN
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES as MAX_INLINE_BYTES
from sedge_protocol.wire.transfer import Manifest

Id: TypeAlias = Annotated[str, Meta(pattern=ID_PATTERN)]
Short: TypeAlias = Annotated[str, Meta(max_length=64)]
# Long enough for one sentence that names what, where and what was expected.
Detail: TypeAlias = Annotated[str, Meta(max_length=1000)]
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**40)]
Round: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
Name: TypeAlias = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]

TRAIN = "train"
EVALUATE = "evaluate"
Task: TypeAlias = Literal["train", "evaluate"]
# Deltas that one order may name; a chain that long is rarely shorter than the whole model.
MAX_STEPS = 32
LastBatch: TypeAlias = Literal["pad", "fill", "drop"]
# Trainings of one order, one after the other; FedRep has two.
MAX_PHASES = 8
Names: TypeAlias = Annotated[tuple[Name, ...], Meta(max_length=MAX_TENSORS)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device has (re)connected: who it is and what it can do."""

    nonce: Nonce
    version: Short
    backends: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    compressions: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    codecs: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    num_train: Count = 0
    num_test: Count = 0
    memory_mb: Count = 0


class Welcome(msgspec.Struct, frozen=True):
    """The coordinator heard the hello with this nonce."""

    nonce: Nonce
    version: Short


class Goodbye(msgspec.Struct, frozen=True):
    """The device of the hello with this nonce is gone; sent by itself or, as its will, by the broker."""

    nonce: Nonce


class Training(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device trains; ``prox`` > 0 pulls towards the start vector (FedProx's mu).

    ``last_batch`` says what becomes of the last partial batch: ``pad`` it with rows of weight zero,
    ``fill`` it from the start of the shuffled epoch, or ``drop`` it. The tensors named in ``freeze`` end
    as they began.
    """

    local_epochs: Annotated[int, Meta(ge=1, le=1000)] = 1
    learning_rate: Annotated[float, Meta(gt=0, le=1000)] = 0.01
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    prox: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    last_batch: LastBatch = "pad"
    freeze: Names = ()


class OwnModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model that is the device's own, trained beside the one it sends; it never leaves the device.

    It starts where it ended last time, or at the round's start vector, and is what the device evaluates
    and predicts with. Its ``training`` comes after that of the sent one; ``prox`` pulls it towards the
    round's start vector (Ditto). With ``mix`` below 1 it is the mixture mix * own + (1 - mix) * sent that
    is evaluated and whose gradient trains the own part, step by step beside the sent one and as the
    order's first training says (APFL); ``adaptive`` lets the device move ``mix`` by its own gradient, and
    its report tells where it ended.
    """

    training: Training = Training()
    mix: Share = 1.0
    adaptive: bool = False

    @property
    def mixes(self) -> bool:
        """Whether this is a mixture; an adaptive one may well have come to ``mix`` = 1."""
        return self.mix < 1 or self.adaptive


class UpdateSelection(msgspec.Struct, frozen=True, omit_defaults=True):
    """The elements a device sends are those its loss depends on most, tensor by tensor (FedPURIN, FedCAC).

    c = |g theta| of every element of the trained model, or with ``hessian`` |-g theta + (g theta)^2 / 2|;
    g is the gradient of the ``last`` batch, or the ``delta`` trained - start; with ``half`` it is rounded
    to fp16 first, as the authors' code does, so that what is below 3e-8 is nothing. Of each tensor of
    parameters that the device does not keep the ``fraction`` largest are sent, rounded down and with all
    that tie with the last of them, but none with c of at most ``cutoff``: where that one is not above it,
    the tensor sends everything above. The codec's own fraction, threshold and error feedback are not used.
    """

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    gradient: Literal["last", "delta"] = "last"
    hessian: bool = False
    cutoff: Annotated[float, Meta(ge=0, le=1)] = 1e-10
    half: bool = False


class DeviceScoring(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device finds its personal elements itself, in the model it ended with last time.

    FedOBP with ``scoring = "device"``: the cloud sees no model of a device, only its change, which is
    then coded against the global model. ``score`` as in ``importance.py``, where ``gradient`` and
    ``fisher`` use the last batch's of the round before; the elements above the ``quantile`` of the scores
    of ``tensors`` (all parameters, if none is named) are its own.
    """

    quantile: Share
    score: Literal["squared", "product", "gradient", "fisher"] = "squared"
    norm: Literal["none", "global", "layer"] = "none"
    tensors: Names = ()


class PatchChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device picks how much of the patch it starts with, by examples that it does not train on.

    ``holdout`` is the share of its training examples that it keeps for this; they are drawn by ``seed``, so
    that they are the same in every order of a run. ``levels`` are those of the patch's elements
    (codec/patch_levels.py), coded, or empty: all 0. Of the parts that they offer the device takes the one
    with the best accuracy there, of equal ones that with the least loss, and then the smallest.
    """

    holdout: Annotated[float, Meta(gt=0, lt=1)]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    levels: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""


class Codec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device codes its update: the ``fraction`` of elements largest in magnitude is kept.

    Of these, only magnitudes of at least ``threshold`` are sent. With ``error_feedback`` what was not
    sent is added to the next round's delta.
    """

    values: ValueCoding = ValueCoding.FP32
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    threshold: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    compression: Compression = Compression.ZSTD
    error_feedback: bool = True


class Step(msgspec.Struct, frozen=True):
    """A coded delta that turns the global model whose hash is ``base_hash`` into the next version."""

    base_hash: Hash
    blob: Manifest


class Work(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a strategy asks of a device in one round, beyond the vector that it starts from.

    ``keep`` names tensors that the device takes from its own last model and never sends. Without ``upload``
    only metrics come back. ``training`` is how it trains, and ``then`` are further trainings, each of which
    begins where the one before ended; no ``training`` is, to a strategy, the run's, and in an order the
    defaults. With ``remember`` the device keeps what it sends as the patch that it would be, so that
    a later order which names that patch need not bring it.
    """

    keep: Names = ()
    upload: bool = True
    training: Training | None = None
    then: Annotated[tuple[Training, ...], Meta(max_length=MAX_PHASES)] = ()
    own_model: OwnModel | None = None
    select: UpdateSelection | None = None
    scoring: DeviceScoring | None = None
    choice: PatchChoice | None = None
    remember: bool = False

    @property
    def trainings(self) -> tuple[Training, ...]:
        """Every training that it names, one after the other."""
        first = (self.training,) if self.training is not None else ()
        own = (self.own_model.training,) if self.own_model is not None else ()
        return (*first, *self.then, *own)


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One device's work in one round.

    ``model`` is the coded global vector and ``model_hash`` the SHA-256 of its decoded float32 bytes.
    ``steps`` lead there from older versions, the last one to ``model_hash``: a device that holds the
    version with a step's ``base_hash`` adds that delta and all later ones instead of fetching ``model``.
    ``step`` is the blob of the last step itself, where that is small, or empty.
    ``patch`` (inline) or ``patch_blob`` is a coded vector of absolute values to write over it;
    ``patch_hash`` is the SHA-256 of the coded patch, or empty. ``patch_context`` is the mask, a bitmap of n
    bits, without which the patch cannot be decoded: the device's own last one, fetched where it is gone.
    ``correction`` is a coded vector (n,) that is added to every gradient of the model that is sent. Where
    ``work`` selects, ``context`` is the SHA-256 of the mask, as a bitmap of n bits, that the coordinator
    holds for decoding this update, or empty. ``deadline_ms`` is the time left, not a time of day.
    """

    run: Id
    round: Round
    task: Task
    bundle: Manifest
    model: Manifest
    model_hash: Hash
    steps: Annotated[tuple[Step, ...], Meta(max_length=MAX_STEPS)] = ()
    step: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""
    patch: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""
    patch_blob: Manifest | None = None
    patch_hash: Annotated[bytes, Meta(max_length=32)] = b""
    patch_context: Manifest | None = None
    correction: Manifest | None = None
    work: Work = Work()
    codec: Codec = Codec()
    context: Annotated[bytes, Meta(max_length=32)] = b""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    deadline_ms: Count = 0

    @property
    def training(self) -> Training:
        """The work's first training."""
        return self.work.training or Training()


class Cancel(msgspec.Struct, frozen=True):
    """The order of this run and round is void; round 0 voids the run's every order."""

    run: Id
    round: Count
    reason: Detail


class Decline(msgspec.Struct, frozen=True):
    """The device cannot do this order, and will not be able to by waiting."""

    run: Id
    round: Round
    reason: Short
    detail: Detail = ""


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device has this blob for this round. ``data`` holds the whole blob when it is small.

    ``number`` counts the offers of one transfer; the answering ``Have`` repeats it.
    """

    run: Id
    round: Round
    manifest: Manifest
    number: Count
    data: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""


class Have(msgspec.Struct, frozen=True):
    """Which chunks the receiver holds, and how many it wants in flight at once."""

    number: Count
    bitmap: Annotated[bytes, Meta(max_length=512)]
    credit: Annotated[int, Meta(ge=1, le=64)]


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt: the blob is stored for good. ``late`` when the round had already closed."""

    run: Id
    round: Round
    sha256: Hash
    late: bool = False


class Reject(msgspec.Struct, frozen=True):
    """The blob will never be accepted, and why."""

    run: Id
    round: Round
    sha256: Hash
    reason: Short
    detail: Detail = ""


class Busy(msgspec.Struct, frozen=True):
    """Not now: offer again after this time."""

    retry_ms: Count
    reason: Short = ""


class Get(msgspec.Struct, frozen=True):
    """The device misses these chunks (set bits) of the blob whose transfer id is in the header.

    ``run`` and ``round`` name the order that needs it, so that a void order can be cancelled.
    """

    run: Id
    round: Round
    missing: Annotated[bytes, Meta(max_length=512)]


class Refusal(msgspec.Struct, frozen=True):
    """The last frame could not be taken: its version, its size, its sender."""

    reason: Short
    detail: Detail = ""


Message: TypeAlias = (
    Hello
    | Welcome
    | Order
    | Cancel
    | Goodbye
    | Offer
    | Have
    | Committed
    | Reject
    | Busy
    | Get
    | Decline
    | Refusal
)

KINDS: dict[type[Message], Kind] = {
    Hello: Kind.HELLO,
    Welcome: Kind.WELCOME,
    Order: Kind.ORDER,
    Cancel: Kind.CANCEL,
    Goodbye: Kind.GOODBYE,
    Offer: Kind.OFFER,
    Have: Kind.HAVE,
    Committed: Kind.COMMITTED,
    Reject: Kind.REJECT,
    Busy: Kind.BUSY,
    Get: Kind.GET,
    Decline: Kind.DECLINE,
    Refusal: Kind.REFUSED,
}
_DECODERS: dict[Kind, msgspec.msgpack.Decoder[Message]] = {
    kind: msgspec.msgpack.Decoder(struct) for struct, kind in KINDS.items()
}
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M", bound=msgspec.Struct)


def encode_body(message: Message) -> bytes:
    """The message's MessagePack bytes."""
    return _encoder.encode(message)


def decode_body(kind: Kind, body: bytes) -> Message:
    """The message in a control frame's body. Raises ``FrameError`` when it breaks the schema."""
    if kind not in _DECODERS:
        raise LocalError(f"{kind.name} frames have no message")
    try:
        return _DECODERS[kind].decode(body)
    except (ValueError, RecursionError) as exc:  # msgspec's errors, bad UTF-8, deep nesting
        raise FrameError(f"{kind.name}: {exc}") from exc
