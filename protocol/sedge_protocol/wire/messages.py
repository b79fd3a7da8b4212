"""The bodies of control frames: MessagePack maps, one struct per frame kind.

Unknown keys are ignored, so a newer peer of the same version may send more. A missing key without a
default, a wrong type or a value out of range is a ``FrameError`` before anything acts on the message.
"""

from typing import Annotated, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import BodyError, LocalError, RemoteError
from sedge_protocol.wire.frame import MAX_BODY_BYTES, Kind
from sedge_protocol.wire.places import MAX_PLACES, Place
from sedge_protocol.wire.topics import ID_PATTERN
from sedge_protocol.wire.training import Names
from sedge_protocol.wire.training import Training as Training
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES as MAX_INLINE_BYTES
from sedge_protocol.wire.transfer import Manifest

Id: TypeAlias = Annotated[str, Meta(pattern=ID_PATTERN)]
Short: TypeAlias = Annotated[str, Meta(max_length=64)]
# Long enough for one sentence that names what, where and what was expected.
Detail: TypeAlias = Annotated[str, Meta(max_length=1000)]
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Hash: TypeAlias = Annotated[bytes, Meta(min_length=32, max_length=32)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**40)]
# Zeros that make a message large, with which a doctor measures what the brokers let through.
Padding: TypeAlias = Annotated[bytes, Meta(max_length=MAX_BODY_BYTES)]
Round: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]

TRAIN = "train"
EVALUATE = "evaluate"
Task: TypeAlias = Literal["train", "evaluate"]
# The most steps that an order may name; a longer chain is rarely smaller than the whole model.
MAX_STEPS = 32
# The most trainings of one order, one after the other; FedRep has two.
MAX_PHASES = 8
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Versions: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=1, le=255)], ...], Meta(min_length=1, max_length=16)
]
# How the nonce of a doctor's hello begins; agents take no notice of the welcome to it.
DOCTOR = b"doctor\0\0"


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device has (re)connected: what it is and what it can do.

    ``versions`` are the protocol versions that it speaks; ``version`` is its software's, for people.
    ``waits`` says, for people, why it does not begin orders for now; the coordinator does not count on it.
    ``max_packet`` is the largest MQTT packet, in bytes, that its broker announces; 0: no limit below the
    protocol's own. The coordinator keeps the smaller of this and its own here. ``padding`` is for doctors.
    ``holds`` names the runs of which the device keeps a model; None: not said.
    """

    nonce: Nonce
    version: Short
    backends: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    compressions: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    codecs: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    num_train: Count = 0
    num_test: Count = 0
    memory_mb: Count = 0
    versions: Versions = (1,)
    waits: Detail = ""
    max_packet: Count = 0
    padding: Padding = b""
    holds: Annotated[tuple[Id, ...], Meta(max_length=16)] | None = None


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The coordinator has received the hello with this nonce, and speaks these protocol ``versions``.

    ``devices`` is the number of devices of the fleet, by which these spread their connections (0: unknown).
    ``max_packet`` is the largest MQTT packet, in bytes, that comes through its broker; 0: unknown. The
    ``padding`` is that of a doctor's hello.
    """

    nonce: Nonce
    version: Short
    versions: Versions = (1,)
    devices: Count = 0
    max_packet: Count = 0
    padding: Padding = b""


class Goodbye(msgspec.Struct, frozen=True):
    """The session of the hello with this nonce is over; sent by the device or, as its will, the broker."""

    nonce: Nonce


class OwnModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """A second model, which never leaves the device and with which it evaluates and predicts.

    It starts where it ended last time, at first from the round's start vector. Its ``training`` comes after
    that of the sent model, and ``prox`` pulls it towards the round's start vector (Ditto). With ``mix``
    below 1 the device evaluates the mixture mix * own + (1 - mix) * sent, whose gradient trains the own
    model; both models are trained together, step by step, by the order's first training (APFL).
    ``adaptive`` lets the device move ``mix`` by its own gradient and report the result.
    """

    training: Training = Training()
    mix: Share = 1.0
    adaptive: bool = False

    @property
    def mixes(self) -> bool:
        """Whether this is a mixture; an adaptive one may have reached ``mix`` = 1."""
        return self.mix < 1 or self.adaptive


