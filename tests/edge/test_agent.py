"""The agent's state machine: hellos, orders, uploads and receipts, frame by frame."""

import logging
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.edge.harness import (
    DOWN,
    KEYS,
    LAYOUT,
    MAX_PACKET,
    UP,
    Harness,
    MakeDevice,
    drift,
    make_bundle,
    only,
    theta_of,
)

from sedge_edge.agent import Agent, StartJob
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.effects import Note, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import VERSIONS, Kind
from sedge_protocol.wire.messages import (
    MAX_RUNS,
    Busy,
    Cancel,
    Committed,
    Get,
    Goodbye,
    Have,
    Hello,
    Message,
    Offer,
    Refusal,
    Reject,
    Welcome,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import (
    MAX_INLINE_BYTES,
    MIN_CHUNK_BYTES,
    PACKET_OVERHEAD,
    SILENCE_S,
    from_bitmap,
    to_bitmap,
)
from sedge_protocol.wire.update import decode_update
from sedge_protocol.wire.work import Codec

pytestmark = pytest.mark.both_cores


def will_of(agent: Agent) -> bytes:
    """The nonce in a new session's will."""
    topic, payload = agent.will()
    assert topic == UP
    opened = Peer(DOWN, KEYS.down, KEYS.up, 7, 0).open(payload, topic)
    assert opened is not None
    message = opened[1]
    assert isinstance(message, Goodbye)
    return message.nonce


def test_will_hello_and_goodbye_carry_the_same_nonce_and_the_next_session_another(
    device: Harness,
) -> None:
    nonces: list[bytes] = []
    for _ in range(3):
        nonce = will_of(device.agent)
        (hello,) = only(device.messages(device.agent.connected(device.now, MAX_PACKET)), Hello)
        assert hello.nonce == nonce
        assert (hello.backends, hello.num_train) == (("onnxruntime",), 10)
        (goodbye,) = device.messages(device.agent.goodbye())
        assert goodbye == Goodbye(nonce)
        nonces.append(nonce)
        device.agent.disconnected()
    assert len(set(nonces)) == 3


def test_a_hello_says_which_runs_the_device_keeps_a_model_of(device: Harness) -> None:
    said: list[object] = []
    for number, run in enumerate(("one", "two"), 1):
        device.give(msgspec.structs.replace(device.order(number), run=run))
        device.agent.disconnected()
        (hello,) = only(device.messages(device.connect()), Hello)
        said.append(hello.holds)
    assert said == [("one",), ("one", "two")]


# Orders.


def test_a_round_from_order_to_receipt(device: Harness) -> None:
    order = device.order(keep=("norm.mean",))
    device.give(order)
    state = device.on_disk()
    assert (state.orders, state.outbox) == ({}, ())
    known = state.runs["run"]
    assert (known.bundle, known.base) == (order.bundle.sha256, order.model_hash)
    assert known.kept.residual is None
    np.testing.assert_array_equal(device.own(), theta_of(1) + drift(1))
    report = device.report()
    assert (report.run, report.round, report.task, report.steps) == ("run", 1, "train", 1)
    assert report.model_hash == order.model_hash
    assert device.agent.idle
    assert not device.topics
    # What no state names any more is gone: the update, and every part.
    assert device.blob_files() == {
        h.hex() for h in (known.bundle, known.base, known.kept.model) if h is not None
    }


def test_the_same_order_again_changes_nothing(device: Harness) -> None:
    order, journal = device.order(), device.folder / "journal"
    device.tell(order)
    assert device.tell(order) == []  # while its blobs are fetched
    (start,) = only(device.feed(order.bundle, order.model), StartJob)
    before = journal.read_bytes()
    assert device.tell(order) == []  # while it is worked on
    assert journal.read_bytes() == before
    device.work(start.job)
    before = journal.read_bytes()
    assert device.tell(order) == []  # while its update waits
    assert journal.read_bytes() == before


def test_a_newer_order_replaces_an_older_one(device: Harness) -> None:
    first, second = device.order(1), device.order(2)
    old_model = first.model
    device.listen(device.tell(first))
    device.feed(first.bundle)
    effects = device.tell(second)
    device.listen(effects)
    assert device.on_disk().orders == {"run": second}
    assert [e.topic[-32:] for e in only(effects, Unsubscribe)] == [old_model.transfer.hex()]
    assert [e.topic[-32:] for e in only(effects, Subscribe)] == [second.model.transfer.hex()]
    assert device.feed(old_model) == []  # nobody asked any more
    device.pump(device.feed(second.model))
    assert list(device.updates) == [("run", 2)]


def test_a_job_whose_order_was_replaced_comes_late(device: Harness) -> None:
    """A device that needs longer than a round would never come to anything."""
    first, second = device.order(1), device.order(2)
    old = device.begin(first)
    device.tell(second)
    assert only(device.feed(second.model), StartJob) == []  # one job at a time
    effects = device.work(old)
    (new,) = only(effects, StartJob)
    assert new.job.order == second
    state = device.on_disk()
    assert (state.orders, [p.round for p in state.outbox]) == ({"run": second}, [1])
    assert new.job.kept.model == state.runs["run"].kept.model is not None
    device.pump(effects)
    assert list(device.updates) == [("run", 1), ("run", 2)]
    assert device.on_disk().outbox == ()


def test_a_job_that_fails_after_a_newer_order_came_leaves_that_one_alone(device: Harness) -> None:
    first, second = device.order(1), device.order(2)
    device.begin(first)
    device.tell(second)
    device.feed(second.model)
    effects = device.agent.failed(CodecError("nobody can do it (test)"), device.now)
    assert [work.job.order for work in only(effects, StartJob)] == [second]
    assert only(effects, Note)[0].text == "run run, round 1: nobody can do it (test)"
    assert device.messages(effects) == [] and device.on_disk().orders == {"run": second}


def test_a_job_for_another_bundle_than_the_newer_order_leaves_nothing(device: Harness) -> None:
    old = device.begin(device.order(1))
    second = device.order(2, bundle=device.serve(make_bundle(1)))
    device.tell(second)
    device.feed(second.bundle, second.model)
    device.work(old)
    assert (device.on_disk().runs, device.on_disk().outbox) == ({}, ())
    assert device.on_disk().orders == {"run": second}


def test_an_overtaken_order_is_dropped(device: Harness) -> None:
    """A broker that reorders must not bring back what was replaced, cancelled or settled since."""
    late = [device.peer.seal(device.order(1)), device.peer.seal(device.order(2))]
    device.give(device.order(3))
    before = device.on_disk()
    for payload in late:
        effects = device.agent.receive(DOWN, payload, device.now)
        assert [type(effect) for effect in effects] == [Note]
    assert device.on_disk() == before
    device.give(device.order(4))
    assert list(device.updates) == [("run", 3), ("run", 4)]


def test_an_order_is_dropped_until_this_start_is_welcomed(device: Harness) -> None:
    """A restart forgets which frames were seen: the very order that was done may be played again."""
    order = device.order(1, codec=Codec(fraction=0.1))
    frame = device.peer.seal(order)
    device.order_at_hand = order
    device.pump(device.agent.receive(DOWN, frame, device.now))
    done = device.on_disk()
    assert (done.orders, done.outbox) == ({}, ())
    device.agent = device.start()
    device.agent.connected(device.now, MAX_PACKET)
    assert [type(effect) for effect in device.agent.receive(DOWN, frame, device.now)] == [Note]
    device.tell(Welcome(b"x" * 16, "0"))  # to another session's hello
    assert [type(effect) for effect in device.agent.receive(DOWN, frame, device.now)] == []  # seen
    assert device.on_disk().runs == done.runs


def test_after_a_welcome_an_order_from_before_it_is_an_overtaken_one(device: Harness) -> None:
    frame = device.peer.seal(device.order(1))
    device.pump(device.reboot())
    assert [type(effect) for effect in device.agent.receive(DOWN, frame, device.now)] == [Note]
    assert device.on_disk().orders == {}
    device.give(device.order(1))
    device.agent.disconnected()
    assert device.agent.connected(device.now, MAX_PACKET)
    # The broker has kept an order in its session.
    assert only(device.tell(device.order(2)), Subscribe)


@pytest.mark.parametrize(("number", "dropped"), [(1, True), (0, True), (2, False)])
def test_a_cancelled_order_is_dropped(device: Harness, number: int, dropped: bool) -> None:
    device.listen(device.tell(device.order(1)))
    device.listen(device.tell(Cancel("other", 0, "")))
    assert len(device.topics) == 2
    device.listen(device.tell(Cancel("run", number, "enough")))
    assert device.agent.idle is dropped
    assert bool(device.topics) is not dropped
    assert (device.notes[-1] == "run run: cancelled: enough") is dropped


def test_a_job_that_was_cancelled_leaves_nothing(device: Harness) -> None:
    job = device.begin(device.order())
    device.tell(Cancel("run", 1, ""))
    assert device.work(job) == []
    assert device.on_disk().runs == {}
    assert device.blob_files() == set()


def test_a_round_ordered_again_ends_with_the_job_that_was_cancelled(device: Harness) -> None:
    order = device.order()
    job = device.begin(order)
    device.tell(Cancel("run", 1, ""))
    device.tell(order)
    (offer,) = [m for m in device.messages(device.work(job)) if isinstance(m, Offer)]
    assert (offer.run, offer.round) == ("run", 1)
    assert device.on_disk().orders == {}


def test_another_order_of_the_same_round_replaces_the_one_at_hand(device: Harness) -> None:
    """The coordinator was restored or set up anew: it has nothing that only the first one names."""
    first = device.order()
    device.listen(device.tell(first))
    del device.served[first.model.transfer]
    last = device.order(1, theta_of(2))
    for order in (
        device.order(1, task="evaluate"),
        device.order(1, patch_hash=bytes(32)),
        device.order(1, bundle=device.serve(make_bundle(1))),
        last,
    ):
        device.listen(device.tell(order))
        assert device.on_disk().orders == {"run": order}
        assert device.tell(order) == []
    device.order_at_hand = last
    device.settle()
    assert device.report().model_hash == last.model_hash


@pytest.mark.parametrize("fails", [False, True])
def test_a_job_for_another_order_of_the_same_round_leaves_nothing(
    device: Harness, fails: bool
) -> None:
    """The coordinator would reject its update, and the failure is not that of the order at hand."""
    first, second = device.order(1), device.order(1, theta_of(2))
    old = device.begin(first)
    device.tell(Cancel("run", 1, "the run was deleted"))
    device.tell(second)
    device.feed(second.model)
    error = CodecError("nobody can do it (test)")
    effects = device.agent.failed(error, device.now) if fails else device.work(old)
    assert [work.job.order for work in only(effects, StartJob)] == [second]
    state = device.on_disk()
    assert (state.orders, state.runs, state.outbox) == ({"run": second}, {}, ())
    assert device.messages(effects) == []
    device.pump(effects)
    assert device.report().model_hash == second.model_hash


# Uploads and receipts.


def pending(device: Harness) -> Offer:
    """The offer of an update that waits for its receipt."""
    (offer,) = device.messages(device.work(device.begin(device.order())))
    assert isinstance(offer, Offer)
    return offer


@pytest.mark.parametrize("kind", ["committed", "reject"])
def test_only_its_own_receipt_settles_an_update(device: Harness, kind: str) -> None:
    sha256 = pending(device).manifest.sha256

    def receipt(run: str, number: int, blob: bytes) -> Message:
        if kind == "committed":
            return Committed(run, number, blob, late=True)
        return Reject(run, number, blob, "stale", "too old")

    before = device.on_disk()
    for run, number, blob in (("run", 1, b"x" * 32), ("run", 2, sha256), ("other", 1, sha256)):
        assert device.tell(receipt(run, number, blob)) == []
        assert device.on_disk() == before
    (note,) = device.tell(receipt("run", 1, sha256))
    expected = {
        "committed": Note(
            logging.INFO, "run run, round 1: update stored by the coordinator (late)"
        ),
        "reject": Note(logging.ERROR, "run run, round 1: update rejected: stale too old"),
    }
    assert note == expected[kind]
    assert device.on_disk().outbox == ()
    assert device.tell(receipt("run", 1, sha256)) == []
    assert sha256.hex() not in device.blob_files()


def test_an_offer_is_repeated_until_there_is_a_receipt(device: Harness) -> None:
    offer = pending(device)
    assert offer.data
    for number in (2, 3):
        at = device.agent.timer()
        assert at is not None
        assert at >= device.now + SILENCE_S
        device.now = at
        (again,) = device.messages(device.agent.poll(at))
        assert isinstance(again, Offer)
        assert (again.number, again.manifest, again.data) == (number, offer.manifest, b"")
    assert device.on_disk().outbox != ()


def test_an_update_waits_over_cuts_and_reboots(device: Harness) -> None:
    offer = pending(device)
    device.agent.disconnected()
    assert device.agent.timer() is None
    again = [m for m in device.messages(device.connect()) if isinstance(m, Offer)]
    assert [o.manifest for o in again] == [offer.manifest]
    again = [m for m in device.messages(device.reboot()) if isinstance(m, Offer)]
    assert [(o.manifest, bool(o.data)) for o in again] == [(offer.manifest, True)]
    assert device.tell(device.order()) == []


def test_busy_waits(device: Harness) -> None:
    device.tell(Busy(45_000), pending(device).manifest.transfer)
    assert device.agent.timer() == device.now + 45.0
    assert device.agent.poll(device.now + 44.9) == []
    assert isinstance(device.messages(device.agent.poll(device.now + 45.0))[0], Offer)
    device.tell(Busy(1000), b"x" * 16)  # another transfer's


@pytest.mark.parametrize(
    ("says", "incarnation", "answers"),
    [
        (Welcome(bytes(16), "0", VERSIONS), 8, {Hello, Offer, Get}),
        (Have(0, b"\1", 4), 8, {Hello, Offer, Get}),  # its first frame was lost
        (Welcome(bytes(16), "0", VERSIONS), 7, {Hello, Offer, Get}),  # its link was cut
        (None, 7, {Offer, Get}),  # its order is repeated
    ],
)
def test_a_coordinator_that_is_back_is_offered_and_asked_at_once(
    device: Harness, says: Message | None, incarnation: int, answers: set[type[Message]]
) -> None:
    """It was away for two minutes, in the middle of an upload and a download."""
    pending(device)
    device.tell(device.order(2, run="other"))
    back = device.now + 120.0
    while (at := device.agent.timer()) is not None and at < back:
        device.agent.poll(at)
    device.now = back
    if incarnation > 7:  # the harness's own
        device.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation, 1)
    sent = device.messages(device.tell(says or device.order(1)))
    assert {type(message) for message in sent} == answers
    nonce = next((message.nonce for message in sent if isinstance(message, Hello)), bytes(16))
    again = device.tell(Welcome(nonce, "0", VERSIONS)) if any(nonce) else []
    assert device.messages([*again, *device.tell(device.order(1))]) == []  # on their way


