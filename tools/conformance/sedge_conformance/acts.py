"""The acts, which are the test cases: what a coordinator may do, and how the client must react.

Every act has its own run, so a client that fails one act can still pass the next.
"""

import hashlib
from collections.abc import Callable

import msgspec
import numpy as np

from sedge_cloud.runs.vectors import hash_of
from sedge_conformance.run import (
    AGAIN_S,
    QUIET_S,
    RATE,
    SOON_S,
    TRAINED_S,
    ActRun,
    message_of,
)
from sedge_conformance.stage import Act, Broken, Cut, Heard, Stage, StartModel, kind_of
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.wire import messages
from sedge_protocol.wire.frame import VERSIONS, Kind
from sedge_protocol.wire.joining import RENEWS, Agreement, private_key, public_key
from sedge_protocol.wire.messages import Decline, Hello, Join, Offer, Renew, Welcome
from sedge_protocol.wire.places import Place
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Codec, Step, Work

UNKNOWN_KIND, UNKNOWN_VERSION = 200, 255
NOT_UTF_8 = msgspec.Raw(b"\xa1\xff")
# An unknown key may have any value, even one that is not valid MessagePack text.
LATER = [1, {2: msgspec.msgpack.Ext(5, b"later")}, NOT_UTF_8]
# After this many unanswered offers, a client waits at least 3.6 s before the next offer. Once the
# coordinator has woken it, it waits at most 2 s; WOKEN_S allows another second for a slow link.
SILENT_OFFERS, WOKEN_S = 5, 3.0
# How long the receiver says it is busy: three times as long as a client usually waits for an answer.
BUSY_S = 8.0
# An address on the client's own machine where nothing listens.
NOBODY = "http://127.0.0.1:1"


def play(model: StartModel, with_cut: bool = True) -> Callable[[Stage], Act]:
    """Return the script that plays the acts one after another. An act ends at the first broken rule.

    Without ``with_cut`` the act that breaks the client's connection is left out.
    """

    def acts(stage: Stage) -> Act:
        # Use new blobs and versions, so that the device has none of them from an earlier play.
        salt, fresh = stage.incarnation, model.salted(stage.incarnation)
        chosen = [act for act in ACTS if with_cut or act is not cut]
        for number, act in enumerate(chosen):
            stage.act = act.__name__
            run = ActRun(stage, fresh, f"conformance-{number}-{salt}")
            try:
                yield from act(run)
            except Broken as exc:
                stage.check(exc.rule, False, exc.text)
            yield stage.say(messages.Cancel(run.name, 0, "the act is over"))

    return acts


def join(run: ActRun) -> Act:
    """Check that the client sends HELLO until it gets WELCOME, and again after a coordinator's restart."""
    stage = run.stage
    yield from stage.expect("5.3", "HELLO on its topic", kind_of(Hello), TRAINED_S)
    yield from stage.quiet("5.3", "no HELLO after its WELCOME", kind_of(Hello), QUIET_S)
    yield stage.say(Welcome(bytes(16), "conformance", VERSIONS))
    yield from stage.expect(
        "5.5", "HELLO at once after a WELCOME with a zero nonce", kind_of(Hello), 2.0
    )
    yield stage.hint()
    yield from stage.expect("1.10", "HELLO soon after a hint", kind_of(Hello), 2.0)
    sealed = bytearray(stage.say(Welcome(bytes(16), "conformance", VERSIONS)).payload)
    sealed[-1] ^= 1
    yield stage.raw(bytes(sealed))
    yield from stage.quiet(
        "3.3", "a frame with a wrong MAC changes nothing", kind_of(Hello), QUIET_S
    )


def train(run: ActRun) -> Act:
    """Play a first round: the client downloads bundle and model in chunks, one of which arrives damaged."""
    stage = run.stage
    order = run.order(1, run.model.theta)
    last = order.model.count - 1
    stage.shelf.astray.add((order.model.transfer, last))
    yield stage.say(order)
    heard = yield from run.offered(1)
    for name, manifest in (("bundle", order.bundle), ("model", order.model)):
        asked = stage.shelf.asked_for(manifest)
        stage.check("8.1", bool(asked), f"the {name} is requested")
        first = asked[0] if asked else frozenset[int]()
        stage.check(
            "8.3", set(first) == {0}, f"the first GET for the {name} requests only its first chunk"
        )
    asked = stage.shelf.asked_for(order.model)
    stage.check(
        "8.3", asked[-1:] == [frozenset({last})], "a damaged chunk is requested again, alone"
    )
    again = yield from run.offered(1, AGAIN_S)
    first_offer, offer = message_of(heard, Offer), message_of(again, Offer)
    stage.check(
        "5.19",
        offer.number == first_offer.number + 1,
        "a repeated offer has the next number",
    )
    stage.check("5.19", not offer.data, "a repeated offer has no data")
    uploaded = yield from run.take(order, again)
    yield from run.settle(uploaded, run.receipt(uploaded))


