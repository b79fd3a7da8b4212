"""The agent and a bad world: a disk that is full or rots, power cuts, strangers, replays, noise."""

import errno
import hashlib
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edge.disk_faults import Disk
from tests.edge.harness import (
    DOWN,
    FULL,
    KEYS,
    LAYOUT,
    UP,
    DriftTrainer,
    Harness,
    MakeDevice,
    N,
    drift,
    only,
    theta_of,
)
from tests.fleet import changed

from sedge_edge.agent import StartJob
from sedge_edge.rounds.disk_waits import MAX_JOB_BACKOFF_S
from sedge_edge.rounds.state import DISK_RETRY_S, MAX_STARTS
from sedge_edge.training.trainer import Trained
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import VERSIONS, Frame, Kind, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import (
    Cancel,
    Committed,
    Decline,
    Get,
    Goodbye,
    Hello,
    Message,
    Order,
    Welcome,
    encode_body,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.topics import down
from sedge_protocol.wire.transfer import from_bitmap
from sedge_protocol.wire.work import Codec, UpdateSelection

pytestmark = pytest.mark.both_cores

# A full disk.


def started(make_device: MakeDevice, folder: Path) -> Harness:
    """A device, as its service manager would bring it to life."""
    for _ in range(100):
        try:
            return make_device(folder, chunk_bytes=16384)
        except StorageError as exc:
            assert "No space left on device" in str(exc)
    raise AssertionError("it does not start")


def play(make_device: MakeDevice, folder: Path, selects: bool) -> Harness:
    """Two rounds, perhaps on a disk that is full for a while; started again when it cannot start."""
    device = started(make_device, folder)
    device.pump(device.connect())
    coded: dict[str, Any] = {"codec": Codec(fraction=0.3, compression=device.compression)}
    for order in device.chain(1, 2):  # the second from the version and the mask of the first
        known = device.on_disk().runs.get("run")
        if selects:
            mask = b"" if known is None else known.kept.mask or b""
            coded = {"select": UpdateSelection(0.3), "context": mask}
        device.give(changed(order, keep=("norm.mean",), **coded))
        device.settle(100_000.0)
    device.now += DISK_RETRY_S  # what is no longer needed may have to wait for the disk, too
    device.pump([])
    return device


@pytest.mark.parametrize("each", [2, pytest.param(1, marks=pytest.mark.slow)])
def test_a_full_disk_at_a_write_loses_nothing(
    make_device: MakeDevice, disk: Disk, core: str, tmp_path: Path, each: int
) -> None:
    selects = core == "python"
    with disk.full(0, 0) as quiet:
        expected = play(make_device, tmp_path / "quiet", selects)
    assert quiet.calls > 50
    for first in range(0, quiet.calls, each):
        with disk.full(first, 1):
            device = play(make_device, tmp_path / str(first), selects)
        assert device.results() == expected.results(), f"write {first}"
        assert device.on_disk().runs == expected.on_disk().runs, f"write {first}"
        assert device.blob_files() == expected.blob_files(), f"write {first}"


@pytest.mark.parametrize("first", range(4, 70, 22))
def test_a_disk_that_stays_full_for_a_while(
    make_device: MakeDevice, disk: Disk, core: str, tmp_path: Path, first: int
) -> None:
    expected = play(make_device, tmp_path / "quiet", core == "python")
    with disk.full(first, 30):
        device = play(make_device, tmp_path / "full", core == "python")
    assert device.results() == expected.results()
    assert device.on_disk().runs == expected.on_disk().runs
    # One line for each try, and a try at most every half minute: no busy loop.
    found = [note for note in device.notes if "No space left" in note]
    errors = [note for note in found if not note.startswith("waiting: ")]
    assert len(errors) <= 31
    assert device.counters["storage_errors"] in (len(errors), -1)


def test_after_a_full_disk_the_agent_tries_again_in_half_a_minute(device: Harness) -> None:
    with device.refusing("commit"):
        effects = device.tell(device.order())
        assert device.waits(effects) == [FULL] and len(device.messages(effects)) == 1
        device.pump(effects)
        assert device.agent.timer() == device.now + DISK_RETRY_S
        device.now += DISK_RETRY_S
    assert device.on_disk().orders == {}
    (hello,) = device.messages(device.agent.poll(device.now))
    assert isinstance(hello, Hello) and not hello.waits
    device.give(device.order())  # the coordinator asks again
    assert ("run", 1) in device.updates


@pytest.mark.parametrize("tried_again", [False, True])
def test_a_commit_that_fails_at_its_last_step_keeps_what_it_names(
    device: Harness, tried_again: bool
) -> None:
    """The journal is renamed, its folder cannot be flushed, and then the power fails."""
    device.connect()
    order = device.order()
    device.order_at_hand = order
    job = device.begin(order)
    with device.refusing("last step of a commit"):
        device.pump(device.work(job))
    assert not device.updates and device.on_disk().outbox
    if tried_again:
        device.now += DISK_RETRY_S
        device.agent.poll(device.now)  # commits what it knows, then deletes what nothing needs
        assert device.on_disk().outbox == ()
    device.order_at_hand = None
    device.pump(device.reboot())
    device.settle()
    assert list(device.updates) == [("run", 1)]
    np.testing.assert_array_equal(device.own(), theta_of(1) + drift(1))


def test_no_room_for_a_download_does_not_hold_back_an_update(device: Harness) -> None:
    """What waits in the outbox is what fills the disk: it must be able to leave."""
    job = device.begin(device.order(1))
    device.agent.disconnected()
    device.work(job)
    (waiting,) = device.on_disk().outbox
    # In chunks of 4 KiB, with answers between: more than one step. The order comes first.
    device.order_at_hand = device.order(2, run="other")
    with device.refusing("open_part"):
        device.pump(device.connect(10_000))
    assert FULL in device.notes
    assert list(device.updates) == [("run", 1)]
    assert device.on_disk().outbox == ()
    assert device.now == 100.0  # not one half minute was waited
    device.settle()
    assert ("other", 2) in device.updates
    assert waiting.blob.hex() not in device.blob_files()


def test_a_file_that_cannot_be_deleted_stops_nothing(device: Harness) -> None:
    with device.refusing("collect"):
        for number in range(1, 4):
            device.give(device.order(number))
        assert len(device.updates) == 3
        assert device.now == 100.0
        assert device.notes.count(FULL) == 1  # one line each half minute
    device.now += DISK_RETRY_S
    device.pump([])
    assert len(device.blob_files()) == 3


def test_jobs_that_fail_again_and_again_leave_no_orphans(
    device: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is written, the model after it is not; and the seconds in each report differ."""
    device.give(device.order(1))
    order = device.order(2)
    seconds = iter(range(10**6))
    place = device.place
    monkeypatch.setattr(
        device, "place", lambda: replace(place(), clock=lambda: float(next(seconds)))
    )
    with device.refusing("write", least=4 * N, but=order.model_hash):
        device.give(order)
        for _ in range(5):
            device.now += MAX_JOB_BACKOFF_S
            device.pump(device.agent.poll(device.now))
        assert device.notes.count(FULL) == 6
        # bundle, old global, old model, new global as it came and decoded, and the last try's update.
        assert len(device.blob_files()) <= 6
    device.settle()
    assert ("run", 2) in device.updates


class Counting(DriftTrainer):
    def __init__(self) -> None:
        self.begun = 0

    def train(self, *args: Any, **kwargs: Any) -> Trained:
        self.begun += 1
        return super().train(*args, **kwargs)


def at_least(at: float | None, now: float) -> float:
    assert at is not None
    return max(at, now)


def test_trainings_for_a_full_disk_become_rare(device: Harness) -> None:
    """Each was for nothing, and the battery's."""
    device.trainer = trainer = Counting()
    order = device.order(1)
    begun: list[float] = []
    with device.refusing("write", least=4 * N, but=order.model_hash):
        device.give(order)
        while device.now < 10_000:
            before = trainer.begun
            device.now = at_least(device.agent.timer(), device.now + 0.001)
            device.pump([])
            begun += [device.now] * (trainer.begun - before)
    pauses = np.diff([100.0, *begun])
    assert pauses == pytest.approx([30, 60, 120, 240, 480, 960, 1800, 1800, 1800, 1800, 1800])
    device.settle()  # when there is room: at the next try, and all is as before
    assert ("run", 1) in device.updates
    device.complete(2)


def test_an_update_that_has_left_is_room_for_a_job_that_had_none(device: Harness) -> None:
    job, second = device.begin(device.order(1)), device.order(2, run="other")
    device.agent.disconnected()
    device.work(job)
    (waiting,) = device.on_disk().outbox
    device.connect()
    device.tell(second)
    device.feed(second.model)
    for pause in (30.0, 60.0, 120.0):
        device.agent.failed(StorageError("disk full (test)"), device.now)
        assert only(device.agent.poll(device.now + pause - 1), StartJob) == []
        device.now += pause
        assert only(device.agent.poll(device.now), StartJob) != []
    device.agent.failed(StorageError("disk full (test)"), device.now)
    device.now += DISK_RETRY_S
    effects = device.tell(Committed("run", 1, waiting.blob))
    assert [found.job.order for found in only(effects, StartJob)] == [second]


# Rot.


@pytest.mark.parametrize("which", ["bundle", "model", "patch"])
def test_a_damaged_blob_is_fetched_again(device: Harness, which: str) -> None:
    order = device.order(1)
    if which == "patch":
        patch = device.served[device.order(2, theta_of(9)).model.transfer]
        digest = hashlib.sha256(patch).digest()
        order = device.order(1, patch_blob=device.serve(patch), patch_hash=digest)
        assert order.patch_blob is not None
        victim = order.patch_blob
    else:
        victim = order.bundle if which == "bundle" else order.model
    wanted = [order.bundle, order.model, *([] if order.patch_blob is None else [order.patch_blob])]
    device.order_at_hand = order
    device.listen(device.tell(order))
    (work,) = only(device.feed(*wanted), StartJob)
    device.damage(victim.sha256)
    device.pump(device.work(work.job))
    assert any("do not match its sha256" in note for note in device.notes)
    assert not device.updates
    device.chunks_sent = 0
    device.settle()
    assert device.chunks_sent == victim.count
    assert ("run", 1) in device.updates
    assert device.now == pytest.approx(100.0 + DISK_RETRY_S, abs=1.0)


@pytest.mark.parametrize(
    "name", ["model", "residual", pytest.param("mask", marks=pytest.mark.python_only("extensions"))]
)
def test_damage_to_what_only_the_device_has_does_not_stop_it(device: Harness, name: str) -> None:
    keep = ("norm.mean",)
    coded: dict[str, Any] = {"codec": Codec(fraction=0.1)}
    if name == "mask":
        coded = {"select": UpdateSelection(0.1)}
    device.give(device.order(1, keep=keep, **coded))
    kept = device.on_disk().runs["run"].kept
    victim = {"model": kept.model, "residual": kept.residual, "mask": kept.mask}[name]
    assert victim is not None
    device.damage(victim)
    device.give(device.order(2, keep=keep, context=kept.mask or b"", **coded))
    device.settle()
    words = f"run run: the device's own {name} is (damaged|lost); continuing without it"
    assert any(re.fullmatch(words, note) for note in device.notes)
    place = LAYOUT.by_name["norm.mean"].slice
    start = theta_of(2) if name == "model" else theta_of(1) + drift(1)
    np.testing.assert_array_equal(device.own()[place], start[place] + drift(2)[place])


def test_damage_to_a_waiting_update_brings_its_order_back(device: Harness) -> None:
    order = device.order(1)
    device.work(device.begin(order))
    (waiting,) = device.on_disk().outbox
    device.damage(waiting.blob)
    device.order_at_hand = order
    device.pump(device.reboot())
    assert any("the update is lost" in note for note in device.notes)
    device.give(order)
    assert ("run", 1) in device.updates
    assert device.agent.idle


def test_a_manifest_that_no_chunks_fit_does_not_keep_the_link_busy(device: Harness) -> None:
    """The digests are those of the chunks, the hash of the whole is not: fetched now and then, for ever."""
    order = device.order()
    lie = msgspec.structs.replace(order.model, sha256=b"x" * 32)
    device.served[lie.transfer] = device.served[order.model.transfer]
    device.manifests[lie.transfer] = lie
    device.tell(msgspec.structs.replace(order, model=lie))
    (note,) = only(device.feed(order.bundle, lie), Note)
    words = "its chunks do not match its sha256; fetching it again in 30 s"
    assert note.text == f"blob {lie.sha256.hex()[:16]}: {words}"
    assert device.messages(device.agent.poll(device.now)) == []
    device.now += 30.0
    again = device.messages(device.agent.poll(device.now))
    assert [type(message) for message in again] == [Get]
    device.complete(2)


def test_of_a_damaged_part_only_the_damaged_chunk_is_fetched_again(device: Harness) -> None:
    order = device.order()
    device.tell(order)
    device.feed(order.bundle)
    for index in (0, 1):
        device.chunk(order.model, index)
    (part,) = device.folder.glob(f"parts/*{order.model.sha256.hex()}*")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert [type(effect) for effect in device.chunk(order.model, 2)] == [Note, Unsubscribe]
    device.now += 30.0
    effects = device.agent.poll(device.now)
    (get,) = only(device.messages(effects), Get)
    assert from_bitmap(get.missing, order.model.count) == {0}
    device.pump(effects)
    assert ("run", 1) in device.updates


def test_a_coordinator_with_an_old_start_count_is_spoken_of(device: Harness) -> None:
    """Reinstalled with a clock that runs late: the device would be silent, and nobody know why."""
    device.give(device.order())
    device.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation=6, peer_incarnation=0)
    notes = [only(device.tell(device.order(number)), Note) for number in (2, 3)]
    assert [len(found) for found in notes] == [1, 0]
    assert "its start at 1970-01-01 00:00:06 UTC by its clock" in notes[0][0].text
    assert device.on_disk().orders == {}


def test_a_forged_start_count_of_the_coordinator_ends_with_the_next_connection(
    tmp_path: Path,
) -> None:
    """Whoever has the device's secret can be the coordinator to it, with the last count there is."""
    device = Harness(tmp_path)
    true, forger = device.peer, Peer(DOWN, KEYS.down, KEYS.up, 2**32 - 1, 0)
    (nonce,) = [m.nonce for m in device.messages(device.connect()) if isinstance(m, Hello)]
    device.peer = forger
    device.tell(Welcome(nonce, "forged", VERSIONS))
    device.peer = true
    assert device.on_disk().coordinator_incarnation == 2**32 - 1
    device.give(device.order())
    assert device.on_disk().orders == {}
    played_back = true.seal(Welcome(nonce, "0", VERSIONS))
    device.agent = device.start()
    device.connect()  # the hello of which is answered by the true one
    assert device.on_disk().coordinator_incarnation == 7
    assert device.agent.receive(DOWN, played_back, device.now) == []
    device.give(device.order())
    device.settle()
    assert ("run", 1) in device.updates


def test_chunks_that_find_the_disk_full_are_said_once(device: Harness) -> None:
    order = device.order()
    device.tell(order)
    with device.refusing("write_part"):
        effects = device.feed(order.bundle)
    levels = [note.level for note in only(effects, Note)]
    assert order.bundle.count > 2 and levels == [logging.ERROR, logging.INFO]
    device.pump(effects)
    assert device.agent.timer() == device.now + DISK_RETRY_S


# Power cuts.


def test_a_download_goes_on_after_a_power_cut(device: Harness) -> None:
    order = device.order()
    device.tell(order)
    for index in range(3):
        device.chunk(order.bundle, index)
    device.order_at_hand = order
    device.chunks_sent = 0
    device.pump(device.reboot())
    assert ("run", 1) in device.updates
    assert device.chunks_sent == order.bundle.count + order.model.count - 3


def kill(device: Harness, order: Order) -> None:
    """Every start there may be is cut off at the order's job."""
    job = device.begin(order)
    for _ in range(MAX_STARTS - 1):
        assert job.order == order
        job = only(device.reboot(), StartJob)[0].job


def test_a_job_that_kills_the_agent_is_declined_and_the_other_runs_go_on(device: Harness) -> None:
    bad, good = device.order(1, run="too-large"), device.order(2, run="fine")
    device.tell(bad)  # the oldest goes first, each time
    device.tell(good)
    kill(device, bad)
    device.feed(good.model)
    effects = device.reboot()
    assert [work.job.order for work in only(effects, StartJob)] == [good]
    assert device.on_disk().orders == {"fine": good}
    (decline,) = only(device.messages(effects), Decline)
    assert (decline.run, decline.round, decline.reason) == ("too-large", 1, "TooManyStarts")
    said = "run too-large, round 1: the agent was killed or lost power in each of 3"
    assert said in decline.detail
    # The decline was lost, or crossed the order: it is not tried another time.
    (decline,) = only(device.messages(device.tell(bad)), Decline)
    assert decline.reason == "TooManyStarts"
    assert device.on_disk().orders == {"fine": good}
    # The next round is another order, and stays when the bad one comes once more.
    following = device.order(3, run="too-large")
    assert only(device.tell(following), Subscribe)
    assert only(device.messages(device.tell(bad)), Decline)
    assert device.on_disk().orders == {"fine": good, "too-large": following}


def test_what_the_agent_survives_does_not_count(device: Harness) -> None:
    order = device.order(1)
    device.tell(order)
    effects = device.feed(order.bundle, order.model)
    for _ in range(2 * MAX_STARTS):
        assert only(effects, StartJob)
        device.agent.failed(StorageError("disk full (test)"), device.now)
        device.now += DISK_RETRY_S
        assert only(device.agent.poll(device.now), StartJob)
        assert device.agent.interrupted() == []  # by the service manager
        effects = device.reboot()
    device.pump(effects)
    assert ("run", 1) in device.updates
    assert device.on_disk().attempts == {}


def test_an_interruption_that_the_disk_will_not_note_is_no_error(device: Harness) -> None:
    device.begin(device.order(1))
    with device.refusing("commit"):
        assert [type(effect) for effect in device.agent.interrupted()] == [Note]


# Strangers and noise.


def check_ignored(device: Harness, topic: str, payload: bytes, counter: str) -> list[str]:
    """The frame is counted under one name, where that is done, and changes nothing."""
    journal, timer = (device.folder / "journal").read_bytes(), device.agent.timer()
    known = device.known()
    counted = device.counters[counter]
    effects = device.agent.receive(topic, payload, device.now)
    assert device.counters[counter] in (counted + 1, -1)
    assert (device.folder / "journal").read_bytes() == journal
    assert device.known() == known
    assert device.agent.timer() == timer
    notes = only(effects, Note)
    assert len(notes) == len(effects)
    return [note.text for note in notes]


def test_frames_of_strangers(device: Harness) -> None:
    order = device.order()
    stranger = DeviceKeys.of(b"s" * 32)
    other = down("test", "pi-2")
    cases = [
        Peer(DOWN, stranger.down, stranger.up, 7, 0).seal(order),  # another device's key
        Peer(DOWN, KEYS.up, KEYS.down, 7, 0).seal(order),  # our own key for the other direction
        Peer(other, KEYS.down, KEYS.up, 7, 0).seal(order),  # meant for another topic
        Peer(UP, KEYS.up, KEYS.down, 7, 0).seal(Hello(bytes(16), "0")),  # our own, sent back
        seal(Frame(Kind.CHUNK, b"x" * 4096), DOWN, None),  # without a key, where one is needed
        b"",
        b"not a frame",
    ]
    for payload in cases:
        (note,) = check_ignored(device, DOWN, payload, "refused")
        assert note.startswith(f"dropped a frame on {DOWN}: ")


def test_control_frames_on_the_fleets_topic(device: Harness) -> None:
    order = device.order()
    for topic in (f"sedge/1/test/blob/{'0' * 32}", "elsewhere"):
        check_ignored(device, topic, device.peer.seal(order), "refused")
        check_ignored(device, topic, Peer(topic, KEYS.down, KEYS.up, 7, 0).seal(order), "refused")


def test_a_replayed_frame_is_counted_and_nothing_else(device: Harness) -> None:
    payload = device.peer.seal(device.order())
    device.agent.receive(DOWN, payload, device.now)
    for _ in range(3):
        assert check_ignored(device, DOWN, payload, "replayed") == []


def test_frames_of_an_earlier_coordinator_are_refused_for_good(device: Harness) -> None:
    old = device.peer.seal(device.order(8))
    device.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation=8, peer_incarnation=0)
    device.give(device.order(1))
    assert device.on_disk().coordinator_incarnation == 8
    for expected in (1, 0):  # said now and then
        assert len(check_ignored(device, DOWN, old, "replayed")) == expected
    device.reboot()
    assert len(check_ignored(device, DOWN, old, "replayed")) == 1