def test_a_have_brings_what_is_missing(device: Harness) -> None:
    offer = pending(device)
    manifest = offer.manifest
    have = Have(offer.number, to_bitmap([], manifest.count), 4)
    frames = [frame for frame, _ in device.opened(device.tell(have, manifest.transfer))]
    assert [f.kind for f in frames] == [Kind.CHUNK]
    manifest.check(frames[0].index, frames[0].body)
    assert device.tell(have, b"x" * 16) == []
    malformed = device.tell(Have(offer.number, b"\xff\xff", 4), manifest.transfer)
    assert "bitmap" in only(malformed, Note)[0].text


@pytest.mark.parametrize("max_packet", [5_000, 20_000])
def test_nothing_is_larger_than_the_broker_takes(
    make_device: MakeDevice, tmp_path: Path, max_packet: int
) -> None:
    device = make_device(tmp_path)
    device.pump(device.connect(max_packet))
    device.give(device.order())
    device.settle()
    update = device.updates["run", 1]
    assert MIN_CHUNK_BYTES < len(update) < MAX_INLINE_BYTES
    assert device.oversize == 0
    np.testing.assert_allclose(device.delta(), drift(1), rtol=0, atol=1e-7)


def test_an_order_that_comes_again_cut_anew_is_fetched_so_from_then_on(
    make_device: MakeDevice, tmp_path: Path
) -> None:
    """The coordinator has found its broker's limit, or has moved to another broker."""
    device = make_device(tmp_path, chunk_bytes=65_536)
    device.pump(device.connect())
    order = device.order()
    device.tell(order)
    device.chunk_bytes = MIN_CHUNK_BYTES
    bundle, model = (
        device.serve(device.served[whole.transfer]) for whole in (order.bundle, order.model)
    )
    smaller = msgspec.structs.replace(order, bundle=bundle, model=model)
    effects = device.tell(smaller)
    gets = {frame.transfer for frame, m in device.opened(effects) if isinstance(m, Get)}
    assert gets == {bundle.transfer, model.transfer}
    assert device.on_disk().orders == {"run": smaller}
    # Any other repetition changes nothing.
    assert device.tell(msgspec.structs.replace(smaller, seed=9)) == []
    assert device.on_disk().orders == {"run": smaller}
    device.pump(effects)
    device.settle()
    assert ("run", 1) in device.updates


