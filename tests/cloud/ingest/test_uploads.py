"""The inbox: offers, chunks and receipts, whatever order, shape or disk they meet."""

import hashlib
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from tests.cloud import given
from tests.cloud.helper import (
    CONFIG,
    LAYOUT,
    RUN,
    Cloud,
    Faults,
    began,
    mode,
    pieces,
    random_theta,
    small_update,
    update,
)
from tests.cloud.stores import disk_of, in_a_folder, parts_of

from sedge_cloud.events import RunEnded, UpdateReceived
from sedge_cloud.ingest import uploads as inbox
from sedge_cloud.ingest.uploads import IDLE_S, RETRY_MS
from sedge_cloud.runs import garbage as ledgers
from sedge_cloud.store.rows import LATE_ROUNDS
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Busy, Committed, Have, Message, Offer, Reject
from sedge_protocol.wire.transfer import CREDIT, Manifest, describe, from_bitmap, to_bitmap
from sedge_protocol.wire.update import max_coded_bytes

CUT = 2**12


@pytest.fixture
def cloud(cloud: Cloud) -> Cloud:
    cloud.hello()
    return cloud


def large(cloud: Cloud, name: str = "a", seed: int = 3) -> bytes:
    """An update that does not fit inline: some eleven chunks of 4 KiB."""
    blob = update(cloud.order(name), random_theta(seed))
    assert len(blob) > 8 * CUT
    return blob


def cut(cloud: Cloud) -> tuple[bytes, Manifest, list[bytes]]:
    """A large update, its manifest, and its chunks."""
    blob = large(cloud)
    manifest = describe(blob, CUT)
    return blob, manifest, pieces(manifest, blob)


def send(cloud: Cloud, manifest: Manifest, data: list[bytes], at: Iterable[int]) -> list[Message]:
    """Device a sends these chunks; what it is answered for the last."""
    return [cloud.chunk("a", manifest.transfer, index, data[index]) for index in at][-1]


def offer(
    cloud: Cloud, name: str, manifest: Manifest, number: int = 1, round_: int = 1, run: str = RUN
) -> Message:
    """A device offers a blob without its bytes; the answer."""
    (answer,) = cloud.say(name, Offer(run, round_, manifest, number), manifest.transfer)
    return answer


def parts(cloud: Cloud) -> list[Path]:
    return sorted(parts_of(cloud.store).glob("*.part"))