@pytest.mark.parametrize(
    "message",
    [Hello(bytes(16), "0"), Goodbye(bytes(16)), Get("run", 1, b"\x01"), Decline("run", 1, "no")],
    ids=lambda message: type(message).__name__,
)
def test_messages_that_are_not_for_a_device(device: Harness, message: Message) -> None:
    (note,) = check_ignored(device, DOWN, device.peer.seal(message), "refused")
    assert f"{type(message).__name__} is not a message for a device" in note


def test_bodies_that_break_the_schema(device: Harness) -> None:
    whole = encode_body(device.order())
    for number, body in enumerate((b"", b"\xc0", whole[:-1], whole + b"\0", b"\x81" * 1000)):
        frame = Frame(Kind.ORDER, body, 7, 1000 + number)
        check_ignored(device, DOWN, seal(frame, DOWN, KEYS.down), "refused")
    offer = device.peer.seal(Committed("run", 1, b"x" * 32))
    assert device.agent.receive(DOWN, offer, device.now) == []


def test_wrong_chunks_change_nothing(device: Harness) -> None:
    order = device.order()
    device.listen(device.tell(order))
    bundle = order.bundle
    good = device.served[bundle.transfer][:4096]
    for index, data in ((0, good[:-1]), (0, good[::-1]), (1, good), (bundle.count, good), (0, b"")):
        effects = (
            device.chunk(bundle, index, data)
            if index < bundle.count
            else [*device.agent.receive(*foreign_chunk(bundle.transfer, index, data), device.now)]
        )
        assert [type(effect) for effect in effects] == [Note]
    assert device.agent.receive(*foreign_chunk(b"x" * 16, 0, good), device.now) == []
    device.order_at_hand = order
    device.settle()
    assert ("run", 1) in device.updates


