"""The acts: what a coordinator may do to a client, and what the client must make of it.

Every act has a run of its own, so that a client that fails one can pass the next.
"""

import hashlib
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from sedge_cloud.conformance.stage import Act, Broken, Cut, Heard, Model, Stage, Step, kind_of
from sedge_cloud.store.vectors import hash_of
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import RemoteError
from sedge_protocol.layout import Theta
from sedge_protocol.wire import messages
from sedge_protocol.wire.bundle import pack
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.messages import (
    Codec,
    Decline,
    Hello,
    Offer,
    Order,
    Training,
    Welcome,
    Work,
)
from sedge_protocol.wire.transfer import to_bitmap
from sedge_protocol.wire.update import Report, decode_update

# How long a client may take for what needs no training, for a training, and for a repetition: 2 s and
# the backoff at its longest. How long is listened for what must not come.
SOON_S, TRAINED_S, AGAIN_S, QUIET_S = 10.0, 300.0, 65.0, 5.0
RATE = 0.01
UNKNOWN_KIND = 200

Sub = Generator[Step, Heard | None, "Uploaded"]
S = TypeVar("S", bound=messages.Message)


@dataclass(frozen=True)
class Uploaded:
    """An update as it has come: the offer, the transfer, the blob and its report."""

    offer: Offer
    transfer: bytes
    blob: bytes
    report: Report


def play(model: Model, with_cut: bool = True) -> Callable[[Stage], Act]:
    """Every act, one after the other; a rule that is broken ends its act.

    Without ``with_cut`` nobody can break the client's connection, and that act is left out.
    """

    def acts(stage: Stage) -> Act:
        # Not what an earlier play has left on the device: blobs and versions of its own.
        salt, fresh = stage.incarnation, model.salted(stage.incarnation)
        chosen = [act for act in ACTS if with_cut or act is not cut]
        for number, act in enumerate(chosen):
            run = Run(stage, fresh, f"conformance-{number}-{salt}")
            try:
                yield from act(run)
            except Broken as exc:
                stage.findings.append(exc.finding)
            yield stage.say(messages.Cancel(run.name, 0, "the act is over"))

    return acts