def test_a_large_update_chunk_by_chunk(cloud: Cloud) -> None:
    blob, manifest, data = cut(cloud)
    assert offer(cloud, "a", manifest, 5) == Have(5, to_bitmap([], manifest.count), CREDIT)
    order = list(range(manifest.count))[::-1]
    for sent, index in enumerate(order[:-1], 1):
        for _ in range(2):  # doubled by the broker
            assert cloud.chunk("a", manifest.transfer, index, data[index]) == []
        reported = len(cloud.messages("a", Have))
        cloud.poll()
        if sent % (CREDIT // 2) == 0:
            held = from_bitmap(cloud.messages("a", Have)[-1].bitmap, manifest.count)
            assert held == set(order[:sent]) and len(cloud.messages("a", Have)) == reported + 1
    assert cloud.store.update(RUN, 1, "a") is None
    assert [mode(part) for part in parts(cloud)] == [0o600]
    assert cloud.chunk("a", manifest.transfer, 0, data[0]) == [Committed(RUN, 1, manifest.sha256)]
    assert cloud.store.update_blob(manifest.sha256) == blob and parts(cloud) == []
    # A chunk that was still on its way belongs to nothing any more.
    assert cloud.chunk("a", manifest.transfer, 0, data[0]) == [] and parts(cloud) == []


def test_progress_is_reported_after_a_silence(cloud: Cloud) -> None:
    _, manifest, data = cut(cloud)
    offer(cloud, "a", manifest)
    send(cloud, manifest, data, [0])
    before = len(cloud.messages("a", Have))
    cloud.poll(0.9)
    assert len(cloud.messages("a", Have)) == before
    timer = cloud.core.timer()
    assert timer is not None and timer <= cloud.now + 0.11
    cloud.poll(0.1)
    assert cloud.messages("a", Have)[-1] == Have(0, to_bitmap([0], manifest.count), CREDIT)


def test_an_update_of_a_round_long_ago(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "ORPHAN_AGE_S", -60.0)
    cloud = began(tmp_path, "abc", num_rounds=9, quorum=0.6)
    orders = [cloud.order("c")]
    for _ in range(LATE_ROUNDS + 2):
        for place, name in enumerate("ab"):
            order = cloud.order(name)
            cloud.offer(name, small_update(order, seed=100 * order.round + 50 * place))
        cloud.poll()
        orders.append(cloud.order("c"))
    assert cloud.core.open[RUN].row.round == LATE_ROUNDS + 3
    answers: list[Message] = []
    for order in orders[1:]:  # the model of round 1 is the run's first, which is always kept
        answers += cloud.offer("c", small_update(order, seed=50), order=order)
    stale, *late, current = answers
    assert isinstance(stale, Reject)
    too_late = "stale", "round 2 closed too long ago"
    assert (stale.reason, stale.detail) == too_late
    unsent = cut(cloud)[1]
    assert offer(cloud, "c", unsent, round_=2) == Reject(RUN, 2, unsent.sha256, *too_late)
    assert len(late) == LATE_ROUNDS
    assert all(isinstance(answer, Committed) and answer.late for answer in late)
    assert isinstance(current, Committed) and not current.late


def test_too_large_is_a_stored_answer_and_settles(cloud: Cloud) -> None:
    limit = max_coded_bytes(LAYOUT.size)
    fits, over = describe(bytes(limit)), describe(bytes(limit + 1))
    assert isinstance(offer(cloud, "b", fits), Have)
    answer = offer(cloud, "a", over)
    detail = f"{limit + 1} bytes, the limit is {limit}"
    assert answer == Reject(RUN, 1, over.sha256, "too-large", detail)
    row = cloud.store.update(RUN, 1, "a")
    assert row is not None and (row.rejected, row.detail) == ("too-large", detail)
    assert not cloud.core.open[RUN].waiting_for("a") and cloud.core.counters["rejected"] == 1
    said = f"run {RUN}, round 1: rejected the update of a: too-large: {detail}"
    assert cloud.notes(logging.WARNING)[-1] == said
    cloud.restart()
    assert offer(cloud, "a", over, 2) == answer


def test_the_same_update_again_gets_the_same_receipt(cloud: Cloud) -> None:
    blob = small_update(cloud.order("a"))
    first = cloud.offer("a", blob)
    for number in (2, 3):
        assert cloud.offer("a", blob, number) == first
    recut = describe(blob + b"", CUT)
    assert cloud.say("a", Offer(RUN, 1, recut, 4), recut.transfer) == first
    cloud.restart()
    assert cloud.offer("a", blob, 5) == first
    assert len(cloud.events(UpdateReceived)) == 1 and cloud.core.counters["updates"] == 0
    cloud.hello()
    cloud.answer("b")
    assert len(cloud.summaries()[0].devices) == 2
    again = describe(blob)  # the round has closed: it counted, and was not late
    assert cloud.say("a", Offer(RUN, 1, again, 6, blob), again.transfer) == first


def test_another_update_for_the_same_round_is_a_duplicate(cloud: Cloud) -> None:
    blob = small_update(cloud.order("a"))
    cloud.offer("a", blob)
    row, memory = cloud.store.update(RUN, 1, "a"), cloud.store.client_model(RUN, "a")
    other = small_update(cloud.order("a"), seed=9)
    (answer,) = cloud.offer("a", other)
    assert isinstance(answer, Reject) and answer.reason == "duplicate"
    assert answer.sha256 == hashlib.sha256(other).digest()
    assert cloud.store.update(RUN, 1, "a") == row and cloud.store.client_model(RUN, "a") == memory
    assert cloud.core.open[RUN].received == {"a"}
    assert not cloud.store.blobs.has(hashlib.sha256(other).digest())


def test_a_transfer_goes_on_after_a_restart(cloud: Cloud) -> None:
    _, manifest, data = cut(cloud)
    offer(cloud, "a", manifest)
    send(cloud, manifest, data, (0, 2, manifest.count - 1))
    cloud.restart()
    assert cloud.chunk("a", manifest.transfer, 1, data[1]) == []  # nobody has offered it yet
    held = {0, 2, manifest.count - 1}
    assert offer(cloud, "a", manifest, 2) == Have(2, to_bitmap(held, manifest.count), CREDIT)
    send(cloud, manifest, data, sorted(set(range(manifest.count)) - held))
    assert cloud.messages("a", Committed) == [Committed(RUN, 1, manifest.sha256)]


def test_a_part_torn_by_a_power_cut_is_asked_for_again(cloud: Cloud) -> None:
    _, manifest, data = cut(cloud)
    offer(cloud, "a", manifest)
    send(cloud, manifest, data, range(4))
    (part,) = parts(cloud)
    whole = part.read_bytes()
    part.write_bytes(whole[:CUT] + bytes(CUT) + whole[2 * CUT : 3 * CUT + 100])
    cloud.restart()
    assert offer(cloud, "a", manifest) == Have(1, to_bitmap({0, 2}, manifest.count), CREDIT)


def test_more_than_two_transfers_wait(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc", num_rounds=9, quorum=0.6)
    for _ in range(2):  # then c owes three updates
        cloud.answer("a", "b")
    blobs = [bytes([number]) * 9 * CUT for number in range(3)]
    manifests = [describe(blob, CUT) for blob in blobs]
    for number in (1, 2):
        assert isinstance(offer(cloud, "c", manifests[number - 1], round_=number), Have)
    answer = offer(cloud, "c", manifests[2], round_=3)
    assert answer == Busy(RETRY_MS, "too many transfers")
    # Repeating those that are there is no third one, and another device has its own two.
    assert isinstance(offer(cloud, "c", manifests[0], 2, round_=1), Have)
    assert isinstance(offer(cloud, "a", manifests[2], round_=3), Have)
    # One that is silent for long makes room; one that is not stays.
    cloud.now += IDLE_S
    cloud.chunk("c", manifests[1].transfer, 0, pieces(manifests[1], blobs[1])[0])
    cloud.now += 1.0
    assert isinstance(offer(cloud, "c", manifests[2], round_=3), Have)
    assert isinstance(offer(cloud, "c", manifests[0], 3, round_=1), Busy)
    assert isinstance(offer(cloud, "c", manifests[1], 3, round_=2), Have)
    # An offer is heard as a chunk is: the transfer goes on, also with what is sent next.
    cloud.now += IDLE_S
    offer(cloud, "c", manifests[1], 4, round_=2)
    cloud.now += 1.0
    assert isinstance(offer(cloud, "c", manifests[0], 4, round_=1), Have)
    cloud.chunk("c", manifests[1].transfer, 1, pieces(manifests[1], blobs[1])[1])
    answer = offer(cloud, "c", manifests[1], 5, round_=2)
    assert isinstance(answer, Have)
    assert from_bitmap(answer.bitmap, manifests[1].count) == {0, 1}


def test_a_chunk_that_is_not_as_announced(cloud: Cloud) -> None:
    _, manifest, data = cut(cloud)
    offer(cloud, "a", manifest)
    bad = {
        "digest": (0, data[1]),
        "flipped": (0, bytes([data[0][0] ^ 1]) + data[0][1:]),
        "short": (0, data[0][:-1]),
        "long": (0, data[0] + b"\0"),
        "empty": (0, b""),
        "last too long": (manifest.count - 1, data[0]),
        "index": (manifest.count, data[0]),
        "far index": (2**32 - 1, data[0]),
    }
    for refused, (index, piece) in enumerate(bad.values(), 1):
        assert cloud.chunk("a", manifest.transfer, index, piece) == []
        assert cloud.core.counters["refused"] == refused and parts(cloud) == []
    assert all("dropped a frame of a: chunk" in note for note in cloud.notes(logging.WARNING))
    assert len(cloud.notes(logging.WARNING)) == len(bad)
    send(cloud, manifest, data, range(manifest.count))
    assert cloud.messages("a", Committed) == [Committed(RUN, 1, manifest.sha256)]


def test_inline_bytes_that_are_not_the_blob(cloud: Cloud) -> None:
    blob = small_update(cloud.order("a"))
    manifest = describe(blob)
    flipped = bytes([blob[0] ^ 1]) + blob[1:]
    assert cloud.say("a", Offer(RUN, 1, manifest, 1, flipped), manifest.transfer) == []
    assert cloud.core.counters["refused"] == 1 and cloud.store.update(RUN, 1, "a") is None
    for data in (blob[:-1], blob + b"\0"):  # not the whole blob: as if there were none
        (answer,) = cloud.say("a", Offer(RUN, 1, manifest, 2, data), manifest.transfer)
        assert isinstance(answer, Have)
    assert isinstance(cloud.offer("a", blob)[0], Committed)


def test_an_offer_under_another_transfer_is_dropped(cloud: Cloud) -> None:
    blob = small_update(cloud.order("a"))
    assert cloud.say("a", Offer(RUN, 1, describe(blob), 1, blob), bytes(16)) == []
    assert cloud.core.counters["refused"] == 1 and cloud.store.update(RUN, 1, "a") is None


def test_chunks_that_fit_a_manifest_that_lies_about_the_whole(cloud: Cloud) -> None:
    blob = large(cloud)
    lie = msgspec.structs.replace(describe(blob, CUT), sha256=bytes(32))
    offer(cloud, "a", lie)
    (answer,) = send(cloud, lie, pieces(lie, blob), range(lie.count))
    assert answer == Have(0, to_bitmap([], lie.count), CREDIT)
    assert cloud.store.update(RUN, 1, "a") is None and parts(cloud) == []
    (answer,) = send(cloud, lie, pieces(lie, blob), range(lie.count))
    why = "its chunks do not match this SHA-256"
    assert answer == Reject(RUN, 1, lie.sha256, "malformed", why)
    assert offer(cloud, "a", lie, 2) == answer and parts(cloud) == []
    assert not cloud.store.blobs.has(bytes(32))


def insist(cloud: Cloud, blob: bytes) -> None:
    """Send an update as a device does: offer, chunks, and all again until there is a receipt."""
    manifest = describe(blob, CUT)
    for number in range(1, 9):
        whole = blob if len(blob) <= CUT else b""
        offered = cloud.say("a", Offer(RUN, 1, manifest, number, whole), manifest.transfer)
        answers = [offered]
        for index, data in enumerate(pieces(manifest, blob)):
            answers.append([] if whole else cloud.chunk("a", manifest.transfer, index, data))
        for answer in itertools.chain.from_iterable(answers):
            if isinstance(answer, Committed):
                kept = cloud.second_store()
                assert kept.update(RUN, 1, "a") is not None
                kept.close()
                return
        cloud.now += RETRY_MS / 1000
    raise AssertionError("no receipt")


CALLS = {
    "large": {
        "update", "trim_parts", "open_part", "write_part", "read_part", "commit_receipts", "commit_receipt",
        "discard_part", "settle",
    },
    "blob": {
        "update", "trim_parts", "open_part", "write_part", "take_part", "commit_receipts", "commit_receipt",
        "discard_part", "settle",
    },
    "small": {"update", "require_room", "commit_receipts", "commit_receipt", "settle"},
    "late": {
        "update", "order", "round", "coming_round", "has", "require_room", "commit_receipts",
        "commit_receipt", "client_model", "write", "settle",
    },
}  # fmt: skip


@in_a_folder
@pytest.mark.parametrize(
    ("kind", "after"), [("large", False), ("blob", True), ("small", False), ("late", True)]
)
def test_the_disk_fails_at_each_call(
    tmp_path: Path, kind: str, after: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    at, struck = 0, set[str]()
    if kind == "blob":
        monkeypatch.setattr(inbox, "MAX_ROW_BYTES", 2**12)
    while True:
        at += 1
        config = msgspec.structs.replace(CONFIG, quorum=0.5, strategy=given.SELECTING)
        cloud = Cloud(tmp_path / str(at), config if kind == "late" else CONFIG)
        cloud.hello(codecs=("select",))
        blob = large(cloud) if kind in ("large", "blob") else small_update(cloud.order("a"))
        if kind == "late":
            cloud.answer("b")
        faults = Faults(cloud, at, StorageError("disk full: it is"), after)
        insist(cloud, blob)
        cloud.poll()
        kept = cloud.second_store()
        row = kept.update(RUN, 1, "a")
        assert row is not None and not row.rejected and bool(row.late) == (kind == "late")
        assert kept.update_blob(row.blob) == blob
        # A part whose receipt the disk did not let us see stays until it is collected.
        assert parts(cloud) == [] or kind == "large"
        kept.close()
        assert kind == "late" or cloud.core.open[RUN].received == {"a"}
        if not faults.struck:
            break
        struck.add(faults.struck)
        assert cloud.core.counters["storage_errors"] == 1
        assert cloud.notes(logging.ERROR) == ["disk full: it is"]  # the operator is told
        is_stored = faults.struck == "discard_part"  # then it is answered, and the round knows
        busy = [] if is_stored else [Busy(RETRY_MS, "storage")]
        assert cloud.messages("a", Busy) == busy
        assert not cloud.events(RunEnded)
        cloud.store.close()
    assert struck == CALLS[kind]


def test_a_disk_that_stays_full_loses_nothing(cloud: Cloud) -> None:
    _, manifest, data = cut(cloud)
    offer(cloud, "a", manifest)
    send(cloud, manifest, data, range(3))
    free = disk_of(cloud.store).min_free_bytes
    disk_of(cloud.store).min_free_bytes = 2**62
    assert cloud.chunk("a", manifest.transfer, 3, data[3]) == [Busy(RETRY_MS, "storage")]
    assert cloud.chunk("a", manifest.transfer, 4, data[4]) == []  # until it is offered again
    for number in (2, 3):
        assert offer(cloud, "a", manifest, number) == Busy(RETRY_MS, "storage")
    assert all("disk full: " in note for note in cloud.notes(logging.ERROR))
    disk_of(cloud.store).min_free_bytes = free
    assert offer(cloud, "a", manifest, 4) == Have(4, to_bitmap(range(3), manifest.count), CREDIT)
    send(cloud, manifest, data, range(3, manifest.count))
    assert cloud.messages("a", Committed) == [Committed(RUN, 1, manifest.sha256)]


def test_a_blob_of_another_is_not_had_for_its_hash(cloud: Cloud) -> None:
    blob, manifest, _ = cut(cloud)
    assert cloud.upload("a", blob, CUT) == [Committed(RUN, 1, manifest.sha256)]
    assert offer(cloud, "b", manifest) == Have(1, to_bitmap([], manifest.count), CREDIT)
    assert cloud.store.update(RUN, 1, "b") is None
    assert cloud.upload("b", blob, CUT) == [Committed(RUN, 1, manifest.sha256)]


def test_a_device_leaves_no_more_than_two_parts(tmp_path: Path) -> None:
    cloud = began(tmp_path, num_rounds=4, evaluate=False, quorum=0.5)
    for number in (1, 2, 3):  # an upload is begun in each round, and none is ended
        blob = large(cloud, seed=number)
        manifest = describe(blob, CUT)
        assert isinstance(offer(cloud, "a", manifest, round_=number), Have)
        cloud.chunk("a", manifest.transfer, 0, pieces(manifest, blob)[0])
        assert len(parts(cloud)) == min(2, number)
        cloud.now += IDLE_S + 1
        cloud.answer("b")