def step(run: ActRun) -> Act:
    """Play later rounds: one order needs two steps to reach its model, and has a patch; evaluations
    follow.
    """
    stage, first = run.stage, run.model.theta
    yield from run.worked(run.order(1, first))
    between, coded = run.changed(2)
    theta, further = run.changed(3, between)
    blobs = stage.shelf.put(coded), stage.shelf.put(further)
    where = np.array([0, theta.size - 1], np.uint32)[: theta.size]
    patch = encode(
        SparseVector(theta.size, where, theta[where] + 1), ValueCoding.BF16, Compression.ZLIB
    )
    bases = hash_of(first), hash_of(between)
    steps = tuple(Step(base, blob) for base, blob in zip(bases, blobs, strict=True))
    order = run.order(2, theta, steps=steps, patch=patch, patch_hash=hashlib.sha256(patch).digest())
    yield from run.worked(order)
    for blob in blobs:
        stage.check("8.1", bool(stage.shelf.asked_for(blob)), "a step is requested")
    stage.check(
        "8.1",
        not stage.shelf.asked_for(order.model),
        "the model is not requested if there is a step",
    )
    order = run.order(3, theta, task=messages.EVALUATE)
    yield from run.worked(order)
    stage.check(
        "8.2",
        not stage.shelf.asked_for(order.model),
        "a version that the client has is not requested",
    )
    theta, coded = run.changed(4, theta)
    steps = (Step(order.model_hash, stage.shelf.put(coded)),)
    yield from run.worked(run.order(4, theta, task=messages.EVALUATE, steps=steps))
    order = run.order(5, theta)
    yield from run.worked(order)
    text = "the client also keeps the version from an evaluation"
    stage.check("9.1", not stage.shelf.asked_for(order.model), text)


def broken_step(run: ActRun) -> Act:
    """Check that the client downloads the whole model, here in int8, if a step yields the wrong model."""
    stage = run.stage
    yield from run.worked(run.order(1, run.model.theta))
    _, coded = run.changed(2)
    theta, _ = run.changed(3)
    steps = (Step(hash_of(run.model.theta), stage.shelf.put(coded)),)
    order = run.order(2, theta, ValueCoding.INT8, steps=steps)
    yield from run.worked(order)
    stage.check(
        "8.2", bool(stage.shelf.asked_for(order.model)), "the model is requested after a wrong step"
    )


def patched(run: ActRun) -> Act:
    """Play an order whose patch is a separate blob, then one that asks for no update."""
    stage, theta = run.stage, run.model.theta
    where = np.arange(0, theta.size, 2, dtype=np.uint32)
    patch = SparseVector(theta.size, where, theta[where] * np.float32(0.5))
    coded = encode(patch, ValueCoding.FP32, Compression.ZLIB)
    blob = stage.shelf.put(coded)
    order = run.order(1, theta, patch_blob=blob, patch_hash=blob.sha256)
    uploaded = yield from run.worked(order)
    stage.check("8.1", bool(stage.shelf.asked_for(blob)), "the patch is requested")
    start = theta.copy()
    start[where] = patch.values
    yield from run.started_from(uploaded, start, "the patch's values are written over the model")
    silent = Work(upload=False, training=order.work.training)
    yield from run.worked(run.order(3, theta, work=silent))


def kept(run: ActRun) -> Act:
    """Check that the device keeps a tensor of its own last model, and sends no change to it."""
    stage, theta = run.stage, run.model.theta
    uploaded = yield from run.worked(run.order(1, theta))
    own = theta.copy()
    if uploaded.delta is not None:
        uploaded.delta.add_to(own)
    tensor = run.model.bundle.manifest.layout.tensors[0]
    work = Work(keep=(tensor.name,), training=Training(learning_rate=RATE))
    again = yield from run.worked(run.order(2, run.changed(2)[0], work=work))
    if again.delta is not None:
        sent = again.delta.dense()[tensor.slice]
        stage.check("T3", not sent.any(), "the delta is 0 in a kept tensor")
    start = run.changed(2)[0]
    start[tensor.slice] = own[tensor.slice]
    yield from run.started_from(again, start, "a kept tensor comes from the device's own model")


