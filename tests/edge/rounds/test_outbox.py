"""Uploads: offered until there is a receipt, within what the link carries, whatever the disk does."""

from pathlib import Path

import numpy as np
import pytest
from tests.edge.harness import KEYS, UP, only

from sedge_edge.rounds.outbox import Outbox
from sedge_edge.rounds.state import DISK_RETRY_S, SCHEMA, AgentState, Pending, StateStore
from sedge_protocol.errors import StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import Frame, open_frame
from sedge_protocol.wire.messages import Busy, Decline, Have, Message, Offer, decode_body
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import MIN_CHUNK_BYTES, PACKET_OVERHEAD, to_bitmap

ROOM = 300_000


class Bench:
    """An outbox, and the coordinator's end of its frames."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.blobs = BlobFolder(folder, min_free_bytes=0)
        journal = Journal(folder / "journal", AgentState, SCHEMA)
        self.memory = StateStore(journal, self.blobs.settle)
        peer = Peer(UP, KEYS.up, KEYS.down, 1, 0)
        self.peer = peer
        self.outbox = Outbox(self.memory, self.blobs, peer, np.random.default_rng(0))

    def add(self, size: int, number: int = 1) -> Pending:
        data = np.random.default_rng(number).bytes(size)
        waiting = Pending("run", number, self.blobs.write(data))
        self.memory._save(outbox=(*self.memory.state.outbox, waiting))
        return waiting

    def frames(self, effects: list[Effect]) -> list[tuple[Frame, Message | None]]:
        found: list[tuple[Frame, Message | None]] = []
        for send in only(effects, Send):
            frame = open_frame(send.payload, send.topic, KEYS.up)
            chunk = frame.kind.name == "CHUNK"
            found.append((frame, None if chunk else decode_body(frame.kind, frame.body)))
        return found

    def offers(self, effects: list[Effect]) -> list[Offer]:
        return [m for _, m in self.frames(effects) if isinstance(m, Offer)]

    def connect(self, now: float, room: int = ROOM) -> list[Effect]:
        self.outbox.connected(now, room + PACKET_OVERHEAD)
        return self.outbox.poll(now)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_of_a_run_one_update_sends_and_all_are_offered(bench: Bench) -> None:
    """Side by side none would come in time; and which of them is wanted, the answers tell."""
    old, new = bench.add(20 * 4096, number=1), bench.add(20 * 4096, number=2)
    offers = bench.offers(bench.connect(0.0, 5_000))
    transfers = {offer.round: offer.manifest.transfer for offer in offers}
    assert transfers.keys() == {1, 2}

    def answer(number: int, held: set[int], now: float) -> set[int]:
        """The rounds that send chunks when round ``number`` is told what is held."""
        have = Have(offers[number - 1].number, to_bitmap(held, 20), 2)
        bench.outbox.have(transfers[number], have, now)
        sent = [frame for frame, message in bench.frames(bench.outbox.poll(now)) if not message]
        return {number for number in transfers for f in sent if f.transfer == transfers[number]}

    assert answer(1, set(), 1.0) == set()
    assert answer(2, set(), 1.1) == {2}
    # What has begun to arrive goes on, whatever is newer.
    bench.memory.remove_update(new)
    assert {frame.transfer for frame, _ in bench.frames(bench.outbox.poll(1.2))} == {transfers[1]}
    assert answer(1, {0, 1}, 1.3) == {1}
    newest = bench.add(20 * 4096, number=3)
    (offer,) = bench.offers(bench.outbox.poll(1.4))
    assert offer.round == 3 and bench.memory.state.outbox == (old, newest)
    have = Have(offer.number, to_bitmap(set(), 20), 2)
    bench.outbox.have(offer.manifest.transfer, have, 1.5)
    assert bench.frames(bench.outbox.poll(1.5)) == []
    # One that only offers does so again when there is no answer, like any other.
    (again,) = bench.offers(bench.outbox.poll(bench.outbox.timer() or 0.0))
    assert (again.round, again.number) == (1, 2)
    bench.memory.remove_update(old)
    sent = bench.frames(bench.outbox.poll(3.0))
    assert {frame.transfer for frame, _ in sent} == {offer.manifest.transfer}


def test_what_is_put_off_leaves_the_link_to_the_others(bench: Bench) -> None:
    """Two transfers of a device are open, and only their end makes room for its third."""
    waiting = [bench.add(20 * 4096, number=number) for number in (1, 2, 3)]
    offers = {offer.round: offer for offer in bench.offers(bench.connect(0.0, 5_000))}
    transfers = {offer.manifest.transfer: number for number, offer in offers.items()}

    def sending(now: float) -> set[int]:
        sent = bench.frames(bench.outbox.poll(now))
        return {transfers[frame.transfer] for frame, message in sent if message is None}

    def have(number: int, now: float) -> None:
        answer = Have(offers[number].number, to_bitmap(set(), 20), 2)
        bench.outbox.have(offers[number].manifest.transfer, answer, now)

    have(1, 0.1)
    have(2, 0.1)
    assert sending(0.1) == set(), "the newest is first"
    bench.outbox.busy(offers[3].manifest.transfer, Busy(30_000, "too many transfers"), 0.2)
    assert sending(0.2) == {2}
    bench.memory.remove_update(waiting[1])
    assert sending(0.3) == {1}
    (offers[3],) = (o for o in bench.offers(bench.outbox.poll(30.3)) if o.round == 3)
    have(3, 30.4)
    assert sending(30.4) == {3}


def test_a_link_that_loses_every_chunk_gets_smaller_ones(bench: Bench) -> None:
    """Fault N7. The size that went through is remembered over a reboot."""
    bench.add(100_000)
    sizes: list[int] = []
    now = 0.0
    for _ in range(12):
        (offer,) = bench.offers(bench.connect(now))
        sizes.append(offer.manifest.chunk_bytes)
        have = Have(offer.number, to_bitmap([], offer.manifest.count), 4)
        bench.outbox.have(offer.manifest.transfer, have, now)
        assert len(bench.frames(bench.outbox.poll(now))) > 0
        bench.outbox.disconnected()
        now += 10.0
    assert sizes == sorted(sizes, reverse=True)
    assert (sizes[0], sizes[-1]) == (65536, MIN_CHUNK_BYTES)
    assert bench.memory.state.chunk_bytes == MIN_CHUNK_BYTES
    (offer,) = Bench(bench.folder).offers(Bench(bench.folder).connect(0.0))
    assert offer.manifest.chunk_bytes == MIN_CHUNK_BYTES


def test_an_update_too_large_for_the_smallest_chunks_is_not_cut_anew(bench: Bench) -> None:
    """It has larger ones than the other updates, and goes on counting its offers."""
    bench.add(20_000_000)
    bench.memory.set_chunk_bytes(MIN_CHUNK_BYTES)
    for number in (1, 2, 3, 4):
        (offer,) = bench.offers(bench.connect(0.0))
        assert (offer.number, offer.manifest.chunk_bytes) == (number, 8192)
        have = Have(number, to_bitmap([], offer.manifest.count), 4)
        bench.outbox.have(offer.manifest.transfer, have, 0.0)
        assert len(bench.frames(bench.outbox.poll(0.0))) == 4
        bench.outbox.disconnected()
    assert bench.memory.state.chunk_bytes == MIN_CHUNK_BYTES


def unreadable(bench: Bench, blob: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """One blob cannot be read, and is not gone either."""
    real = BlobFolder.read

    def read(self: BlobFolder, sha256: bytes) -> bytes:
        if sha256 == blob:
            raise StorageError("read blob: Input/output error (test)")
        return real(self, sha256)

    monkeypatch.setattr(BlobFolder, "read", read)


def test_one_unreadable_update_does_not_hold_back_the_others(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = bench.add(100, 1), bench.add(100, 2)
    unreadable(bench, bad.blob, monkeypatch)
    effects = bench.connect(0.0)
    assert [o.round for o in bench.offers(effects)] == [2]
    assert [n.text for n in only(effects, Note)] == ["read blob: Input/output error (test)"]
    bench.memory.remove_update(good)
    for attempt in range(1, 5):  # tried again at leisure, never in a busy loop
        now = attempt * DISK_RETRY_S
        assert bench.outbox.poll(now - 1.0) == []
        assert bench.outbox.timer() == now
        assert len(only(bench.outbox.poll(now), Note)) == 1
    assert bench.memory.state.outbox == (bad,)
    assert bench.peer.counters["storage_errors"] == 5
    monkeypatch.undo()
    assert len(bench.offers(bench.outbox.poll(5 * DISK_RETRY_S))) == 1


def test_an_update_that_the_disk_damages_on_its_way_is_given_up(bench: Bench) -> None:
    """The coordinator would drop the chunk, and ask for it again, for ever."""
    waiting = bench.add(300_000)
    (offer,) = bench.offers(bench.connect(0.0))
    (path,) = (file for file in bench.folder.rglob("*") if waiting.blob.hex() in file.name)
    with path.open("r+b") as file:
        file.seek(70_000)
        file.write(b"!!")
    have = Have(offer.number, to_bitmap(set(), offer.manifest.count), 16)
    bench.outbox.have(offer.manifest.transfer, have, 0.1)
    effects = bench.outbox.poll(0.1)
    assert not bench.frames(effects)
    assert "the update is lost" in only(effects, Note)[-1].text
    assert bench.memory.state.outbox == ()


@pytest.mark.parametrize(
    ("size", "limit", "expected"),
    [
        (1_000_000, 0, [65_536] * 3 + [32_768] * 3 + [16_384]),
        (5_000_000, 16_000, [8192] * 7),  # an offer of twice as many digests would not come through
    ],
)
def test_a_broker_on_the_way_that_drops_every_chunk_gets_smaller_ones(
    bench: Bench, size: int, limit: int, expected: list[int]
) -> None:
    """H1: the connection lives on, small messages come through, and nobody says a word."""
    bench.add(size)
    bench.outbox.limit(limit)
    effects, now, sizes = bench.connect(0.0), 0.0, list[int]()
    while len(sizes) < 7:
        for offer in bench.offers(effects):
            sizes.append(offer.manifest.chunk_bytes)
            have = Have(offer.number, to_bitmap([], offer.manifest.count), 4)
            bench.outbox.have(offer.manifest.transfer, have, now)
        effects = bench.outbox.poll(now)
        if not effects:
            now = bench.outbox.timer() or 0.0
    assert sizes == expected
    assert bench.memory.state.chunk_bytes == (16_384 if not limit else 65_536)


def test_the_coordinators_limit_holds_on_this_connection_and_the_next(bench: Bench) -> None:
    """It says so in its welcome: this broker may let more through than the coordinator's."""
    bench.add(1_000_000)
    (offer,) = bench.offers(bench.connect(0.0))
    assert offer.manifest.chunk_bytes == 65_536
    bench.outbox.limit(16_000)
    (again,) = bench.offers(bench.outbox.poll(0.1))
    assert (again.manifest.chunk_bytes, again.number) == (8192, 1)
    bench.outbox.disconnected()
    (again,) = bench.offers(bench.connect(10.0))
    assert again.manifest.chunk_bytes == 8192
    bench.outbox.limit(0)
    assert bench.memory.state.chunk_bytes == 65_536, "nothing was lost"


def test_an_update_whose_digests_alone_are_too_large_is_given_up_by_name(bench: Bench) -> None:
    bench.add(9_000_000)
    bench.outbox.connected(0.0, ROOM + PACKET_OVERHEAD)
    bench.outbox.limit(16_000)
    effects = bench.outbox.poll(0.0)
    ((_, decline),) = bench.frames(effects)
    assert isinstance(decline, Decline)
    assert (decline.run, decline.round, decline.reason) == ("run", 1, "MessageTooLarge")
    said = "an update of 9000000 bytes needs messages of 17853 bytes, but the broker accepts 16000"
    assert decline.detail.startswith(said)
    (note,) = only(effects, Note)
    assert said in note.text
    assert bench.memory.state.outbox == () and bench.outbox.poll(100.0) == []
