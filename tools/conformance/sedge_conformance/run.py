"""The run of one act, which makes orders and receives updates as a coordinator does."""

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from sedge_cloud.runs.vectors import hash_of
from sedge_conformance.stage import Act, Broken, Heard, Stage, StartModel, Step
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import RemoteError
from sedge_protocol.layout import Theta
from sedge_protocol.wire import messages
from sedge_protocol.wire.bundle import pack
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.messages import Offer, Order
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import to_bitmap
from sedge_protocol.wire.update import Report, decode_update
from sedge_protocol.wire.work import Codec, Work

# How many seconds a client may take to answer, to train, and to retransmit (2 s plus the longest backoff),
# and how many to wait for messages that must not arrive.
SOON_S, TRAINED_S, AGAIN_S, QUIET_S = 10.0, 300.0, 65.0, 5.0
RATE = 0.01
# The tolerance between two evaluations of the same vector, because a client may sum its batches in a
# different order each time.
SAME_LOSS = 1e-4

Sub = Generator[Step, Heard | None, "Uploaded"]
S = TypeVar("S", bound=messages.Message)


@dataclass(frozen=True)
class Uploaded:
    """A received update: its offer, its transfer id, its report and, if there is one, its delta."""

    offer: Offer
    transfer: bytes
    report: Report
    delta: SparseVector | None