def restart(run: ActRun) -> Act:
    """Restart the coordinator between offer and receipt, so that the round is over when it returns."""
    stage = run.stage
    order = run.order(1, run.model.theta)
    yield stage.say(order)
    yield from run.offered(1)
    for _ in range(SILENT_OFFERS):
        yield from run.offered(1, AGAIN_S)
    old = stage.say(order)
    stage.restart()
    yield stage.say(Welcome(bytes(16), "conformance", VERSIONS))
    yield from stage.expect("5.5", "HELLO after the coordinator's restart", kind_of(Hello), 2.0)
    text = "an unanswered update is offered soon after the coordinator's restart"
    heard = yield from stage.expect("7.2", text, run.mine(Offer, 1), WOKEN_S)
    uploaded = yield from run.take(order, heard)
    yield stage.say(run.receipt(uploaded, late=True), uploaded.transfer)
    yield old
    text = "an order from before the coordinator's restart is ignored"
    yield from stage.quiet("3.6", text, run.mine(Offer), QUIET_S)


def cut(run: ActRun) -> Act:
    """Break the client's connection between offer and receipt."""
    stage = run.stage
    order = run.order(1, run.model.theta)
    yield stage.say(order)
    yield from run.offered(1)
    yield Cut()
    yield from stage.expect("1.9", "HELLO on the next connection", kind_of(Hello), SOON_S)
    uploaded = yield from run.take(order, (yield from run.offered(1, SOON_S)))
    yield stage.say(run.receipt(uploaded), uploaded.transfer)


def reject(run: ActRun) -> Act:
    """Check that the client never offers a rejected update again."""
    order = run.order(1, run.model.theta)
    yield run.stage.say(order)
    uploaded = yield from run.take(order, (yield from run.offered(1)))
    sha256 = uploaded.offer.manifest.sha256
    no = messages.Reject(run.name, 1, sha256, "malformed", "part of a conformance test")
    yield from run.settle(uploaded, no)


def busy(run: ActRun) -> Act:
    """Check that the client leaves a busy receiver alone for as long as the receiver says."""
    stage, order = run.stage, run.order(1, run.model.theta)
    yield stage.say(order)
    heard = yield from run.offered(1)
    no = messages.Busy(int(1000 * BUSY_S), "part of a conformance test")
    yield stage.say(no, heard.frame.transfer)
    text = f"after BUSY nothing is offered for {BUSY_S:g} s"
    yield from stage.quiet("5.23", text, run.mine(Offer), BUSY_S - 1)
    uploaded = yield from run.take(order, (yield from run.offered(1, SOON_S)))
    yield stage.say(run.receipt(uploaded), uploaded.transfer)


def cancel(run: ActRun) -> Act:
    """Check that the client does not execute a cancelled order, even if that order is replayed."""
    stage = run.stage
    order = stage.say(run.order(1, run.changed(1)[0]))
    yield order
    yield stage.say(messages.Cancel(run.name, 1, "part of a conformance test"))
    yield from stage.quiet("5.17", "nothing is offered after CANCEL", run.mine(Offer), QUIET_S)
    yield order
    yield from stage.quiet("3.6", "a replayed order is dropped", run.is_about, QUIET_S)


def unknown(run: ActRun) -> Act:
    """Check that the client ignores features of a later version or, if it cannot, declines the order."""
    stage = run.stage
    yield stage.say_raw(UNKNOWN_KIND, b"\x80")
    order = run.order(1, run.model.theta)
    fields = msgspec.to_builtins(order, builtin_types=(bytes,))
    body = msgspec.msgpack.encode(fields)
    yield stage.say_raw(Kind.ORDER, body, UNKNOWN_VERSION)
    text = "an order in a version that was not agreed on is dropped"
    yield from stage.quiet("3.3", text, run.is_about, QUIET_S)
    yield stage.say_raw(Kind.ORDER, msgspec.msgpack.encode({**fields, "later": LATER}))
    heard = yield from run.offered(1)
    stage.check("3.5", True, "an unknown kind and an unknown key are ignored")
    uploaded = yield from run.take(order, heard)
    yield stage.say(run.receipt(uploaded), uploaded.transfer)
    for number, what, wrong in (
        (2, "an unknown value", {"task": "dream"}),
        (3, "a key that is not text", {"codec": {1: 2}}),
        (4, "text that is not UTF-8", {"task": NOT_UTF_8}),
    ):
        body = msgspec.msgpack.encode({**fields, "round": number, **wrong})
        yield stage.say_raw(Kind.ORDER, body)
        text = f"DECLINE of an order with {what}"
        yield from stage.expect("3.5", text, run.mine(Decline, number), SOON_S)
    garbage = stage.shelf.put(b"no bundle")
    yield stage.say(msgspec.structs.replace(order, round=5, bundle=garbage))
    text = "DECLINE of an order whose bundle is invalid"
    yield from stage.expect("B4", text, run.mine(Decline, 5), SOON_S)