class Run:
    """One act's run: makes its orders, and takes the updates."""

    def __init__(self, stage: Stage, model: Model, name: str) -> None:
        self.stage, self.model, self.name = stage, model, name

    def order(
        self, number: int, theta: Theta, values: ValueCoding = ValueCoding.FP32, **more: object
    ) -> Order:
        """An order of round ``number`` for a model (n,) that is served whole in ``values``."""
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

    def changed(self, number: int) -> tuple[Theta, bytes]:
        """The model of a later round (n,), and the coded step that leads there from the first."""
        theta = self.model.theta
        # Another one in each play: a client may keep the step of an earlier one.
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
        """Takes messages of one type that are about this run, and this round of it."""

        def wanted(heard: Heard) -> bool:
            found = heard.message
            if not isinstance(found, kind) or getattr(found, "run", "") != self.name:
                return False
            return number is None or getattr(found, "round", None) == number

        return wanted

    def is_about(self, heard: Heard) -> bool:
        """Takes every message about this run."""
        return getattr(heard.message, "run", None) == self.name

    def offered(
        self, number: int, seconds: float = TRAINED_S
    ) -> Generator[Step, Heard | None, Heard]:
        """The next offer of an update of a round."""
        text = f"round {number} is trained and offered"
        return (yield from self.stage.expect("7.2", text, self.mine(Offer, number), seconds))

    def take(self, order: Order, heard: Heard) -> Sub:
        """Take an offered update whole: in its offer, or chunk by chunk with a credit of one."""
        offer, stage = message_of(heard, Offer), self.stage
        manifest, transfer = offer.manifest, heard.frame.transfer
        parts: dict[int, bytes] = {}
        if offer.data:
            stage.check("5.19", offer.number == 1, "an offer with data is the transfer's first")
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
                raise Broken("6.4", f"a chunk that is refused: {exc}") from exc
            parts[missing] = chunk.frame.body
        blob = b"".join(parts[i] for i in range(manifest.count))
        if hashlib.sha256(blob).digest() != manifest.sha256:
            raise Broken("6.1", "the chunks of an update do not make the blob of its manifest")
        return Uploaded(offer, transfer, blob, self._judged(order, blob))

    def _judged(self, order: Order, blob: bytes) -> Report:
        """The report of an update, held against its order as 9.3 says."""
        stage, layout = self.stage, self.model.bundle.manifest.layout
        try:
            report, payload = decode_update(blob)
            delta = decode(bytes(payload), layout.size) if payload else None
        except RemoteError as exc:
            raise Broken("9.3", f"an update that is malformed: {exc}") from exc
        for key, expected in (
            ("run", order.run), ("round", order.round), ("task", order.task),
            ("layout_hash", layout.hash), ("model_hash", order.model_hash),
            ("patch_hash", order.patch_hash),
        ):  # fmt: skip
            stage.check("9.3", getattr(report, key) == expected, f"report.{key} is the order's")
        hello = stage.hello
        known = 0 if hello is None else hello.num_train
        stage.check(
            "5.28", 1 <= report.num_examples <= known, "num_examples is at most the HELLO's"
        )
        wanted = order.task == messages.TRAIN and order.work.upload
        stage.check("9.3", (delta is not None) == wanted, "a payload exactly where it was ordered")
        rows = self.model.bundle.manifest.batch_size
        steps = -(-report.num_examples // rows) * order.training.local_epochs
        stage.check("T4", report.steps == steps, f"{steps} steps in all, found {report.steps}")
        return report

    def settle(self, uploaded: Uploaded, answer: messages.Committed | messages.Reject) -> Act:
        """Give the receipt; from then on the update is gone."""
        yield self.stage.say(answer, uploaded.transfer)
        text = f"after {type(answer).__name__.upper()} the update is not offered again"
        yield from self.stage.quiet("7.2", text, self.mine(Offer, uploaded.offer.round), QUIET_S)

    def commit(self, uploaded: Uploaded, late: bool = False) -> Act:
        """The update is on our disk for good."""
        number, sha256 = uploaded.offer.round, uploaded.offer.manifest.sha256
        yield from self.settle(uploaded, messages.Committed(self.name, number, sha256, late))


def join(run: Run) -> Act:
    """HELLO until WELCOME, and again when the coordinator has begun anew."""
    stage = run.stage
    yield from stage.expect("5.3", "HELLO on its topic", kind_of(Hello), TRAINED_S)
    yield from stage.quiet("5.3", "no HELLO after its WELCOME", kind_of(Hello), QUIET_S)
    yield stage.say(Welcome(bytes(16), "conformance"))
    yield from stage.expect(
        "5.5", "HELLO at once after a WELCOME of zeros", kind_of(Hello), 2.0
    )
    sealed = bytearray(stage.say(Welcome(bytes(16), "conformance")).payload)
    sealed[-1] ^= 1
    yield stage.raw(bytes(sealed))
    yield from stage.quiet(
        "3.3", "a frame with a wrong MAC changes nothing", kind_of(Hello), QUIET_S
    )


def train(run: Run) -> Act:
    """A round from nothing: bundle and model in chunks, one of which is damaged on its way."""
    stage = run.stage
    order = run.order(1, run.model.theta)
    last = order.model.count - 1
    stage.shelf.astray.add((order.model.transfer, last))
    yield stage.say(order)
    heard = yield from run.offered(1)
    for name, manifest in (("bundle", order.bundle), ("model", order.model)):
        asked = stage.shelf.asked_for(manifest)
        stage.check("8.1", bool(asked), f"the {name} is asked for")
        first = asked[0] if asked else frozenset[int]()
        stage.check(
            "8.3", set(first) == {0}, f"the first GET of the {name} asks for its first chunk alone"
        )
    asked = stage.shelf.asked_for(order.model)
    stage.check(
        "8.3", asked[-1:] == [frozenset({last})], "a damaged chunk is asked for again, alone"
    )
    again = yield from run.offered(1, AGAIN_S)
    first_offer, offer = message_of(heard, Offer), message_of(again, Offer)
    stage.check(
        "5.19",
        offer.number == first_offer.number + 1,
        "an offer that is repeated has the next number",
    )
    stage.check("5.19", not offer.data, "an offer that is repeated has no data")
    uploaded = yield from run.take(order, again)
    yield from run.commit(uploaded)


def step(run: Run) -> Act:
    """A later round: the model by its step, a patch inside the order; then an evaluation."""
    stage = run.stage
    yield from trained(run)
    theta, coded = run.changed(2)
    blob = stage.shelf.put(coded)
    where = np.array([0, theta.size - 1], np.uint32)[: theta.size]
    patch = encode(
        SparseVector(theta.size, where, theta[where] + 1), ValueCoding.BF16, Compression.ZLIB
    )
    steps = (messages.Step(hash_of(run.model.theta), blob),)
    order = run.order(2, theta, steps=steps, patch=patch, patch_hash=hashlib.sha256(patch).digest())
    yield stage.say(order)
    heard = yield from run.offered(2)
    stage.check("8.1", bool(stage.shelf.asked_for(blob)), "the step is asked for")
    stage.check("8.1", not stage.shelf.asked_for(order.model), "with a step the model is not")
    yield from run.commit((yield from run.take(order, heard)))
    order = run.order(3, theta, task=messages.EVALUATE)
    yield stage.say(order)
    heard = yield from run.offered(3)
    stage.check(
        "8.2", not stage.shelf.asked_for(order.model), "a version that is held is not asked for"
    )
    yield from run.commit((yield from run.take(order, heard)))


def broken_step(run: Run) -> Act:
    """A step that leads elsewhere: the whole model, in int8 this time, is fetched in its place."""
    stage = run.stage
    yield from trained(run)
    _, coded = run.changed(2)
    theta, _ = run.changed(3)
    steps = (messages.Step(hash_of(run.model.theta), stage.shelf.put(coded)),)
    order = run.order(2, theta, ValueCoding.INT8, steps=steps)
    yield stage.say(order)
    heard = yield from run.offered(2)
    stage.check(
        "8.2", bool(stage.shelf.asked_for(order.model)), "after a wrong step the model is asked for"
    )
    yield from run.commit((yield from run.take(order, heard)))


def restart(run: Run) -> Act:
    """The coordinator dies between offer and receipt, and the round is over when it is back."""
    stage = run.stage
    order = run.order(1, run.model.theta)
    yield stage.say(order)
    yield from run.offered(1)
    old = stage.say(order)
    stage.restart()
    yield stage.say(Welcome(bytes(16), "conformance"))
    yield from stage.expect(
        "5.5", "HELLO after the coordinator's restart", kind_of(Hello), 2.0
    )
    heard = yield from run.offered(1, AGAIN_S)
    yield from run.commit((yield from run.take(order, heard)), late=True)
    yield old
    text = "an order of the coordinator's earlier start is not acted on"
    yield from stage.quiet("3.6", text, run.mine(Offer), QUIET_S)


def cut(run: Run) -> Act:
    """The connection breaks between offer and receipt."""
    stage = run.stage
    order = run.order(1, run.model.theta)
    yield stage.say(order)
    yield from run.offered(1)
    yield Cut()
    yield from stage.expect("1.9", "HELLO on the next connection", kind_of(Hello), AGAIN_S)
    heard = yield from run.offered(1, SOON_S)
    yield from run.commit((yield from run.take(order, heard)))


def reject(run: Run) -> Act:
    """An update that is refused is never offered again."""
    order = run.order(1, run.model.theta)
    yield run.stage.say(order)
    uploaded = yield from run.take(order, (yield from run.offered(1)))
    sha256 = uploaded.offer.manifest.sha256
    no = messages.Reject(run.name, 1, sha256, "malformed", "the script says so")
    yield from run.settle(uploaded, no)


def cancel(run: Run) -> Act:
    """A cancelled order is not worked on, nor after it has been played back."""
    stage = run.stage
    order = stage.say(run.order(1, run.changed(1)[0]))
    yield order
    yield stage.say(messages.Cancel(run.name, 1, "the script says so"))
    yield from stage.quiet("5.17", "nothing is offered after CANCEL", run.mine(Offer), QUIET_S)
    yield order
    yield from stage.quiet("3.6", "an order that is played back is dropped", run.is_about, QUIET_S)


def unknown(run: Run) -> Act:
    """What a later version may send: ignored where it can be, declined where it cannot."""
    stage = run.stage
    yield stage.say_raw(UNKNOWN_KIND, b"\x80")
    order = run.order(1, run.model.theta)
    fields = msgspec.to_builtins(order, builtin_types=(bytes,))
    yield stage.say_raw(Kind.ORDER, msgspec.msgpack.encode({**fields, "later": [1, 2]}))
    heard = yield from run.offered(1)
    stage.check("3.5", True, "an unknown kind and an unknown key are ignored")
    yield from run.commit((yield from run.take(order, heard)))
    body = msgspec.msgpack.encode({**fields, "round": 2, "task": "dream"})
    yield stage.say_raw(Kind.ORDER, body)
    text = "DECLINE of an order with an unknown value"
    yield from stage.expect("3.5", text, run.mine(Decline, 2), SOON_S)
    garbage = stage.shelf.put(b"no bundle")
    yield stage.say(msgspec.structs.replace(order, round=3, bundle=garbage))
    text = "DECLINE of an order whose bundle is none"
    yield from stage.expect("B4", text, run.mine(Decline, 3), SOON_S)


def trained(run: Run) -> Act:
    """The first round of a run, without further questions."""
    order = run.order(1, run.model.theta)
    yield run.stage.say(order)
    yield from run.commit((yield from run.take(order, (yield from run.offered(1)))))


def slice_of(span: tuple[int, int]) -> slice:
    """Offset and length as a slice."""
    return slice(span[0], span[0] + span[1])


def is_chunk(transfer: bytes, index: int) -> Callable[[Heard], bool]:
    """Takes one chunk of a transfer."""

    def wanted(heard: Heard) -> bool:
        frame = heard.frame
        return (frame.kind, frame.transfer, frame.index) == (Kind.CHUNK, transfer, index)

    return wanted


def message_of(heard: Heard, kind: type[S]) -> S:
    """The message of a frame that was waited for as one of this type."""
    assert isinstance(heard.message, kind)
    return heard.message


ACTS = (join, train, step, broken_step, restart, cut, reject, cancel, unknown)