class ActRun:
    """The run of a single act: it makes the orders and receives the updates."""

    def __init__(self, stage: Stage, model: StartModel, name: str) -> None:
        self.stage, self.model, self.name = stage, model, name

    def order(
        self, number: int, theta: Theta, values: ValueCoding = ValueCoding.FP32, **more: object
    ) -> Order:
        """Return an order for round ``number`` with a model (n,) in one blob, coded as ``values``."""
        coded = encode(SparseVector(theta.size, None, theta), values, Compression.ZLIB)
        theta = decode(coded, theta.size).dense()
        fields: dict[str, object] = {
            "run": self.name,
            "round": number,
            "task": messages.TRAIN,
            "bundle": self.stage.shelf.put(pack(self.model.bundle)),
            "model": self.stage.shelf.put(coded),
            "model_hash": hash_of(theta),
            "work": Work(training=Training(learning_rate=RATE)),
            "codec": Codec(compression=Compression.ZLIB),
        }
        return Order(**{**fields, **more})  # type: ignore[arg-type]

    def changed(self, number: int, base: Theta | None = None) -> tuple[Theta, bytes]:
        """Return a later round's model (n,), and the coded step that leads to it.

        The step starts from ``base`` or, by default, from the first model.
        """
        theta = self.model.theta if base is None else base
        # The step differs in each play, because a client may still have the step of an earlier play.
        rng = np.random.default_rng([number, *self.name.encode()])
        where = np.sort(rng.choice(theta.size, max(1, theta.size // 20), replace=False)).astype(
            np.uint32
        )
        values = rng.normal(0, 0.01, len(where)).astype(np.float32)
        coded = encode(SparseVector(theta.size, where, values), ValueCoding.INT8, Compression.ZLIB)
        after = theta.copy()
        decode(coded, theta.size).add_to(after)
        return after, coded

    def mine(self, kind: type[S], number: int | None = None) -> Callable[[Heard], bool]:
        """Return a predicate that accepts messages of one type about this run and, if given, this round."""

        def wanted(heard: Heard) -> bool:
            found = heard.message
            if not isinstance(found, kind) or getattr(found, "run", "") != self.name:
                return False
            return number is None or getattr(found, "round", None) == number

        return wanted

    def answers(self, heard: Heard) -> bool:
        """Return True for a message that answers an order in this run: an offer or a decline."""
        return self.mine(Offer)(heard) or self.mine(messages.Decline)(heard)

    def is_about(self, heard: Heard) -> bool:
        """Return True for any message about this run."""
        return getattr(heard.message, "run", None) == self.name

    def offered(
        self, number: int, seconds: float = TRAINED_S
    ) -> Generator[Step, Heard | None, Heard]:
        """Wait for the next offer of a round's update and return it."""
        text = f"round {number} is trained and offered"
        return (yield from self.stage.expect("7.2", text, self.mine(Offer, number), seconds))

    def take(self, order: Order, heard: Heard) -> Sub:
        """Receive an offered update, either inside its offer or chunk by chunk with a credit of one."""
        offer, stage = message_of(heard, Offer), self.stage
        manifest, transfer = offer.manifest, heard.frame.transfer
        parts: dict[int, bytes] = {}
        if offer.data:
            stage.check("5.19", offer.number == 1, "only a transfer's first offer has data")
            parts = {i: offer.data[slice_of(manifest.span(i))] for i in range(manifest.count)}
        while len(parts) < manifest.count:
            have = messages.Have(offer.number, to_bitmap(parts, manifest.count), 1)
            yield stage.say(have, transfer)
            missing = min(set(range(manifest.count)) - parts.keys())
            text = f"chunk {missing}, the lowest that is missing, with a credit of one"
            chunk = yield from stage.expect("7.2", text, is_chunk(transfer, missing), SOON_S)
            try:
                manifest.check(chunk.frame.index, chunk.frame.body)
            except RemoteError as exc:
                raise Broken("6.4", f"invalid chunk: {exc}") from exc
            parts[missing] = chunk.frame.body
        blob = b"".join(parts[i] for i in range(manifest.count))
        if hashlib.sha256(blob).digest() != manifest.sha256:
            raise Broken("6.1", "the chunks of an update do not match the SHA-256 in its manifest")
        return Uploaded(offer, transfer, *self._judged(order, blob))

    def _judged(self, order: Order, blob: bytes) -> tuple[Report, SparseVector | None]:
        """Check an update against its order as rule 9.3 requires. Returns its report and its delta."""
        stage, layout = self.stage, self.model.bundle.manifest.layout
        try:
            report, payload = decode_update(blob)
            delta = decode(bytes(payload), layout.size) if payload else None
        except RemoteError as exc:
            raise Broken("9.3", f"malformed update: {exc}") from exc
        for key, expected in (
            ("run", order.run), ("round", order.round), ("task", order.task),
            ("layout_hash", layout.hash), ("model_hash", order.model_hash),
            ("patch_hash", order.patch_hash),
        ):  # fmt: skip
            stage.check("9.3", getattr(report, key) == expected, f"report.{key} is the order's")
        hello = stage.hello
        known = 0 if hello is None else hello.num_train
        stage.check(
            "5.28",
            1 <= report.num_examples <= known,
            "num_examples is from 1 to the HELLO's num_train",
        )
        wanted = order.task == messages.TRAIN and order.work.upload
        stage.check(
            "9.3", (delta is not None) == wanted, "a payload exactly if the order asks for one"
        )
        rows = self.model.bundle.manifest.batch_size
        steps = -(-report.num_examples // rows) * order.training.local_epochs
        stage.check(
            "T4", report.steps == steps, f"report.steps is {report.steps}, expected {steps}"
        )
        return report, delta

    def receipt(self, uploaded: Uploaded, late: bool = False) -> messages.Committed:
        """Return the message that acknowledges an update as stored durably."""
        offer = uploaded.offer
        return messages.Committed(self.name, offer.round, offer.manifest.sha256, late)

    def settle(self, uploaded: Uploaded, answer: messages.Committed | messages.Reject) -> Act:
        """Answer an offer, and check that the update is not offered again."""
        yield self.stage.say(answer, uploaded.transfer)
        text = f"after {type(answer).__name__.upper()} the update is not offered again"
        yield from self.stage.quiet("7.2", text, self.mine(Offer, uploaded.offer.round), QUIET_S)

    def worked(self, order: Order) -> Sub:
        """Play a whole round: send the order, receive the update, send the receipt. Returns the update."""
        yield self.stage.say(order)
        uploaded = yield from self.take(order, (yield from self.offered(order.round)))
        yield self.stage.say(self.receipt(uploaded), uploaded.transfer)
        return uploaded

    def started_from(self, uploaded: Uploaded, theta: Theta, text: str) -> Act:
        """Check that an update started from theta (n,) by comparing losses.

        The update's loss before training must equal the loss of theta in an evaluation.
        """
        order = self.order(uploaded.offer.round + 1, theta, task=messages.EVALUATE)
        loss = (yield from self.worked(order)).report.before.loss
        found = uploaded.report.before.loss
        good = abs(found - loss) <= SAME_LOSS * max(1.0, abs(loss))
        self.stage.check("T1", good, f"{text}: loss before training {found:g}, expected {loss:g}")


def slice_of(span: tuple[int, int]) -> slice:
    """Convert an offset and a length to a slice."""
    return slice(span[0], span[0] + span[1])


def is_chunk(transfer: bytes, index: int) -> Callable[[Heard], bool]:
    """Return a predicate that accepts one chunk of a transfer."""

    def wanted(heard: Heard) -> bool:
        frame = heard.frame
        return (frame.kind, frame.transfer, frame.index) == (Kind.CHUNK, transfer, index)

    return wanted


def message_of(heard: Heard, kind: type[S]) -> S:
    """Return a frame's message, which must be of this type."""
    assert isinstance(heard.message, kind)
    return heard.message
