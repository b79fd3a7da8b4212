"""The agent's state machine: hellos, orders, uploads and receipts, frame by frame."""

import logging
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.edge.desk import (
    DOWN,
    KEYS,
    LAYOUT,
    MAX_PACKET,
    UP,
    Desk,
    drift,
    make_bundle,
    only,
    storage_error,
    theta_of,
)
from tests.orders import changed

from sedge_edge.agent import PACKET_OVERHEAD, Agent, Work
from sedge_edge.rounds.state import MAX_RUNS
from sedge_protocol.wire.effects import Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import Kind
from sedge_protocol.wire.messages import (
    Busy,
    Cancel,
    Codec,
    Committed,
    Get,
    Goodbye,
    Have,
    Hello,
    Message,
    Offer,
    Order,
    Refusal,
    Reject,
    Welcome,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES, MIN_CHUNK_BYTES, SILENCE_S, to_bitmap
from sedge_protocol.wire.update import decode_update


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A connected, welcomed device."""
    desk = Desk(tmp_path)
    desk.pump(desk.connect())
    return desk


def will_of(agent: Agent) -> bytes:
    """The nonce in a new session's will."""
    topic, payload = agent.will()
    assert topic == UP
    opened = Peer(DOWN, KEYS.down, KEYS.up, 7, 0).open(payload, topic)
    assert opened is not None
    message = opened[1]
    assert isinstance(message, Goodbye)
    return message.nonce


def hellos(desk: Desk, effects: list[object]) -> list[Hello]:
    return [m for m in desk.messages(effects) if isinstance(m, Hello)]


# Sessions.


def test_will_hello_and_goodbye_carry_the_same_nonce_and_the_next_session_another(
    tmp_path: Path,
) -> None:
    desk = Desk(tmp_path)
    nonces: list[bytes] = []
    for _ in range(3):
        nonce = will_of(desk.agent)
        (hello,) = hellos(desk, [*desk.agent.connected(desk.now, MAX_PACKET)])
        assert hello.nonce == nonce
        assert (hello.backends, hello.num_train) == (("onnxruntime",), 10)
        (goodbye,) = desk.messages(desk.agent.goodbye())
        assert goodbye == Goodbye(nonce)
        nonces.append(nonce)
        desk.agent.disconnected()
    assert len(set(nonces)) == 3


def test_a_hello_is_repeated_until_it_is_welcomed(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    nonce = will_of(desk.agent)
    desk.agent.connected(desk.now, MAX_PACKET)
    assert not desk.agent.welcomed
    for _ in range(4):
        at = desk.agent.timer()
        assert at is not None
        assert at >= desk.now + SILENCE_S
        assert desk.agent.poll(at - 0.01) == []
        desk.now = at
        assert hellos(desk, [*desk.agent.poll(at)])[0].nonce == nonce
    effects = desk.tell(Welcome(nonce, "9"))
    assert [n.text for n in only(effects, Note)] == ["welcomed by coordinator 9"]
    assert desk.agent.welcomed
    assert desk.agent.timer() is None
    assert desk.tell(Welcome(nonce, "9")) == []


def test_a_welcome_to_nobody_asks_for_a_new_hello(desk: Desk) -> None:
    assert desk.agent.welcomed
    (hello,) = hellos(desk, [*desk.tell(Welcome(bytes(16), "0"))])
    assert not desk.agent.welcomed
    desk.tell(Welcome(hello.nonce, "0"))
    assert desk.agent.welcomed


def test_without_a_link_nothing_is_said(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    assert desk.agent.timer() is None
    assert desk.agent.poll(desk.now) == []
    desk.connect()
    desk.agent.disconnected()
    assert not desk.agent.welcomed
    assert desk.agent.timer() is None


# Orders.


def test_an_order_is_on_disk_before_anything_leaves(desk: Desk) -> None:
    order = desk.order()
    effects = desk.tell(order)
    assert desk.on_disk().orders == {"run": order}
    kinds = [type(effect) for effect in effects]
    assert kinds == [Note, Subscribe, Subscribe, Send, Send]
    gets = desk.messages(effects)
    assert all(isinstance(get, Get) and (get.run, get.round) == ("run", 1) for get in gets)


@pytest.mark.parametrize("moment", ["accept", "finish"])
def test_a_refused_commit_lets_nothing_out(
    desk: Desk, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = desk.agent._memory
    before = desk.on_disk()
    if moment == "accept":
        monkeypatch.setattr(memory, "accept", storage_error)
        effects = desk.tell(desk.order())
    else:
        desk.tell(order := desk.order())
        (work,) = only(desk.feed(order.bundle, order.model), Work)
        before = desk.on_disk()
        monkeypatch.setattr(memory, "finish", storage_error)
        effects = desk.work(work.job)
    assert [type(effect) for effect in effects] == [Note]
    assert desk.on_disk() == before


def test_a_round_from_order_to_receipt(desk: Desk) -> None:
    order = desk.order(keep=("norm.mean",))
    desk.give(order)
    state = desk.on_disk()
    assert (state.orders, state.outbox) == ({}, ())
    known = state.runs["run"]
    assert (known.bundle, known.base) == (order.bundle.sha256, order.model_hash)
    assert (known.round, known.kept.residual) == (1, None)
    np.testing.assert_array_equal(desk.own(), theta_of(1) + drift(1))
    report = desk.report()
    assert (report.run, report.round, report.task, report.steps) == ("run", 1, "train", 3)
    assert report.model_hash == order.model_hash
    assert desk.agent.idle
    assert not desk.topics
    # What no state names any more is gone: the update, and every part.
    assert desk.blob_files() == {
        h.hex() for h in (known.bundle, known.base, known.kept.model) if h is not None
    }


def test_an_order_whose_blobs_are_here_starts_at_once(desk: Desk) -> None:
    desk.give(desk.order(1))
    desk.chunks_sent = 0
    again = desk.order(2, theta_of(1))
    effects = desk.tell(again)
    assert [type(effect) for effect in effects] == [Note, Work]
    desk.pump(effects)
    assert ("run", 2) in desk.updates
    assert desk.chunks_sent == 0


def test_the_same_order_again_changes_nothing(desk: Desk) -> None:
    order = desk.order()
    desk.tell(order)
    journal = (desk.folder / "journal").read_bytes()
    assert desk.tell(order) == []  # while its blobs are fetched
    (work,) = only(desk.feed(order.bundle, order.model), Work)
    journal = (desk.folder / "journal").read_bytes()
    assert desk.tell(order) == []  # while it is worked on
    assert (desk.folder / "journal").read_bytes() == journal
    desk.work(work.job)
    journal = (desk.folder / "journal").read_bytes()
    assert desk.tell(order) == []  # while its update waits
    assert (desk.folder / "journal").read_bytes() == journal


def test_a_newer_order_replaces_an_older_one(desk: Desk) -> None:
    first, second = desk.order(1), desk.order(2)
    old_model = first.model
    desk.listen(desk.tell(first))
    desk.feed(first.bundle)
    effects = desk.tell(second)
    desk.listen(effects)
    assert desk.on_disk().orders == {"run": second}
    assert [e.topic[-32:] for e in only(effects, Unsubscribe)] == [old_model.transfer.hex()]
    assert [e.topic[-32:] for e in only(effects, Subscribe)] == [second.model.transfer.hex()]
    assert desk.feed(old_model) == []  # nobody asked any more
    desk.pump(desk.feed(second.model))
    assert list(desk.updates) == [("run", 2)]


def test_a_job_whose_order_was_replaced_comes_late(desk: Desk) -> None:
    """A device that needs longer than a round would never come to anything."""
    first, second = desk.order(1), desk.order(2)
    desk.tell(first)
    (old,) = only(desk.feed(first.bundle, first.model), Work)
    desk.tell(second)
    assert only(desk.feed(second.model), Work) == []  # one job at a time
    effects = desk.work(old.job)
    (new,) = only(effects, Work)
    assert new.job.order == second
    state = desk.on_disk()
    assert (state.orders, [p.round for p in state.outbox]) == ({"run": second}, [1])
    assert (
        state.runs["run"].round == 1
        and new.job.kept.model == state.runs["run"].kept.model is not None
    )
    desk.pump(effects)
    assert list(desk.updates) == [("run", 1), ("run", 2)]
    assert desk.on_disk().outbox == () and desk.on_disk().runs["run"].round == 2


def test_a_device_slower_than_every_round_is_heard(desk: Desk) -> None:
    effects = desk.tell(desk.order(1))
    effects = [*effects, *desk.feed(desk.bundle, desk.order(1).model)]
    for number in range(2, 12):
        (work,) = only(effects, Work)
        order = desk.order(number)
        desk.tell(order)  # every order comes while the one before is worked on
        desk.feed(order.model)
        effects = desk.work(work.job)
        desk.pump([e for e in effects if not isinstance(e, Work)])
    assert list(desk.updates) == [("run", number) for number in range(1, 11)]


def test_a_job_for_another_bundle_than_the_newer_order_leaves_nothing(desk: Desk) -> None:
    first = desk.order(1)
    desk.tell(first)
    (old,) = only(desk.feed(first.bundle, first.model), Work)
    second = desk.order(2, bundle=desk.serve(make_bundle(1)))
    desk.tell(second)
    desk.feed(second.bundle, second.model)
    desk.work(old.job)
    assert (desk.on_disk().runs, desk.on_disk().outbox) == ({}, ())
    assert desk.on_disk().orders == {"run": second}


def test_an_overtaken_order_is_dropped(desk: Desk) -> None:
    """A broker that reorders must not bring back what was replaced, cancelled or settled since."""
    late = [desk.peer.seal(desk.order(1)), desk.peer.seal(desk.order(2))]
    desk.give(desk.order(3))
    before = desk.on_disk()
    for payload in late:
        effects = desk.agent.receive(DOWN, payload, desk.now)
        assert [type(effect) for effect in effects] == [Note]
    assert desk.on_disk() == before
    desk.give(desk.order(4))
    assert list(desk.updates) == [("run", 3), ("run", 4)]


def test_an_order_is_dropped_until_this_start_is_welcomed(desk: Desk) -> None:
    """A restart forgets which frames were seen: the very order that was done may be played again."""
    order = desk.order(1, codec=Codec(fraction=0.1))
    frame = desk.peer.seal(order)
    desk.order_at_hand = order
    desk.pump(desk.agent.receive(DOWN, frame, desk.now))
    done = desk.on_disk()
    assert (done.orders, done.outbox) == ({}, ())
    desk.agent = desk.start()
    desk.agent.connected(desk.now, MAX_PACKET)
    assert [type(effect) for effect in desk.agent.receive(DOWN, frame, desk.now)] == [Note]
    desk.tell(Welcome(will_of(Desk(desk.folder).agent), "0"))  # to another session's hello
    assert [type(effect) for effect in desk.agent.receive(DOWN, frame, desk.now)] == []  # seen
    assert desk.on_disk().runs == done.runs


def test_after_a_welcome_an_order_from_before_it_is_an_overtaken_one(desk: Desk) -> None:
    frame = desk.peer.seal(desk.order(1))
    desk.pump(desk.reboot())
    assert [type(effect) for effect in desk.agent.receive(DOWN, frame, desk.now)] == [Note]
    assert desk.on_disk().orders == {}
    desk.give(desk.order(1))
    desk.agent.disconnected()
    assert desk.agent.connected(desk.now, MAX_PACKET)  # the broker has kept an order in its session
    assert only(desk.tell(desk.order(2)), Subscribe)


@pytest.mark.parametrize(("number", "dropped"), [(1, True), (0, True), (2, False)])
def test_a_cancelled_order_is_dropped(desk: Desk, number: int, dropped: bool) -> None:
    order = desk.order(1)
    desk.listen(desk.tell(order))
    desk.listen(desk.tell(Cancel("other", 0, "")))
    assert len(desk.topics) == 2
    desk.listen(desk.tell(Cancel("run", number, "enough")))
    assert desk.agent.idle is dropped
    assert bool(desk.topics) is not dropped
    assert (desk.notes[-1] == "run run: cancelled: enough") is dropped


def test_a_job_that_was_cancelled_leaves_nothing(desk: Desk) -> None:
    order = desk.order()
    desk.tell(order)
    (work,) = only(desk.feed(order.bundle, order.model), Work)
    desk.tell(Cancel("run", 1, ""))
    assert desk.work(work.job) == []
    assert desk.on_disk().runs == {}
    assert desk.blob_files() == set()


def test_two_runs_take_turns(desk: Desk) -> None:
    one, two = desk.order(1), desk.order(5, run="other")
    desk.tell(one)
    desk.tell(two)
    (work,) = only(desk.feed(one.bundle, two.model, one.model), Work)
    assert work.job.order == two  # its blobs were complete first
    desk.order_at_hand = one
    desk.pump(desk.work(work.job))
    assert sorted(desk.updates) == [("other", 5), ("run", 1)]
    assert sorted(desk.on_disk().runs) == ["other", "run"]


# Uploads and receipts.


def pending(desk: Desk) -> tuple[Order, list[object], Offer]:
    """Work on an order until its update is offered."""
    order = desk.order()
    desk.tell(order)
    (work,) = only(desk.feed(order.bundle, order.model), Work)
    effects = desk.work(work.job)
    (offer,) = desk.messages(effects)
    assert isinstance(offer, Offer)
    return order, [*effects], offer


@pytest.mark.parametrize("kind", ["committed", "reject"])
def test_only_its_own_receipt_settles_an_update(desk: Desk, kind: str) -> None:
    _, _, offer = pending(desk)
    sha256 = offer.manifest.sha256

    def receipt(run: str, number: int, blob: bytes) -> Message:
        if kind == "committed":
            return Committed(run, number, blob, late=True)
        return Reject(run, number, blob, "stale", "too old")

    before = desk.on_disk()
    for run, number, blob in (
        ("run", 1, b"x" * 32),
        ("run", 2, sha256),
        ("other", 1, sha256),
    ):
        assert desk.tell(receipt(run, number, blob)) == []
        assert desk.on_disk() == before
    (note,) = desk.tell(receipt("run", 1, sha256))
    assert isinstance(note, Note)
    expected = {
        "committed": (logging.INFO, "run run, round 1: update stored by the coordinator (late)"),
        "reject": (logging.ERROR, "run run, round 1: update rejected: stale too old"),
    }
    assert (note.level, note.text) == expected[kind]
    assert desk.on_disk().outbox == ()
    assert desk.tell(receipt("run", 1, sha256)) == []
    assert sha256.hex() not in desk.blob_files()


def test_an_offer_is_repeated_until_there_is_a_receipt(desk: Desk) -> None:
    _, _, offer = pending(desk)
    assert offer.data
    for number in (2, 3):
        at = desk.agent.timer()
        assert at is not None
        assert at >= desk.now + SILENCE_S
        desk.now = at
        (again,) = desk.messages(desk.agent.poll(at))
        assert isinstance(again, Offer)
        assert (again.number, again.manifest, again.data) == (number, offer.manifest, b"")
    assert desk.on_disk().outbox != ()


def test_an_update_waits_over_cuts_and_reboots(desk: Desk) -> None:
    order, _, offer = pending(desk)
    desk.agent.disconnected()
    assert desk.agent.timer() is None
    again = [m for m in desk.messages(desk.connect()) if isinstance(m, Offer)]
    assert [o.manifest for o in again] == [offer.manifest]
    again = [m for m in desk.messages(desk.reboot()) if isinstance(m, Offer)]
    assert [(o.manifest, bool(o.data)) for o in again] == [(offer.manifest, True)]
    assert desk.tell(order) == []


def test_busy_waits(desk: Desk) -> None:
    _, _, offer = pending(desk)
    desk.tell(Busy(45_000), offer.manifest.transfer)
    assert desk.agent.timer() == desk.now + 45.0
    assert desk.agent.poll(desk.now + 44.9) == []
    assert isinstance(desk.messages(desk.agent.poll(desk.now + 45.0))[0], Offer)
    desk.tell(Busy(1000), b"x" * 16)  # another transfer's


def test_a_have_brings_what_is_missing(desk: Desk) -> None:
    _, _, offer = pending(desk)
    manifest = offer.manifest
    have = Have(offer.number, to_bitmap([], manifest.count), 4)
    effects = desk.tell(have, manifest.transfer)
    frames = [frame for frame, _ in desk.opened(effects)]
    assert [f.kind for f in frames] == [Kind.CHUNK]
    manifest.check(frames[0].index, frames[0].body)
    assert desk.tell(have, b"x" * 16) == []
    malformed = desk.tell(Have(offer.number, b"\xff\xff", 4), manifest.transfer)
    assert "bitmap" in only(malformed, Note)[0].text
    assert desk.agent.peer.counters["refused"] == 1


@pytest.mark.parametrize("max_packet", [5_000, 9_000, 20_000])
def test_nothing_is_larger_than_the_broker_takes(tmp_path: Path, max_packet: int) -> None:
    desk = Desk(tmp_path)
    desk.pump(desk.connect(max_packet))
    desk.give(desk.order())
    desk.settle()
    update = desk.updates["run", 1]
    assert MIN_CHUNK_BYTES < len(update) < MAX_INLINE_BYTES
    assert desk.oversize == 0
    np.testing.assert_allclose(desk.delta(), drift(1), rtol=0, atol=1e-7)


def test_a_broker_that_takes_less_than_before_makes_chunks_smaller(desk: Desk) -> None:
    _, _, offer = pending(desk)
    desk.agent.disconnected()
    messages = desk.messages(desk.connect(PACKET_OVERHEAD + 5_000))
    (again,) = [m for m in messages if isinstance(m, Offer)]
    assert again.manifest.sha256 == offer.manifest.sha256
    assert (offer.manifest.chunk_bytes, again.manifest.chunk_bytes) == (65536, 4096)
    assert again.data == b""
    assert desk.on_disk().chunk_bytes == 65536  # the next broker may take more


# What a round leaves on the device.


def test_an_evaluation_changes_nothing_but_the_outbox(desk: Desk) -> None:
    codec = msgspec.structs.replace(desk.order().codec, fraction=0.1)
    desk.give(desk.order(1, codec=codec))
    before = desk.on_disk().runs["run"]
    assert before.kept.residual is not None
    desk.give(desk.order(2, task="evaluate", codec=codec))
    after = desk.on_disk().runs["run"]
    assert (after.kept.model, after.kept.residual) == (before.kept.model, before.kept.residual)
    assert desk.report(2).task == "evaluate"
    assert len(decode_update(desk.updates["run", 2])[1]) == 0
    desk.give(desk.order(3, codec=codec))
    expected = theta_of(3) + drift(3)
    np.testing.assert_array_equal(desk.own(), expected)


def test_local_only_keeps_its_own_model_over_rounds_and_reboots(desk: Desk) -> None:
    names = tuple(LAYOUT.by_name)
    expected = theta_of(0)
    for number in range(1, 5):
        desk.give(desk.order(number, theta_of(0), keep=names, upload=False))
        expected = expected + drift(number)
        np.testing.assert_array_equal(desk.own(), expected)
        desk.reboot()
    desk.give(desk.order(5, theta_of(0), keep=names, upload=False, task="evaluate"))
    np.testing.assert_array_equal(desk.own(), expected)


def test_statistics_stay_on_the_device(desk: Desk) -> None:
    place = LAYOUT.by_name["norm.mean"].slice
    codec = msgspec.structs.replace(desk.order().codec, fraction=0.5)
    expected = theta_of(1)[place]
    for number in (1, 2, 3):
        desk.give(desk.order(number, keep=("norm.mean",), codec=codec))
        expected = expected + drift(number)[place]
        np.testing.assert_array_equal(desk.own()[place], expected)
        assert not desk.delta(number)[place].any()
        residual = desk.residual()
        assert residual is not None
        assert not residual[place].any()
        assert residual.any()


def test_runs_in_turn_each_keep_their_own(desk: Desk) -> None:
    place = LAYOUT.by_name["norm.mean"].slice
    codec = msgspec.structs.replace(desk.order().codec, fraction=0.5)
    for number in (1, 2):
        for run in range(5):
            order = desk.order(number, run=f"r{run}", seed=10 * run + number, codec=codec)
            desk.give(changed(order, keep=("norm.mean",)))
    for run in range(5):
        expected = theta_of(1)[place] + drift(10 * run + 1)[place] + drift(10 * run + 2)[place]
        np.testing.assert_array_equal(desk.own(f"r{run}")[place], expected)
        assert desk.residual(f"r{run}") is not None


def test_a_run_too_many_is_declined_and_the_log_says_so(desk: Desk) -> None:
    runs = [f"r{number}" for number in range(MAX_RUNS)]
    for run in runs:
        desk.give(desk.order(1, run=run))
    before, files = desk.on_disk(), desk.blob_files()
    desk.give(desk.order(1, run="new"))
    (decline,) = desk.declines
    assert (decline.run, decline.round, decline.reason) == ("new", 1, "TooManyRuns")
    assert "16 other runs, each with one of the last 16 orders" in decline.detail
    assert desk.notes[-1] == decline.detail
    after = desk.on_disk()
    assert (after.runs, after.orders, after.outbox) == (before.runs, {}, ())
    assert desk.blob_files() == files and desk.agent.idle
    desk.give(desk.order(2, run="new"))  # nothing more was heard of r0
    assert desk.notes.count(
        "run r0 is forgotten, with its model: none of the last 16 orders was its"
    )
    assert list(desk.on_disk().runs) == [*runs[1:], "new"]
    models = {k.kept.model.hex() for k in desk.on_disk().runs.values() if k.kept.model is not None}
    assert models <= desk.blob_files()
    assert len(desk.blob_files()) <= 1 + 2 * MAX_RUNS  # the bundle, globals and models


def test_an_evaluation_in_another_width_leaves_the_device_its_model(desk: Desk) -> None:
    codec = msgspec.structs.replace(desk.order().codec, fraction=0.1)
    desk.give(desk.order(1, codec=codec))
    before, own, residual = desk.on_disk().runs["run"], desk.own(), desk.residual()
    other = desk.serve(make_bundle(1))
    desk.give(desk.order(2, task="evaluate", bundle=other))
    assert desk.report(2).task == "evaluate"
    desk.reboot()
    after = desk.on_disk().runs["run"]
    assert after == msgspec.structs.replace(before, round=2)
    np.testing.assert_array_equal(desk.own(), own)
    assert residual is not None
    names = tuple(LAYOUT.by_name)
    desk.give(desk.order(3, keep=names, upload=False))  # goes on where the first one ended
    np.testing.assert_array_equal(desk.own(), own + drift(3))
    np.testing.assert_array_equal(desk.residual(), residual)


def test_the_model_of_another_run_with_the_same_name_is_not_used(desk: Desk) -> None:
    """A coordinator that was set up anew may call its first run "first" again, with another bundle."""
    names = tuple(LAYOUT.by_name)
    desk.give(desk.order(9, keep=names, upload=False))
    other = desk.serve(make_bundle(1))
    desk.give(desk.order(1, keep=names, upload=False, bundle=other))
    np.testing.assert_array_equal(desk.own(), theta_of(1) + drift(1))


def test_the_coordinators_refusal_is_an_error_in_the_log(desk: Desk) -> None:
    (note,) = desk.tell(Refusal("version", "too old"))
    assert note == Note(logging.ERROR, "the coordinator refuses: version too old")