def test_a_blob_cut_otherwise_goes_on_with_the_same_part(device: Harness) -> None:
    order = device.order()
    device.tell(order)
    device.feed(order.bundle)
    for index in (0, 1):
        device.chunk(order.model, index)
    device.chunk_bytes = 8192
    larger = device.serve(device.served[order.model.transfer])
    effects = device.tell(msgspec.structs.replace(order, model=larger))
    assert len(only(effects, Unsubscribe)) == len(only(effects, Subscribe)) == 1
    (get,) = only(device.messages(effects), Get)
    assert from_bitmap(get.missing, larger.count) == {1}


@pytest.mark.python_only("mqtt 3")
def test_hello_says_what_the_broker_announces(device: Harness) -> None:
    (hello, *_) = device.messages(device.connect(20_000))
    assert isinstance(hello, Hello) and hello.max_packet == 20_000
    device.agent.disconnected()
    (hello, *_) = device.messages(device.connect(400_000))
    assert isinstance(hello, Hello) and hello.max_packet == 0


def test_a_broker_that_takes_less_than_before_makes_chunks_smaller(device: Harness) -> None:
    offer = pending(device)
    device.agent.disconnected()
    messages = device.messages(device.connect(PACKET_OVERHEAD + 5_000))
    (again,) = [m for m in messages if isinstance(m, Offer)]
    assert again.manifest.sha256 == offer.manifest.sha256
    assert (offer.manifest.chunk_bytes, again.manifest.chunk_bytes) == (65536, 4096)
    assert again.data == b""
    assert device.on_disk().chunk_bytes == 65536  # the next broker may take more