def repeated(run: ActRun) -> Act:
    """Repeat an order while its update waits for the receipt."""
    stage, order = run.stage, run.order(1, run.model.theta)
    yield stage.say(order)
    uploaded = yield from run.take(order, (yield from run.offered(1)))
    yield stage.say(order)
    yield stage.say(run.receipt(uploaded), uploaded.transfer)
    text = "an order whose update waits for its receipt is not executed again"
    yield from stage.quiet("5.7", text, run.is_about, QUIET_S)


def mismatched(run: ActRun) -> Act:
    """Send orders whose model or patch does not match its hash, or that need an unannounced extension."""
    stage, theta = run.stage, run.model.theta
    first = SparseVector(theta.size, np.zeros(1, np.uint32), theta[:1])
    patch = encode(first, ValueCoding.FP32, Compression.ZLIB)
    announced = () if stage.hello is None else stage.hello.codecs
    orders: list[tuple[str, str, dict[str, object]]] = [
        ("8.2", "whose model has a different hash", {"model_hash": bytes(32)}),
        ("5.9", "whose patch has a different hash", {"patch": patch, "patch_hash": bytes(32)}),
    ]
    int4 = Codec(ValueCoding.INT4, compression=Compression.ZLIB)
    unannounced: dict[str, dict[str, object]] = {
        "int4": {"codec": int4},
        "remember": {"work": Work(remember=True)},
    }
    orders += [
        ("5.7", f"that needs {word}, which was not announced", fields)
        for word, fields in unannounced.items()
        if word not in announced
    ]
    for number, (rule, which, fields) in enumerate(orders, start=1):
        order = msgspec.structs.replace(run.order(number, theta), **fields)
        yield stage.say(order)
        text = f"DECLINE of an order {which}, and no update"
        heard = yield from stage.expect(rule, text, run.answers, TRAINED_S)
        if isinstance(heard.message, Offer):
            uploaded = yield from run.take(order, heard)
            yield stage.say(run.receipt(uploaded), uploaded.transfer)
            stage.check(rule, False, text)


def placed(run: ActRun) -> Act:
    """Send an order that names an unreachable web server, so the client must get the model over MQTT."""
    stage = run.stage
    order = run.order(1, run.changed(1)[0])
    model = order.model
    place = Place(model.sha256, f"{NOBODY}/{model.sha256.hex()}")
    yield stage.say(msgspec.structs.replace(order, places=(place,)))

    def asked(heard: Heard) -> bool:
        return (heard.frame.kind, heard.frame.transfer) == (Kind.GET, model.transfer)

    text = "a model that its server does not deliver is requested over MQTT"
    yield from stage.expect("X20", text, asked, TRAINED_S)
    uploaded = yield from run.take(order, (yield from run.offered(1)))
    yield stage.say(run.receipt(uploaded), uploaded.transfer)


def renew(run: ActRun) -> Act:
    """Check that a client that can change its secret gives the same valid JOIN to identical requests."""
    stage = run.stage
    if stage.hello is None or RENEWS not in stage.hello.codecs:
        return
    private = private_key(stage.incarnation.to_bytes(32))
    points = set[bytes]()
    for _ in range(2):
        yield stage.say(Renew(public_key(private)))
        heard = yield from stage.expect("E14", "JOIN after RENEW", kind_of(Join), SOON_S)
        join = message_of(heard, Join)
        agreement = Agreement.of(private, join.point, join.point, stage.fleet, stage.device)
        proof = agreement.asks(stage.device)
        stage.check(
            "E14",
            join.device == stage.device and join.proof == proof,
            "JOIN with the device's id and a valid proof",
        )
        points.add(join.point)
    stage.check("E14", len(points) == 1, "the same key pair for an identical RENEW")


ACTS = (
    join, train, step, broken_step, patched, kept, restart, cut, reject, busy, cancel, unknown,
    repeated, mismatched, placed, renew,
)  # fmt: skip
