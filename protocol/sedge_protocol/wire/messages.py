"""The bodies of control frames: MessagePack maps, one struct per frame kind.

Unknown keys are ignored, so a newer peer of the same version may send more. A missing key without a
default, a wrong type or a value out of range raises ``FrameError`` before anything acts on the message. The
string below a field becomes its row in the tables of WIRE.md (``make spec``).
"""

from typing import Annotated, Final, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Meta

from sedge_protocol.errors import BodyError, LocalError, RemoteError
from sedge_protocol.wire.frame import MAX_BODY_BYTES, Kind
from sedge_protocol.wire.places import MAX_PLACES, Place
from sedge_protocol.wire.settings import MAX_SETTINGS_BYTES, NAME_BYTES
from sedge_protocol.wire.topics import ID_PATTERN
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import MAX_CHUNKS, MAX_INLINE_BYTES, Manifest
from sedge_protocol.wire.work import Codec, Hash, Seed, Step, Work

Id: TypeAlias = Annotated[str, Meta(pattern=ID_PATTERN)]
Short: TypeAlias = Annotated[str, Meta(max_length=64)]
# Long enough for a sentence that says what is wrong, where, and what was expected.
Detail: TypeAlias = Annotated[str, Meta(max_length=1000)]
# One bit for each of at most 4096 chunks.
Bitmap: TypeAlias = Annotated[bytes, Meta(max_length=MAX_CHUNKS // 8)]
Nonce: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**40)]
# Padding that makes a message large. A doctor uses it to measure which sizes the brokers forward.
Padding: TypeAlias = Annotated[bytes, Meta(max_length=MAX_BODY_BYTES)]
Round: TypeAlias = Annotated[int, Meta(ge=1, le=2**31)]
# A policy (policy.py) with its signature.
MAX_POLICY_BYTES = 4096
SealedPolicy: TypeAlias = Annotated[bytes, Meta(max_length=MAX_POLICY_BYTES)]
# The sizes of an uncompressed P-256 point and of a proof (joining.py).
POINT_BYTES, PROOF_BYTES = 65, 16
Point: TypeAlias = Annotated[bytes, Meta(min_length=POINT_BYTES, max_length=POINT_BYTES)]
Proof: TypeAlias = Annotated[bytes, Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]
Tag: TypeAlias = Annotated[str, Meta(max_length=100)]
JoinState: TypeAlias = Literal["pending", "accepted", "refused"]
TRAIN: Final = "train"
EVALUATE: Final = "evaluate"
Task: TypeAlias = Literal["train", "evaluate"]
# The maximum number of steps in an order, as a longer chain is rarely smaller than the whole model, and the
# number of runs whose state a device keeps: at most a bundle and six times the model's size for each.
MAX_STEPS, MAX_RUNS = 32, 16
Versions: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=1, le=255)], ...], Meta(min_length=1, max_length=16)
]
# The prefix of the nonce in a doctor's hello. Agents ignore a welcome with such a nonce.
DOCTOR = b"doctor\0\0"