# What a round leaves on the device.


def test_an_evaluation_changes_nothing_but_the_outbox(device: Harness) -> None:
    codec = msgspec.structs.replace(device.order().codec, fraction=0.1)
    device.give(device.order(1, codec=codec))
    before = device.on_disk().runs["run"]
    assert before.kept.residual is not None
    device.give(device.order(2, task="evaluate", codec=codec))
    after = device.on_disk().runs["run"]
    assert (after.kept.model, after.kept.residual) == (before.kept.model, before.kept.residual)
    assert device.report(2).task == "evaluate"
    assert len(decode_update(device.updates["run", 2])[1]) == 0
    device.give(device.order(3, codec=codec))
    np.testing.assert_array_equal(device.own(), theta_of(3) + drift(3))


def test_statistics_stay_on_the_device(device: Harness) -> None:
    place = LAYOUT.by_name["norm.mean"].slice
    codec = msgspec.structs.replace(device.order().codec, fraction=0.5)
    expected = theta_of(1)[place]
    for number in (1, 2, 3):
        version = device.version(number)
        device.give(device.order(number, keep=("norm.mean",), codec=codec, **version))
        expected = expected + drift(number)[place]
        np.testing.assert_array_equal(device.own()[place], expected)
        assert not device.delta(number)[place].any()
        residual = device.residual()
        assert residual is not None
        assert not residual[place].any()
        assert residual.any()