def foreign_chunk(transfer: bytes, index: int, data: bytes) -> tuple[str, bytes]:
    topic = f"sedge/1/test/blob/{transfer.hex()}"
    return topic, seal(Frame(Kind.CHUNK, data, 7, 0, transfer, index), topic, None)


def test_a_device_without_room_for_a_download_says_so_until_there_is(device: Harness) -> None:
    order = device.order()
    with device.refusing("open_part"):
        (hello,) = device.messages(device.tell(order))
        assert isinstance(hello, Hello) and hello.waits == FULL
    device.now += DISK_RETRY_S
    device.pump(device.agent.poll(device.now))
    assert ("run", 1) in device.updates and device.notes.count("continuing") == 1


def test_the_disk_is_forgotten_with_the_run_whose_outcome_it_refused(device: Harness) -> None:
    """Otherwise the device would wait for ever: who waits is sent no order, and no job could clear it."""
    job, before = device.begin(device.order()), device.on_disk()
    with device.refusing("commit"):
        effects = device.work(job)
    assert device.waits(effects) == [FULL] and len(device.messages(effects)) == 1
    assert device.on_disk() == before
    device.tell(Cancel("run", 0, "stopped"))
    device.now += DISK_RETRY_S
    assert device.waits(device.agent.poll(device.now))[-1] == ""


def test_a_disk_that_became_read_only_is_named_at_once_and_the_device_comes_back(
    device: Harness, disk: Disk
) -> None:
    """The journal cannot be written: no order is kept, but that needs no disk to be said."""
    order = device.order()
    with disk.full(0, 10**9, errno.EROFS):
        (hello,) = device.messages(device.tell(order))
        assert isinstance(hello, Hello) and "Read-only file system" in hello.waits
        device.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation=8, peer_incarnation=0)
        # Of a coordinator that has restarted meanwhile.
        device.tell(Welcome(hello.nonce, "0", VERSIONS))
        assert device.agent.welcomed
        for _ in range(3):  # no word of it, while nothing changes
            device.now += DISK_RETRY_S
            assert device.messages(device.agent.poll(device.now)) == []
        assert device.on_disk().orders == {}
    device.now += DISK_RETRY_S
    (hello,) = device.messages(device.agent.poll(device.now))
    assert isinstance(hello, Hello) and not hello.waits
    device.give(order)
    assert ("run", 1) in device.updates and device.on_disk().coordinator_incarnation == 8
