"""The agent and a bad world: a disk that is full or rots, power cuts, strangers, replays, noise."""

import hashlib
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.edge.desk import (
    DOWN,
    KEYS,
    LAYOUT,
    UP,
    Desk,
    DriftTrainer,
    FullDisk,
    N,
    drift,
    make_bundle,
    only,
    storage_error,
    theta_of,
)
from tests.orders import changed

from sedge_edge.agent import LONGEST_REST_S, Work
from sedge_edge.rounds.state import DISK_RETRY_S, MAX_STARTS
from sedge_edge.training.trainer import Trained
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire.effects import Note, Send, Subscribe
from sedge_protocol.wire.frame import Frame, Kind, seal
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import (
    Codec,
    Committed,
    Decline,
    Get,
    Goodbye,
    Hello,
    Message,
    Offer,
    Order,
    UpdateSelection,
    Welcome,
    encode_body,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.topics import down

# Everything by which the product changes a disk.
WRITES = ("pwrite", "fsync", "replace", "mkdir", "utime", "unlink")
NAMES = tuple(LAYOUT.by_name)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A connected, welcomed device."""
    desk = Desk(tmp_path)
    desk.pump(desk.connect())
    return desk


# A full disk.


def started(folder: Path) -> Desk:
    """A device, as its service manager would bring it to life."""
    for _ in range(100):
        try:
            return Desk(folder)
        except StorageError as exc:
            assert "No space left on device" in str(exc)
    raise AssertionError("it does not start")


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here loses power, and flushing takes time."""

    def nothing(descriptor: int) -> None:
        return

    monkeypatch.setattr(os, "fsync", nothing)


def play(folder: Path, full: FullDisk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Two rounds on a disk that is full for a while; the process is started again when it cannot start."""
    with monkeypatch.context() as patched:
        for name in WRITES:
            patched.setattr(os, name, full.wrap(getattr(os, name)))
        desk = started(folder)
        desk.pump(desk.connect())
        select = UpdateSelection(0.3)
        for order in desk.chain(1, 2):  # the second from the version and the mask of the first
            known = desk.on_disk().runs.get("run")
            mask = b"" if known is None else known.kept.mask or b""
            given = changed(order, keep=("norm.mean",), select=select, context=mask)
            desk.give(given)
            desk.settle(100_000.0)
        desk.now += DISK_RETRY_S  # what is no longer needed may have to wait for the disk, too
        desk.pump([])
    return desk


@pytest.mark.usefixtures("no_sync")
def test_a_full_disk_at_every_write_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet = FullDisk(0, 0)
    expected = play(tmp_path / "quiet", quiet, monkeypatch)
    assert quiet.calls > 50
    for first in range(quiet.calls):
        desk = play(tmp_path / str(first), FullDisk(first, 1), monkeypatch)
        assert desk.updates == expected.updates, f"write {first}"
        assert desk.on_disk().runs == expected.on_disk().runs, f"write {first}"
        assert desk.blob_files() == expected.blob_files(), f"write {first}"


@pytest.mark.usefixtures("no_sync")
@pytest.mark.parametrize("first", range(4, 70, 6))
def test_a_disk_that_stays_full_for_a_while(
    tmp_path: Path, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(tmp_path / "quiet", FullDisk(0, 0), monkeypatch)
    desk = play(tmp_path / "full", FullDisk(first, 30), monkeypatch)
    assert desk.updates == expected.updates
    assert desk.on_disk().runs == expected.on_disk().runs
    # One line for each try, and a try at most every half minute: no busy loop.
    errors = [note for note in desk.notes if "No space left" in note]
    assert len(errors) <= 31
    assert desk.agent.peer.counters["storage_errors"] == len(errors)


def test_after_a_full_disk_the_agent_tries_again_in_half_a_minute(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = desk.order()
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", FullDisk(0, 10**9).wrap(os.pwrite))
        effects = desk.tell(order)
        assert [type(e) for e in effects] == [Note]
        assert desk.agent.timer() == desk.now + DISK_RETRY_S
        desk.now += DISK_RETRY_S
    assert desk.on_disk().orders == {}
    assert desk.agent.poll(desk.now) == []
    desk.give(desk.order())  # the coordinator asks again
    assert ("run", 1) in desk.updates


def test_no_room_for_a_download_does_not_hold_back_an_update(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits in the outbox is what fills the disk: it must be able to leave."""
    first = desk.order(1)
    desk.tell(first)
    (work,) = only(desk.feed(first.bundle, first.model), Work)
    desk.agent.disconnected()
    desk.work(work.job)
    (waiting,) = desk.on_disk().outbox
    room: list[int] = [0]

    def require_room(self: BlobFolder, length: int, path: Path) -> None:
        if length > room[0]:
            raise StorageError(f"disk full: {path} needs {length} bytes")

    monkeypatch.setattr(BlobFolder, "_require_room", require_room)
    # In chunks of 4 KiB, with answers between: more than one step. The order comes first.
    desk.order_at_hand = desk.order(2, run="other")
    desk.pump(desk.connect(10_000))
    assert any("disk full" in note for note in desk.notes)
    assert list(desk.updates) == [("run", 1)]
    assert desk.on_disk().outbox == ()
    assert desk.now == 100.0  # not one half minute was waited
    room[0] = 10**9
    desk.settle()
    assert ("other", 2) in desk.updates
    assert waiting.blob.hex() not in desk.blob_files()


def test_a_full_disk_between_two_blobs_still_listens_to_the_first(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = desk.order()
    calls: list[int] = []
    real = BlobFolder.open_part

    def second_fails(self: BlobFolder, owner: str, manifest: object) -> set[int]:
        calls.append(1)
        if len(calls) == 2:
            raise StorageError("disk full (test)")
        return real(self, owner, manifest)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(BlobFolder, "open_part", second_fails)
    desk.give(order)
    desk.settle()
    assert ("run", 1) in desk.updates


def test_a_full_disk_at_the_last_step_of_a_download(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    real = BlobFolder.finish_part

    def first_fails(self: BlobFolder, owner: str, manifest: object) -> bool:
        calls.append(1)
        if len(calls) == 1:
            raise StorageError("disk full (test)")
        return real(self, owner, manifest)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(BlobFolder, "finish_part", first_fails)
    desk.give(desk.order())
    desk.settle()
    assert ("run", 1) in desk.updates
    assert desk.now == pytest.approx(100.0 + DISK_RETRY_S)


def test_a_file_that_cannot_be_deleted_stops_nothing(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(BlobFolder, "collect", storage_error)
        for number in range(1, 4):
            desk.give(desk.order(number))
        assert len(desk.updates) == 3
        assert desk.now == 100.0
        errors = [note for note in desk.notes if "full (test)" in note]
        assert len(errors) == 1  # one line each half minute
    desk.now += DISK_RETRY_S
    desk.pump([])
    assert len(desk.blob_files()) == 3


def test_no_room_for_one_run_does_not_stop_another(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlobFolder, "open_part", storage_error)
    desk.tell(desk.order(5, run="other"))
    desk.now += DISK_RETRY_S
    here = desk.order(1)
    for manifest in (here.bundle, here.model):
        desk.blobs().write(desk.served[manifest.transfer])
    effects = [*desk.tell(here), *desk.agent.poll(desk.now)]
    assert [work.job.order for work in only(effects, Work)] == [here]


def test_jobs_that_fail_again_and_again_leave_no_orphans(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The update is written, the model after it is not; and the seconds in each report differ."""
    desk.give(desk.order(1))
    order = desk.order(2)
    seconds = iter(range(10**6))
    place = desk.place
    monkeypatch.setattr(desk, "place", lambda: replace(place(), clock=lambda: float(next(seconds))))
    write = BlobFolder.write

    def no_room_for_own_models(self: BlobFolder, data: bytes) -> bytes:
        if len(data) == 4 * N and hashlib.sha256(data).digest() != order.model_hash:
            raise StorageError("disk full (test)")
        return write(self, data)

    with monkeypatch.context() as patched:
        patched.setattr(BlobFolder, "write", no_room_for_own_models)
        desk.give(order)
        for _ in range(5):
            desk.now += LONGEST_REST_S
            desk.pump(desk.agent.poll(desk.now))
        assert desk.agent.peer.counters["storage_errors"] == 6
        # bundle, old global, old model, new global as it came and decoded, and the last try's update.
        assert len(desk.blob_files()) <= 6
    desk.settle()
    assert ("run", 2) in desk.updates


class Counting(DriftTrainer):
    """Counts the trainings."""

    def __init__(self) -> None:
        self.begun = 0

    def train(self, *args: Any, **kwargs: Any) -> Trained:
        self.begun += 1
        return super().train(*args, **kwargs)


def at_least(at: float | None, now: float) -> float:
    assert at is not None
    return max(at, now)


def test_trainings_for_a_full_disk_become_rare(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each was for nothing, and the battery's."""
    desk.trainer = trainer = Counting()
    order = desk.order(1)
    write = BlobFolder.write

    def no_room_for_results(self: BlobFolder, data: bytes) -> bytes:
        if trainer.begun and len(data) >= 4 * N:
            raise StorageError("disk full (test)")
        return write(self, data)

    begun: list[float] = []
    with monkeypatch.context() as patched:
        patched.setattr(BlobFolder, "write", no_room_for_results)
        desk.give(order)
        while desk.now < 10_000:
            before = trainer.begun
            desk.now = at_least(desk.agent.timer(), desk.now + 0.001)
            desk.pump([])
            begun += [desk.now] * (trainer.begun - before)
    pauses = np.diff([100.0, *begun])
    assert pauses == pytest.approx([30, 60, 120, 240, 480, 960, 1800, 1800, 1800, 1800, 1800])
    desk.settle()  # when there is room: at the next try, and all is as before
    assert ("run", 1) in desk.updates
    monkeypatch.setattr(desk, "trainer", Counting())
    desk.give(desk.order(2))
    assert ("run", 2) in desk.updates


def test_an_update_that_has_left_is_room_for_a_job_that_had_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = desk.order(1), desk.order(2, run="other")
    desk.tell(first)
    (work,) = only(desk.feed(first.bundle, first.model), Work)
    desk.agent.disconnected()
    desk.work(work.job)
    (waiting,) = desk.on_disk().outbox
    desk.connect()
    desk.tell(second)
    desk.feed(second.model)
    for pause in (30.0, 60.0, 120.0):
        desk.agent.failed(StorageError("disk full (test)"), desk.now)
        assert only(desk.agent.poll(desk.now + pause - 1), Work) == []
        desk.now += pause
        assert only(desk.agent.poll(desk.now), Work) != []
    desk.agent.failed(StorageError("disk full (test)"), desk.now)
    desk.now += DISK_RETRY_S
    effects = desk.tell(Committed("run", 1, waiting.blob))
    assert [found.job.order for found in only(effects, Work)] == [second]


# Rot.


def damage(desk: Desk, sha256: bytes) -> None:
    """Flip a bit of a blob on the device's disk."""
    (path,) = desk.folder.glob(f"blobs/*/{sha256.hex()}")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("which", ["bundle", "model", "patch"])
def test_a_damaged_blob_is_fetched_again(desk: Desk, which: str) -> None:
    order = desk.order(1)
    if which == "patch":
        patch = desk.served[desk.order(2, theta_of(9)).model.transfer]
        digest = hashlib.sha256(patch).digest()
        order = desk.order(1, patch_blob=desk.serve(patch), patch_hash=digest)
        assert order.patch_blob is not None
        victim = order.patch_blob
    else:
        victim = order.bundle if which == "bundle" else order.model
    wanted = [order.bundle, order.model, *([] if order.patch_blob is None else [order.patch_blob])]
    desk.order_at_hand = order
    desk.listen(desk.tell(order))
    (work,) = only(desk.feed(*wanted), Work)
    damage(desk, victim.sha256)
    desk.pump(desk.work(work.job))
    assert any("do not have its sha256" in note for note in desk.notes)
    assert not desk.updates
    desk.chunks_sent = 0
    desk.settle()
    assert desk.chunks_sent == victim.count
    assert ("run", 1) in desk.updates
    assert desk.now == pytest.approx(100.0 + DISK_RETRY_S, abs=1.0)


@pytest.mark.parametrize("name", ["model", "residual", "mask"])
def test_damage_to_what_only_the_device_has_does_not_stop_it(desk: Desk, name: str) -> None:
    keep = ("norm.mean",)
    coded: dict[str, Any] = {"codec": Codec(fraction=0.1)}
    if name == "mask":
        coded = {"select": UpdateSelection(0.1)}
    desk.give(desk.order(1, keep=keep, **coded))
    known = desk.on_disk().runs["run"]
    victim = {"model": known.kept.model, "residual": known.kept.residual, "mask": known.kept.mask}[
        name
    ]
    assert victim is not None
    damage(desk, victim)
    desk.give(desk.order(2, keep=keep, context=known.kept.mask or b"", **coded))
    desk.settle()
    assert f"run run: the device's own {name} is damaged; going on without it" in desk.notes
    place = LAYOUT.by_name["norm.mean"].slice
    start = theta_of(2) if name == "model" else theta_of(1) + drift(1)
    np.testing.assert_array_equal(desk.own()[place], start[place] + drift(2)[place])


def test_damage_to_a_waiting_update_brings_its_order_back(desk: Desk) -> None:
    order = desk.order(1)
    desk.tell(order)
    (work,) = only(desk.feed(order.bundle, order.model), Work)
    desk.work(work.job)
    (waiting,) = desk.on_disk().outbox
    damage(desk, waiting.blob)
    desk.order_at_hand = order
    desk.pump(desk.reboot())
    assert any("the update is lost" in note for note in desk.notes)
    desk.give(order)
    assert ("run", 1) in desk.updates
    assert desk.agent.idle


def test_a_part_that_was_damaged_on_disk_is_fetched_again(desk: Desk) -> None:
    order = desk.order()
    desk.listen(desk.tell(order))
    for index in range(order.bundle.count - 1):
        desk.chunk(order.bundle, index)
    (part,) = desk.folder.glob(f"parts/*{order.bundle.sha256.hex()}.part")
    data = bytearray(part.read_bytes())
    data[5] ^= 1
    part.write_bytes(data)
    desk.listen(desk.chunk(order.bundle, order.bundle.count - 1))
    assert any("its chunks do not have its sha256; fetching it again" in n for n in desk.notes)
    desk.order_at_hand = order
    desk.settle()
    assert ("run", 1) in desk.updates


def test_a_manifest_that_no_chunks_fit_does_not_keep_the_link_busy(desk: Desk) -> None:
    """The digests are those of the chunks, the hash of the whole is not: fetched now and then, for ever."""
    order = desk.order()
    lie = msgspec.structs.replace(order.model, sha256=b"x" * 32)
    desk.served[lie.transfer] = desk.served[order.model.transfer]
    desk.manifests[lie.transfer] = lie
    desk.tell(msgspec.structs.replace(order, model=lie))
    asked = desk.messages(desk.feed(order.bundle, lie))
    assert not any(isinstance(message, Get) for message in asked)
    desk.now += 30.0
    again = desk.messages(desk.agent.poll(desk.now))
    assert [type(message) for message in again] == [Get]
    desk.give(desk.order(2))
    assert ("run", 2) in desk.updates


def test_a_coordinator_with_an_old_start_count_is_spoken_of(desk: Desk) -> None:
    """Reinstalled with a clock that runs late: the device would be silent, and nobody know why."""
    desk.give(desk.order())
    desk.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation=6, peer_incarnation=0)
    notes = [only(desk.tell(desk.order(number)), Note) for number in (2, 3)]
    assert [len(found) for found in notes] == [1, 0]
    assert "its start count 6 is below 7" in notes[0][0].text
    assert desk.on_disk().orders == {}


def test_a_forged_start_count_of_the_coordinator_ends_with_the_next_connection(
    tmp_path: Path,
) -> None:
    """Whoever has the device's secret can be the coordinator to it, with the last count there is."""
    desk = Desk(tmp_path)
    true, forger = (
        desk.peer,
        Peer(DOWN, KEYS.down, KEYS.up, incarnation=2**32 - 1, peer_incarnation=0),
    )
    (nonce,) = [m.nonce for m in desk.messages(desk.connect()) if isinstance(m, Hello)]
    desk.peer = forger
    desk.tell(Welcome(nonce, "forged"))
    desk.peer = true
    assert desk.on_disk().coordinator_incarnation == 2**32 - 1
    desk.give(desk.order())
    assert desk.on_disk().orders == {}
    played_back = true.seal(Welcome(nonce, "0"))
    desk.agent = desk.start()
    desk.connect()  # the hello of which is answered by the true one
    assert desk.on_disk().coordinator_incarnation == 7
    assert desk.agent.receive(DOWN, played_back, desk.now) == []
    desk.give(desk.order())
    desk.settle()
    assert ("run", 1) in desk.updates


def test_chunks_that_find_the_disk_full_are_said_once(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = desk.order()
    desk.tell(order)

    def refuse(*args: object) -> None:
        raise StorageError("disk full (test)")

    monkeypatch.setattr(BlobFolder, "write_part", refuse)
    effects = [e for index in range(order.bundle.count) for e in desk.chunk(order.bundle, index)]
    assert order.bundle.count > 2 and len(only(effects, Note)) == 1
    assert desk.agent.timer() == desk.now + DISK_RETRY_S


# Power cuts.


def test_a_download_goes_on_after_a_power_cut(desk: Desk) -> None:
    order = desk.order()
    desk.tell(order)
    for index in range(3):
        desk.chunk(order.bundle, index)
    desk.order_at_hand = order
    desk.chunks_sent = 0
    desk.pump(desk.reboot())
    assert ("run", 1) in desk.updates
    assert desk.chunks_sent == order.bundle.count + order.model.count - 3


def test_a_power_cut_before_the_whole_is_a_blob(desk: Desk) -> None:
    order = desk.order()
    desk.tell(order)
    folder = desk.blobs()
    for index in range(order.bundle.count):
        offset, length = order.bundle.span(index)
        data = desk.served[order.bundle.transfer][offset : offset + length]
        folder.write_part("fleet", order.bundle, index, data)
    desk.order_at_hand = order
    desk.chunks_sent = 0
    desk.pump(desk.reboot())
    assert ("run", 1) in desk.updates
    assert desk.chunks_sent == order.model.count


def test_work_that_was_cut_off_is_done_again_with_the_same_result(desk: Desk) -> None:
    desk.give(desk.order(1, keep=NAMES, upload=False))
    order = desk.order(2, keep=NAMES, upload=False)
    desk.tell(order)
    assert only(desk.feed(order.model), Work)
    for _ in range(MAX_STARTS - 2):
        assert only([*desk.reboot(), *desk.agent.poll(desk.now)], Work)
    desk.order_at_hand = order
    desk.pump(desk.reboot())
    np.testing.assert_array_equal(desk.own(), theta_of(1) + drift(1) + drift(2))


def kill(desk: Desk, order: Order) -> None:
    """Every start there may be is cut off at the order's job."""
    desk.tell(order)
    (work,) = only(desk.feed(order.bundle, order.model), Work)
    for _ in range(MAX_STARTS - 1):
        assert work.job.order == order
        (work,) = only(desk.reboot(), Work)


def test_a_job_that_kills_the_agent_is_declined_and_the_other_runs_go_on(desk: Desk) -> None:
    bad, good = desk.order(1, run="too-large"), desk.order(2, run="fine")
    desk.tell(bad)  # the oldest goes first, each time
    desk.tell(good)
    kill(desk, bad)
    desk.feed(good.model)
    effects = desk.reboot()
    assert [work.job.order for work in only(effects, Work)] == [good]
    assert desk.on_disk().orders == {"fine": good}
    (decline,) = (m for m in desk.messages(effects) if isinstance(m, Decline))
    assert (decline.run, decline.round, decline.reason) == ("too-large", 1, "TooManyStarts")
    assert (
        "run too-large, round 1: the agent was killed or lost power in each of 3" in decline.detail
    )
    # The decline was lost, or crossed the order: it is not tried another time.
    effects = desk.tell(bad)
    assert [m.reason for m in desk.messages(effects) if isinstance(m, Decline)] == ["TooManyStarts"]
    assert desk.on_disk().orders == {"fine": good}
    # The next round is another order.
    assert only(desk.tell(desk.order(3, run="too-large")), Subscribe)


def test_what_the_agent_survives_does_not_count(desk: Desk) -> None:
    order = desk.order(1)
    desk.tell(order)
    effects = desk.feed(order.bundle, order.model)
    for _ in range(2 * MAX_STARTS):
        assert only(effects, Work)
        desk.agent.failed(StorageError("disk full (test)"), desk.now)
        desk.now = at_least(desk.agent.timer(), desk.now)
        assert only(desk.agent.poll(desk.now), Work)
        assert desk.agent.interrupted() == []  # by the service manager
        effects = desk.reboot()
    desk.pump(effects)
    assert ("run", 1) in desk.updates
    assert desk.on_disk().attempts == {}


def test_an_interruption_that_the_disk_will_not_note_is_no_error(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.tell(order := desk.order(1))
    assert only(desk.feed(order.bundle, order.model), Work)
    monkeypatch.setattr(Journal, "commit", storage_error)
    assert [type(effect) for effect in desk.agent.interrupted()] == [Note]


def test_a_job_whose_start_cannot_be_noted_is_not_begun(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = desk.order(1)
    desk.tell(order)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "commit", storage_error)
        assert only(desk.feed(order.bundle, order.model), Work) == []
    desk.order_at_hand = order
    desk.settle()
    assert ("run", 1) in desk.updates


def test_every_start_is_a_new_boot(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    incarnations = [desk.agent.state.incarnation]
    for at_least in (0, 50, 3):  # a clock that was set, and then lost
        incarnations.append(desk.start(at_least).state.incarnation)
    assert incarnations == [1, 2, 50, 51]


@pytest.mark.parametrize("keep", [0, 7, 20, 44, 60, -1])
def test_a_damaged_journal_is_one_clear_error(desk: Desk, keep: int) -> None:
    desk.give(desk.order())
    path = desk.folder / "journal"
    data = path.read_bytes()
    for broken in (data[:keep], data[:keep] + b"\xff" + data[keep:]):
        path.write_bytes(broken)
        with pytest.raises(StorageError, match=f"^journal {path}: "):
            desk.start()
        assert path.read_bytes() == broken


def test_a_journal_of_another_version_is_left_alone(desk: Desk) -> None:
    path = desk.folder / "journal"
    Journal(path, type(desk.agent.state), 99).commit(desk.agent.state)
    data = path.read_bytes()
    with pytest.raises(StorageError, match="schema 99, this version reads 1; nothing was changed"):
        desk.start()
    assert path.read_bytes() == data


# Strangers and noise.


def check_ignored(desk: Desk, topic: str, payload: bytes, counter: str) -> list[str]:
    """The frame is counted under one name, and changes nothing, on disk or in memory."""
    before, journal = desk.agent.state, (desk.folder / "journal").read_bytes()
    counted, timer = desk.agent.peer.counters[counter], desk.agent.timer()
    effects = desk.agent.receive(topic, payload, desk.now)
    assert desk.agent.peer.counters[counter] == counted + 1
    assert desk.agent.state == before
    assert (desk.folder / "journal").read_bytes() == journal
    assert desk.agent.timer() == timer
    notes = only(effects, Note)
    assert len(notes) == len(effects)
    return [note.text for note in notes]


def test_frames_of_strangers(desk: Desk) -> None:
    order = desk.order()
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
        (note,) = check_ignored(desk, DOWN, payload, "refused")
        assert note.startswith(f"dropped a frame on {DOWN}: ")


def test_control_frames_on_the_fleets_topic(desk: Desk) -> None:
    order = desk.order()
    for topic in (f"sedge/1/test/blob/{'0' * 32}", "elsewhere"):
        check_ignored(desk, topic, desk.peer.seal(order), "refused")
        check_ignored(desk, topic, Peer(topic, KEYS.down, KEYS.up, 7, 0).seal(order), "refused")


def test_a_replayed_frame_is_counted_and_nothing_else(desk: Desk) -> None:
    payload = desk.peer.seal(desk.order())
    desk.agent.receive(DOWN, payload, desk.now)
    for _ in range(3):
        assert check_ignored(desk, DOWN, payload, "replayed") == []


def test_frames_of_an_earlier_coordinator_are_refused_for_good(desk: Desk) -> None:
    old = desk.peer.seal(desk.order(8))
    desk.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation=8, peer_incarnation=0)
    desk.give(desk.order(1))
    assert desk.on_disk().coordinator_incarnation == 8
    for expected in (1, 0):  # said now and then
        assert len(check_ignored(desk, DOWN, old, "replayed")) == expected
    desk.reboot()
    assert len(check_ignored(desk, DOWN, old, "replayed")) == 1


def test_another_version_says_so(desk: Desk) -> None:
    payload = bytearray(desk.peer.seal(desk.order()))
    payload[2] = 2
    (note,) = check_ignored(desk, DOWN, bytes(payload), "refused")
    assert "protocol version 2, this side speaks 1" in note


def test_every_truncation_and_every_flipped_byte_is_refused(desk: Desk) -> None:
    payload = desk.peer.seal(desk.order())
    for length in range(0, len(payload), 3):
        check_ignored(desk, DOWN, payload[:length], "refused")
    reserved = range(40, 48)  # covered by the MAC like everything else
    for place in (*range(0, len(payload), 7), *reserved):
        flipped = bytearray(payload)
        flipped[place] ^= 1 << place % 8
        check_ignored(desk, DOWN, bytes(flipped), "refused")
    check_ignored(desk, DOWN, payload + b"\0", "refused")
    effects = desk.agent.receive(DOWN, payload, desk.now)
    assert only(effects, Subscribe)


@pytest.mark.parametrize(
    "message",
    [
        Hello(bytes(16), "0"),
        Goodbye(bytes(16)),
        Get("run", 1, b"\x01"),
        Decline("run", 1, "no"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_that_are_not_for_a_device(desk: Desk, message: Message) -> None:
    (note,) = check_ignored(desk, DOWN, desk.peer.seal(message), "refused")
    assert f"{type(message).__name__} is not for a device" in note


def test_bodies_that_break_the_schema(desk: Desk) -> None:
    whole = encode_body(desk.order())
    for number, body in enumerate((b"", b"\xc0", whole[:-1], whole + b"\0", b"\x81" * 1000)):
        frame = Frame(Kind.ORDER, body, 7, 1000 + number)
        check_ignored(desk, DOWN, seal(frame, DOWN, KEYS.down), "refused")
    offer = desk.peer.seal(Committed("run", 1, b"x" * 32))
    assert desk.agent.receive(DOWN, offer, desk.now) == []


def test_wrong_chunks_change_nothing(desk: Desk) -> None:
    order = desk.order()
    desk.listen(desk.tell(order))
    bundle = order.bundle
    good = desk.served[bundle.transfer][:4096]
    for index, data in ((0, good[:-1]), (0, good[::-1]), (1, good), (bundle.count, good), (0, b"")):
        effects = (
            desk.chunk(bundle, index, data)
            if index < bundle.count
            else [*desk.agent.receive(*foreign_chunk(bundle.transfer, index, data), desk.now)]
        )
        assert [type(effect) for effect in effects] == [Note]
    assert desk.agent.peer.counters["refused"] == 5
    assert desk.agent.receive(*foreign_chunk(b"x" * 16, 0, good), desk.now) == []
    desk.order_at_hand = order
    desk.settle()
    assert ("run", 1) in desk.updates


def foreign_chunk(transfer: bytes, index: int, data: bytes) -> tuple[str, bytes]:
    """A chunk frame on the fleet's topic."""
    topic = f"sedge/1/test/blob/{transfer.hex()}"
    return topic, seal(Frame(Kind.CHUNK, data, 7, 0, transfer, index), topic, None)


def test_random_bytes(desk: Desk) -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        check = rng.bytes(int(rng.integers(0, 200)))
        desk.agent.receive(DOWN if rng.random() < 0.5 else "x", b"SG\x01" + check, desk.now)
    assert desk.agent.peer.counters["refused"] == 2000
    desk.give(desk.order(bundle=desk.serve(make_bundle(3))))
    assert ("run", 1) in desk.updates
    assert not only(desk.agent.poll(desk.now), Send)


def test_offers_never_leave_before_their_commit(desk: Desk) -> None:
    order = desk.order()
    desk.tell(order)
    (work,) = only(desk.feed(order.bundle, order.model), Work)
    (offer,) = desk.messages(desk.work(work.job))
    assert isinstance(offer, Offer)
    assert [p.blob for p in desk.on_disk().outbox] == [offer.manifest.sha256]