def test_a_version_with_other_tensors_is_declined_and_takes_nothing(device: Harness) -> None:
    device.give(device.order(1))
    kept, own = device.on_disk().runs, device.own()
    longer = Layout.of([(t.name, t.shape, t.role) for t in reversed(LAYOUT.tensors)])
    other = device.serve(make_bundle(7, longer))
    for task in ("train", "evaluate"):
        device.give(device.order(2, task=task, bundle=other, origin=device.bundle.sha256))
        (decline,) = device.declines
        assert (decline.reason, "not those of its origin" in decline.detail) == ("CodecError", True)
        device.declines.clear()
    assert device.on_disk().runs == kept
    np.testing.assert_array_equal(device.own(), own)


def test_a_run_too_many_is_declined_and_the_log_says_so(device: Harness) -> None:
    runs = [f"r{number}" for number in range(MAX_RUNS)]
    for run in runs:
        device.give(device.order(1, run=run))
    before, files = device.on_disk(), device.blob_files()
    device.give(device.order(1, run="new"))
    (decline,) = device.declines
    assert (decline.run, decline.round, decline.reason) == ("new", 1, "TooManyRuns")
    said = "16 other runs, and none seems to be over: each received one of the last 16 orders"
    assert said in decline.detail
    assert device.notes[-1] == decline.detail
    after = device.on_disk()
    assert (after.runs, after.orders, after.outbox) == (before.runs, {}, ())
    assert device.blob_files() == files and device.agent.idle
    device.give(device.order(2, run="new"))  # nothing more was heard of r0
    (gone,) = (note for note in device.notes if "deleted run" in note)
    assert gone == "deleted run r0 and its model: none of the last 16 orders was for it"
    assert list(device.on_disk().runs) == [*runs[1:], "new"]
    models = {known.kept.model for known in device.on_disk().runs.values()}
    assert {model.hex() for model in models if model is not None} <= device.blob_files()
    assert len(device.blob_files()) <= 1 + 2 * MAX_RUNS  # the bundle, globals and models