class UpdateSelection(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device sends the elements on which its loss depends most, tensor by tensor (FedPURIN, FedCAC).

    c = |g theta| of every element of the trained model, or with ``hessian`` |-g theta + (g theta)^2 / 2|.
    g is the gradient of the ``last`` batch, or the ``delta`` trained - start; with ``half`` it is first
    rounded to fp16, as in the authors' code, so values below 3e-8 become 0. Of each parameter tensor that
    the device does not keep, the ``fraction`` with the largest c is sent, rounded down, with all that tie
    with the last of them. If the last one's c is not above ``cutoff``, everything above ``cutoff`` is sent
    instead. The codec's own fraction, threshold and error feedback do not apply.
    """

    fraction: Annotated[float, Meta(gt=0, le=1)] = 0.5
    gradient: Literal["last", "delta"] = "last"
    hessian: bool = False
    cutoff: Annotated[float, Meta(ge=0, le=1)] = 1e-10
    half: bool = False


class DeviceScoring(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device finds its personal elements itself, in its last trained model.

    For FedOBP with ``scoring = "device"``: the update is then coded against the global model. ``score`` is
    as in ``importance.py``; ``gradient`` and ``fisher`` use the last batch of the previous round. Elements
    above the ``quantile`` of the scores of ``tensors`` (default: all parameters) are personal.
    """

    quantile: Share
    score: Literal["squared", "product", "gradient", "fisher"] = "squared"
    norm: Literal["none", "global", "layer"] = "none"
    tensors: Names = ()


class PatchChoice(msgspec.Struct, frozen=True, omit_defaults=True):
    """The device chooses whether to apply its patch, judged on examples that it does not train on.

    ``holdout`` is the share of its training examples held out for this, drawn by ``seed``, which is the
    same in every order of a run. It starts with the patch if the metric is better with it, or as good with
    less loss.
    """

    holdout: Annotated[float, Meta(gt=0, lt=1)]
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class Codec(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a device codes its update: it sends the ``fraction`` of elements that are largest in magnitude.

    Of these, only magnitudes of at least ``threshold`` are sent. With ``error_feedback``, what was not sent
    is added to the next round's delta; bf16 then sends a ``fraction`` below 1 rounded to multiples
    (codec/grid.py).
    """

    values: ValueCoding = ValueCoding.FP32
    fraction: Annotated[float, Meta(gt=0, le=1)] = 1.0
    threshold: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    compression: Compression = Compression.ZSTD
    error_feedback: bool = True


class Step(msgspec.Struct, frozen=True):
    """A coded delta that turns the global model with hash ``base_hash`` into the next one."""

    base_hash: Hash
    blob: Manifest


class Work(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a strategy asks of a device in one round, besides the vector that it starts from.

    ``keep`` names tensors that the device takes from its own last model and never sends. Without ``upload``
    only metrics come back. ``then`` are trainings that follow ``training``, each from where the one before
    ended. Without ``training`` a strategy means the run's, and an order the defaults. With ``remember`` the
    device keeps the elements that it sent, as a patch, so a later order can name that patch instead of
    bringing it.
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
        """Every training, in order; the own model's is last."""
        first = (self.training,) if self.training is not None else ()
        own = (self.own_model.training,) if self.own_model is not None else ()
        return (*first, *self.then, *own)


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One device's work in one round.

    ``model`` is the coded global vector, and ``model_hash`` the SHA-256 of its decoded float32 bytes.
    ``steps`` lead to it from older models, the last one to ``model_hash``: a device that has the model with
    a step's ``base_hash`` adds that delta and all later ones instead of fetching ``model``. ``patch``
    (inline) or ``patch_blob`` is a coded vector of absolute values to write over it, and ``patch_hash`` the
    SHA-256 of the coded patch, or empty. ``patch_context`` is the mask, a bitmap of n bits, that decoding
    the patch needs: the device's own last one, to be fetched if the device has lost it. ``correction`` is a
    coded vector (n,) that is added to every gradient of the model that is sent. ``frozen`` is the bundle's
    frozen blob, where that is cut otherwise than the bundle says. ``places`` are HTTP servers that have
    some of these blobs as well. Where ``work`` selects, ``context`` is the SHA-256 of the mask, a bitmap of
    n bits, against which the update may be coded, or empty.
    """

    run: Id
    round: Round
    task: Task
    bundle: Manifest
    model: Manifest
    model_hash: Hash
    steps: Annotated[tuple[Step, ...], Meta(max_length=MAX_STEPS)] = ()
    patch: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""
    patch_blob: Manifest | None = None
    patch_hash: Annotated[bytes, Meta(max_length=32)] = b""
    patch_context: Manifest | None = None
    correction: Manifest | None = None
    frozen: Manifest | None = None
    places: Annotated[tuple[Place, ...], Meta(max_length=MAX_PLACES)] = ()
    work: Work = Work()
    codec: Codec = Codec()
    context: Annotated[bytes, Meta(max_length=32)] = b""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0

    @property
    def training(self) -> Training:
        """The work's first training."""
        return self.work.training or Training()


class OrderName(msgspec.Struct, frozen=True):
    """Which order it is: all that can be read of one with a value that is not known yet."""

    run: Id
    round: Round


class Cancel(msgspec.Struct, frozen=True):
    """The order of this run and round is void; round 0 voids all of the run's orders."""

    run: Id
    round: Count
    reason: Detail


class Decline(msgspec.Struct, frozen=True):
    """The device cannot do this order, and waiting would not help."""

    run: Id
    round: Round
    reason: Short
    detail: Detail = ""


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device has this blob for this round. ``data`` is the whole blob if it is small.

    ``number`` counts the offers of one transfer; the ``Have`` that answers repeats it.
    """

    run: Id
    round: Round
    manifest: Manifest
    number: Count
    data: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""


class Have(msgspec.Struct, frozen=True):
    """Which chunks the receiver has, and how many it wants in flight at once."""

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
    """The device lacks these chunks (set bits) of the blob whose transfer id is in the header.

    ``run`` and ``round`` name the order that needs it, so that a void order can be cancelled.
    """

    run: Id
    round: Round
    missing: Annotated[bytes, Meta(max_length=512)]


class Refusal(msgspec.Struct, frozen=True):
    """Why the coordinator cannot work with the device; ``reason`` is one of WIRE.md's."""

    reason: Short
    detail: Detail = ""


Message: TypeAlias = (
    Hello | Welcome | Order | Cancel | Goodbye | Offer | Have | Committed | Reject | Busy | Get | Decline
    | Refusal
)  # fmt: skip

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
    """The message in a control frame's body. Raises ``BodyError`` when it breaks the schema."""
    if kind not in _DECODERS:
        raise LocalError(f"{kind.name} frames have no message")
    try:
        return _DECODERS[kind].decode(body)
    except (ValueError, RecursionError) as exc:  # msgspec's errors, bad UTF-8, deep nesting
        raise BodyError(kind.name, body, str(exc)) from exc


def unreadable_order(error: RemoteError) -> OrderName | None:
    """Run and round of the order that could not be read, if it was one and these can be.

    It has a value that this version does not know. Dropped in silence it would come again for ever.
    """
    if not isinstance(error, BodyError) or error.kind != Kind.ORDER.name:
        return None
    try:
        return msgspec.msgpack.decode(error.body, type=OrderName)
    except (ValueError, RecursionError):
        return None
