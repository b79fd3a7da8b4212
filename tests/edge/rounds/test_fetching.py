"""Downloads: what is asked for, where the device listens, and what a bad disk does to it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.edge.harness import DOWN, KEYS, UP, only

from sedge_edge.rounds.fetching import Fetches
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire.effects import Effect, Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import Frame, Kind
from sedge_protocol.wire.messages import Get, Order
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import describe, from_bitmap

BLOBS = {name: np.random.default_rng(i).bytes(9000) for i, name in enumerate(("b", "m", "p"))}
MANIFESTS = {name: describe(data, 4096) for name, data in BLOBS.items()}  # three chunks each


def order(number: int = 1, model: str = "m", patch: bool = False, run: str = "run") -> Order:
    return Order(
        run=run,
        round=number,
        task="train",
        bundle=MANIFESTS["b"],
        model=MANIFESTS[model],
        model_hash=bytes(32),
        patch_blob=MANIFESTS["p"] if patch else None,
    )


class Bench:
    """Fetches on a folder, and the coordinator's end of its frames."""

    def __init__(self, folder: Path) -> None:
        self.blobs = BlobFolder(folder, min_free_bytes=0)
        self.cloud = Peer(DOWN, KEYS.down, KEYS.up, 7, 0)
        peer = Peer(UP, KEYS.up, KEYS.down, 1, 0)
        self.fetches = Fetches("test", self.blobs, self.blobs.has, peer, np.random.default_rng(0))

    def asked(self, effects: Sequence[object]) -> dict[bytes, set[int]]:
        """The chunks asked for, by transfer id."""
        found: dict[bytes, set[int]] = {}
        for send in only(effects, Send):
            opened = self.cloud.open(send.payload, send.topic)
            assert opened is not None
            frame, message = opened
            assert isinstance(message, Get)
            found[frame.transfer] = from_bitmap(message.missing, 3)
        return found

    def chunk(self, name: str, index: int, now: float) -> list[Effect]:
        manifest = MANIFESTS[name]
        offset, length = manifest.span(index)
        data = BLOBS[name][offset : offset + length]
        return self.fetches.chunk(Frame(Kind.CHUNK, data, 7, 0, manifest.transfer, index), now)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    bench.fetches.connected(0.0)
    return bench


def topics(effects: Sequence[object], kind: type[Subscribe] | type[Unsubscribe]) -> list[str]:
    names = {m.transfer.hex(): name for name, m in MANIFESTS.items()}
    return sorted(names[effect.topic.rpartition("/")[2]] for effect in only(effects, kind))


def test_a_blob_cut_otherwise_goes_on_with_the_same_part(bench: Bench) -> None:
    """A coordinator that changes its chunk size sends the same blob under another transfer id."""
    larger = describe(BLOBS["m"], 8192)
    assert larger.transfer != MANIFESTS["m"].transfer
    bench.blobs.write(BLOBS["b"])
    bench.fetches.sync([order()], 0.0)
    for index in (0, 1):
        bench.chunk("m", index, 0.1)
    changed = msgspec.structs.replace(order(), model=larger)
    effects = bench.fetches.sync([changed], 0.2)
    assert [type(e) for e in effects] == [Unsubscribe, Subscribe]
    (frame,) = only(bench.fetches.poll(0.2), Send)
    opened = bench.cloud.open(frame.payload, frame.topic)
    assert opened is not None
    assert isinstance(opened[1], Get)
    assert from_bitmap(opened[1].missing, 2) == {1}


def test_a_damaged_whole_is_started_over(bench: Bench, tmp_path: Path) -> None:
    bench.blobs.write(BLOBS["b"])
    bench.fetches.sync([order()], 0.0)
    for index in (0, 1):
        bench.chunk("m", index, 0.1)
    (part,) = tmp_path.glob("parts/*.part")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    effects = bench.chunk("m", 2, 0.1)
    assert [type(effect) for effect in effects] == [Note, Unsubscribe]
    assert not bench.blobs.has(MANIFESTS["m"].sha256)
    assert bench.fetches.sync([order()], 0.1) == []  # it may be as wrong the next time
    at = 30.1
    assert bench.fetches.timer() == at
    assert topics(bench.fetches.sync([order()], at), Subscribe) == ["m"]
    assert bench.asked(bench.fetches.poll(at)) == {MANIFESTS["m"].transfer: {0}}
    for index in range(3):
        bench.chunk("m", index, at)
    assert bench.blobs.read(MANIFESTS["m"].sha256) == BLOBS["m"]