def test_an_evaluation_in_another_width_leaves_the_device_its_model(device: Harness) -> None:
    codec = msgspec.structs.replace(device.order().codec, fraction=0.1)
    device.give(device.order(1, codec=codec))
    before, own, residual = device.on_disk().runs["run"], device.own(), device.residual()
    device.give(device.order(2, task="evaluate", bundle=device.serve(make_bundle(1))))
    assert device.report(2).task == "evaluate"
    device.reboot()
    after = device.on_disk().runs["run"]
    assert after == msgspec.structs.replace(before, round=after.round)
    np.testing.assert_array_equal(device.own(), own)
    assert residual is not None
    names = tuple(LAYOUT.by_name)
    device.give(device.order(3, keep=names, upload=False))  # goes on where the first one ended
    np.testing.assert_array_equal(device.own(), own + drift(3))
    np.testing.assert_array_equal(device.residual(), residual)


def test_the_model_of_another_run_with_the_same_name_is_not_used(device: Harness) -> None:
    """A coordinator that was set up anew may call its first run "first" again, with another bundle."""
    names = tuple(LAYOUT.by_name)
    device.give(device.order(9, keep=names, upload=False))
    device.give(device.order(1, keep=names, upload=False, bundle=device.serve(make_bundle(1))))
    np.testing.assert_array_equal(device.own(), theta_of(1) + drift(1))


def test_the_coordinators_refusal_is_an_error_in_the_log(device: Harness) -> None:
    (note,) = device.tell(Refusal("version", "too old"))
    assert note == Note(logging.ERROR, "the coordinator refuses: version: too old")