class Hello(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device has (re)connected; it describes itself and what it can do."""

    nonce: Nonce
    """Random, new with every connection."""
    version: Short
    """The version of the agent's software, for people."""
    backends: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    """What the device can train with: the program runtimes ``onnxruntime`` and ``executorch``, or its own
    code, ``torch`` and ``function``, which needs no program (B14)."""
    compressions: Annotated[tuple[Short, ...], Meta(max_length=16)] = ()
    """Compressions that the device reads: ``zstd``; ``zlib`` and ``none`` are implied and may be listed."""
    codecs: Annotated[tuple[Short, ...], Meta(max_length=32)] = ()
    """The words of the device's extensions (extensions.md)."""
    num_train: Count = 0
    """The number of the device's training examples (5.28)."""
    num_test: Count = 0
    """The number of the device's test examples."""
    memory_mb: Count = 0
    """The machine's memory in units of 10^6 bytes; 0: unknown, so no work is withheld for lack of it."""
    versions: Versions = (1,)
    """The versions of this protocol that the device speaks."""
    waits: Detail = ""
    """For people: why the device is not starting its orders, or one of them, such as a low battery. Until
    that changes, the coordinator does not count on the device (C16)."""
    max_packet: Count = 0
    """The Maximum Packet Size in bytes of the device's broker, if below 266304; 0: none is announced."""
    padding: Padding = b""
    """In a doctor's HELLO only (3.4): the answering WELCOME carries the same padding."""
    holds: Annotated[tuple[Id, ...], Meta(max_length=MAX_RUNS)] | None = None
    """The runs for which the device keeps state (5.12), so that no order relies on state that is missing;
    nil: not stated."""
    leaves: bool = False
    """The device leaves the fleet for good (5.4)."""
    certificate: Annotated[bytes, Meta(max_length=16)] = b""
    """The first 16 bytes of the SHA-256 of the device's certificate (DER) for the broker; empty: the device
    accepts none (E19)."""
    settings: Annotated[bytes, Meta(max_length=NAME_BYTES)] | None = None
    """The name of the settings that the device has accepted (settings.md), empty for none; nil: the device
    accepts none."""


class Welcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The coordinator has received the hello with this nonce."""

    nonce: Nonce
    """The nonce of the hello, or zeros."""
    version: Short
    """The version of the coordinator's software, for people."""
    versions: Versions = (1,)
    """The versions of this protocol that the coordinator speaks."""
    devices: Count = 0
    """The number of devices in the fleet, used to spread out their connections (1.9); 0: not stated."""
    max_packet: Count = 0
    """The largest packet that the coordinator's broker lets through, in bytes, if below 266304; 0: there is
    no such limit."""
    padding: Padding = b""
    """The padding of a doctor's HELLO."""
    settings: Annotated[bytes, Meta(max_length=MAX_SETTINGS_BYTES)] = b""
    """The values that tighten the device's own settings (settings.md); empty: none."""


class Goodbye(msgspec.Struct, frozen=True):
    """Ends the session of the hello with this nonce. Sent by the device or, as its will, by the broker."""

    nonce: Nonce
    """The nonce of the session."""


class Order(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One device's work in one round."""

    run: Id
    """The round's run."""
    round: Round
    """The number of the round."""
    task: Task
    """``evaluate``: train as ordered and report, but neither keep nor send the result."""
    bundle: Manifest
    """The packed bundle (bundle.md)."""
    model: Manifest
    """The whole global model, or this device's replacement for it: a coded vector, sent with k = n (the
    device checks its hash, not k)."""
    model_hash: Hash
    """The SHA-256 of the decoded model, n float32 little endian."""
    steps: Annotated[tuple[Step, ...], Meta(max_length=MAX_STEPS)] = ()
    """Deltas that lead to the model, oldest first; the last one produces it."""
    patch: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""
    """A coded vector of absolute values that overwrite elements of the model; empty: none."""
    patch_blob: Manifest | None = None
    """The patch, if it is too large to be sent inline."""
    patch_hash: Annotated[bytes, Meta(max_length=32)] = b""
    """The SHA-256 of the coded patch; empty if there is none."""
    patch_context: Manifest | None = None
    """Extension ``select``: the mask that the patch's mask is coded against."""
    correction: Manifest | None = None
    """Extension ``correction``: a coded vector that the device adds to every gradient of the model that it
    sends."""
    frozen: Manifest | None = None
    """Extension ``frozen`` (X15): the manifest of the bundle's frozen blob, if its chunks differ from those
    in the bundle."""
    places: Annotated[tuple[Place, ...], Meta(max_length=MAX_PLACES)] = ()
    """Extension ``places`` (X19): HTTP servers that also have some of these blobs; a device may ignore
    them."""
    work: Work = Work()
    """What the device does with the start vector."""
    codec: Codec = Codec()
    """How the device encodes its update."""
    context: Annotated[bytes, Meta(max_length=32)] = b""
    """Extension ``select``: the SHA-256 of the mask that the coordinator holds, a bitmap of n bits; empty:
    none."""
    seed: Seed = 0
    """The seed of the device's shuffles."""
    policy: SealedPolicy = b""
    """The run's signed policy (policy.md); empty: none."""
    origin: Annotated[bytes, Meta(max_length=32)] = b""
    """The SHA-256 of the run's first bundle, of which this one is another version (5.30); empty: it is the
    first."""

    @property
    def first_bundle(self) -> bytes:
        """The SHA-256 of the first version of the order's bundle."""
        return self.origin or self.bundle.sha256

    @property
    def training(self) -> Training:
        """The settings of the order's first training phase."""
        return self.work.training or Training()


class OrderName(msgspec.Struct, frozen=True):
    """The run and round of an order, the only parts that can be read if the order has an unknown value."""

    run: Id
    """The order's run."""
    round: Round
    """The order's round."""


class Cancel(msgspec.Struct, frozen=True):
    """The order of this run and round is void."""

    run: Id
    """The order's run."""
    round: Count
    """The round whose order is void; 0: all orders of the run."""
    reason: Detail
    """The reason, for people."""


class Decline(msgspec.Struct, frozen=True):
    """The device cannot carry out this order, and waiting would not help."""

    run: Id
    """The order's run."""
    round: Round
    """The order's round."""
    reason: Short
    """A code from section 10."""
    detail: Detail = ""
    """What is wrong, where, and what was expected."""


class Offer(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device has this blob for this round."""

    run: Id
    """The run of the order that the update answers."""
    round: Round
    """The round of that order."""
    manifest: Manifest
    """The manifest of the update blob."""
    number: Count
    """Counts the offers of one transfer; the answering HAVE repeats it."""
    data: Annotated[bytes, Meta(max_length=MAX_INLINE_BYTES)] = b""
    """The whole blob if it is small; otherwise empty."""


class Have(msgspec.Struct, frozen=True):
    """Says which chunks the receiver has, and how many it wants in flight at once."""

    number: Count
    """The number of the offer that this HAVE answers; 0: none."""
    bitmap: Bitmap
    """The chunks that the receiver holds."""
    credit: Annotated[int, Meta(ge=1, le=64)]
    """How many chunks the receiver wants in flight at once."""


class Committed(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt: the blob is stored durably."""

    run: Id
    """The offer's run."""
    round: Round
    """The offer's round."""
    sha256: Hash
    """The SHA-256 of the update blob."""
    late: bool = False
    """Whether the round had already closed."""


class Reject(msgspec.Struct, frozen=True):
    """The blob will never be accepted, for this reason."""

    run: Id
    """The offer's run."""
    round: Round
    """The offer's round."""
    sha256: Hash
    """The SHA-256 of the update blob."""
    reason: Short
    """A code from section 10."""
    detail: Detail = ""
    """What is wrong, where, and what was expected."""


class Busy(msgspec.Struct, frozen=True):
    """Not now: offer again after this time."""

    retry_ms: Count
    """Milliseconds until the next offer."""
    reason: Short = ""
    """The reason, for people."""


class Get(msgspec.Struct, frozen=True):
    """The device lacks these chunks of the blob whose transfer id is in the header.

    ``run`` and ``round`` name the order that needs it, so that a void order can be cancelled.
    """

    run: Id
    """The run of an order that needs the blob."""
    round: Round
    """The round of that order."""
    missing: Bitmap
    """A bitmap as in 5.20: the chunks to send."""


class Refusal(msgspec.Struct, frozen=True):
    """The reason why the coordinator cannot work with the device."""

    reason: Short
    """A code from section 10."""
    detail: Detail = ""
    """What is wrong, where, and what was expected."""


class Join(msgspec.Struct, frozen=True, omit_defaults=True):
    """A device asks to join, on its token's topic (E9), or for a new secret, on its own topic (E14)."""

    point: Point
    """The device's public key, a point on P-256."""
    device: Id
    """The id that the device requests."""
    proof: Proof
    """Proves that the sender has the private key (E10)."""
    version: Short = ""
    """The version of the device's software, for people."""


class Joined(msgspec.Struct, frozen=True, omit_defaults=True):
    """The coordinator's answer to a JOIN, or a later decision on it."""

    of: Nonce
    """The first 16 bytes of the SHA-256 of the public key in the JOIN."""
    state: JoinState
    """``pending``: a person has yet to accept the device; ``accepted``; ``refused``."""
    device: Annotated[str, Meta(max_length=48)] = ""
    """The device's id."""
    proof: Annotated[bytes, Meta(max_length=PROOF_BYTES)] = b""
    """In ``accepted``: proves that the sender is the coordinator (E10)."""
    tags: Annotated[tuple[Tag, ...], Meta(max_length=32)] = ()
    """In ``accepted``: the device's tags, ``key=value`` each, for people."""
    detail: Detail = ""
    """In ``refused``: what is wrong, and what was expected."""
    certificate: Annotated[bytes, Meta(max_length=2048)] = b""
    """In ``accepted``: the device's certificate for the broker, DER, where it needs one (E18, E19)."""


class Renew(msgspec.Struct, frozen=True):
    """Asks the device to change its secret (E14); it answers with a JOIN."""

    point: Point
    """The coordinator's public key, a point on P-256."""


Message: TypeAlias = (
    Hello | Welcome | Order | Cancel | Goodbye | Offer | Have | Committed | Reject | Busy | Get | Decline
    | Refusal | Join | Joined | Renew
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
    Join: Kind.JOIN,
    Joined: Kind.JOINED,
    Renew: Kind.RENEW,
}
_DECODERS: dict[Kind, msgspec.msgpack.Decoder[Message]] = {
    kind: msgspec.msgpack.Decoder(struct) for struct, kind in KINDS.items()
}
_encoder = msgspec.msgpack.Encoder()

M = TypeVar("M", bound=msgspec.Struct)


def encode_body(message: Message) -> bytes:
    """Encode a message as MessagePack, with the one-byte map header where msgspec writes three bytes."""
    body = _encoder.encode(message)
    return bytes([0x80 | body[2]]) + body[3:] if body[:2] == b"\xde\0" and body[2] < 16 else body


def decode_body(kind: Kind, body: bytes) -> Message:
    """Decode the message in a control frame's body. Raises ``BodyError`` if it breaks the schema."""
    if kind not in _DECODERS:
        raise LocalError(f"{kind.name} frames have no message")
    try:
        return _DECODERS[kind].decode(body)
    except (ValueError, RecursionError) as exc:  # from msgspec: bad schema, UTF-8 or nesting
        raise BodyError(kind.name, body, str(exc)) from exc


def unreadable_order(error: RemoteError) -> OrderName | None:
    """Return the run and round of an order that could not be decoded, or None if they are unreadable.

    The order has a value unknown to this version. If it were dropped silently, it would be resent forever.
    """
    if not isinstance(error, BodyError) or error.kind != Kind.ORDER.name:
        return None
    try:
        return msgspec.msgpack.decode(error.body, type=OrderName)
    except (ValueError, RecursionError):
        return None
