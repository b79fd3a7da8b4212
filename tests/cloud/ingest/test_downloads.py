"""Downloads: one broadcast for all who ask, a private patch for its own device alone."""

from pathlib import Path

import numpy as np
import pytest
from tests.cloud.helper import (
    FLEET,
    LAYOUT,
    RUN,
    Cloud,
    a_hello,
    began,
    pieces,
    random_theta,
    update,
)

from sedge_cloud.ingest.downloads import Downloads
from sedge_cloud.ingest.progress import QUIET_S, REPEATED_QUIET_S, SENDING, TRAINING
from sedge_cloud.recorder import Recorder
from sedge_cloud.runs.named_blobs import NamedBlob
from sedge_protocol.codec import decode
from sedge_protocol.errors import FrameError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import LEAST_PACKET_BYTES, Kind, open_frame
from sedge_protocol.wire.messages import Get, Goodbye, Message, Offer
from sedge_protocol.wire.transfer import MAX_INLINE_BYTES, Manifest, describe, to_bitmap

GATHER_S = 1.0
BLOB = np.random.default_rng(0).bytes(200_000)  # four chunks
SHARED = describe(BLOB)
PATCH = np.random.default_rng(1).bytes(MAX_INLINE_BYTES + 1)


@pytest.fixture
def downloads(tmp_path: Path) -> Downloads:
    """Nothing asked for yet."""
    blobs = BlobFolder(tmp_path)
    blobs.write(BLOB)
    blobs.write(PATCH)
    return Downloads(blobs, GATHER_S)


def ask(downloads: Downloads, device: str, missing: set[int], expected: int, now: float) -> None:
    """A device asks for chunks of the shared blob."""
    bitmap = to_bitmap(missing, SHARED.count)
    downloads.request(device, SHARED.transfer, bitmap, [NamedBlob(SHARED, expected, "a blob")], now)


def test_a_damaged_chunk_is_not_sent_but_told(downloads: Downloads, tmp_path: Path) -> None:
    """Devices drop what does not match its digest, and would ask for it for ever."""
    (path,) = tmp_path.glob(f"blobs/{SHARED.sha256.hex()}")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    ask(downloads, "a", {0, 3}, 1, now=10.0)
    with pytest.raises(StorageError, match=f"{SHARED.sha256.hex()}: chunk 3 does not match"):
        downloads.poll(10.0, 9)
    ask(downloads, "a", {0}, 1, now=11.0)
    assert [index for _, _, index, _ in downloads.poll(11.0, 9)] == [0]


def ask_own(downloads: Downloads, device: str, patch: bytes, now: float) -> None:
    """A device asks for all of its patch, while it may fetch the shared blob as well."""
    manifest = describe(patch)
    bitmap = to_bitmap(range(manifest.count), manifest.count)
    named = [NamedBlob(SHARED, 5, "a blob"), NamedBlob(manifest, 0, "a blob")]
    downloads.request(device, manifest.transfer, bitmap, named, now)


def test_who_asks_again_and_again_keeps_nobody_back(downloads: Downloads, tmp_path: Path) -> None:
    patch = np.random.default_rng(7).bytes(150_000)
    BlobFolder(tmp_path).write(patch)

    def flood() -> None:  # of a private blob and of a shared one
        ask_own(downloads, "flooder", patch, 0.0)
        ask(downloads, "flooder", {0, 1, 2, 3}, 1, now=0.0)

    flood()
    ask_own(downloads, "a", PATCH, 0.0)
    sent: list[str | None] = []
    for _ in range(describe(patch).count + SHARED.count + 1):
        sent += [owner for owner, *_ in downloads.poll(0.0, 2)]
        flood()
    assert "a" in sent and sent.count("flooder") > 1 and sent.count(None) > 1


def test_patches_go_out_in_the_order_of_the_requests(downloads: Downloads, tmp_path: Path) -> None:
    """Each whole before the next, and only those that wait are looked at."""
    patches = {name: np.random.default_rng(i).bytes(150_000) for i, name in enumerate("abc")}
    for name, patch in patches.items():
        BlobFolder(tmp_path).write(patch)
        ask_own(downloads, name, patch, ord(name) / 100)
    sent: list[tuple[str | None, int]] = []
    while (at := downloads.timer()) is not None:
        assert at <= 1.0
        chunks = downloads.poll(1.0, 2)
        assert 0 < len(chunks) <= 2
        sent += [(device, index) for device, _, index, _ in chunks]
        for device, _, index, data in chunks:
            assert device is not None
            assert pieces(describe(patches[device]), patches[device])[index] == data
    assert sent == [(name, index) for name in "abc" for index in range(3)]
    assert downloads.poll(2.0, 9) == []


@pytest.mark.parametrize("bitmap", [b"", b"\xff", b"\x10", b"\x01\x00", bytes(512)])
def test_a_bad_bitmap_asks_for_nothing(downloads: Downloads, bitmap: bytes) -> None:
    with pytest.raises(FrameError, match="bitmap"):
        downloads.request("a", SHARED.transfer, bitmap, [NamedBlob(SHARED, 1, "a blob")], 0.0)
    assert downloads.timer() is None


def get(cloud: Cloud, name: str, manifest: Manifest, number: int = 1) -> list[Message]:
    bitmap = to_bitmap(range(manifest.count), manifest.count)
    return cloud.say(name, Get(RUN, number, bitmap), manifest.transfer)


def test_one_broadcast_for_the_fleet(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abc")
    model = cloud.order("a").model
    topic = topics.blob(FLEET, model.transfer)
    for name in "ab":
        assert get(cloud, name, model) == []
        cloud.poll()
    assert cloud.sends(topic) == []
    cloud.poll(1.0)  # c has not asked: as long as requests are gathered
    frames = cloud.chunks(topic)
    assert [frame.index for frame in frames] == list(range(model.count))
    data = b"".join(frame.body for frame in frames)
    assert np.array_equal(decode(data, LAYOUT.size).dense(), random_theta(1))
    get(cloud, "c", model)
    cloud.poll()
    assert len(cloud.chunks(topic)) == model.count
    cloud.poll(1.0)
    assert len(cloud.chunks(topic)) == 2 * model.count


def with_large_patches(folder: Path) -> Cloud:
    """A cloud in round 2, whose orders carry patches of almost the whole model."""
    cloud = began(folder, strategy="fedobp", options={"quantile": 0.01})
    for number, name in enumerate("ab"):
        cloud.upload(name, update(cloud.order(name), random_theta(number + 5)))
    cloud.poll()
    return cloud


def test_a_large_patch_travels_privately(tmp_path: Path) -> None:
    cloud = with_large_patches(tmp_path)
    order = cloud.order("a")
    assert order.round == 2 and order.patch == b"" and order.patch_blob is not None
    assert order.patch_blob.size > MAX_INLINE_BYTES
    assert order.patch_hash == order.patch_blob.sha256
    get(cloud, "a", order.patch_blob, 2)
    cloud.poll()
    device = cloud.devices["a"]
    down = topics.down(FLEET, "a")
    chunks = cloud.chunks(down, device.keys.down)
    assert {frame.transfer for frame in chunks} == {order.patch_blob.transfer}
    data = b"".join(frame.body for frame in chunks)
    assert data == cloud.store.blobs.read(order.patch_blob.sha256)
    with pytest.raises(FrameError, match="MAC"):
        open_frame(cloud.sends(down)[-1].payload, down, cloud.devices["b"].keys.down)
    shared = topics.blob(FLEET, order.patch_blob.transfer)
    assert cloud.sends(shared) == [] and all(frame.kind is Kind.CHUNK for frame in chunks)


def test_a_foreign_patch_is_not_to_be_had(tmp_path: Path) -> None:
    cloud = with_large_patches(tmp_path)
    patch = cloud.order("a").patch_blob
    assert patch is not None
    before = cloud.core.counters["refused"]
    for served in (False, True):
        if served:
            get(cloud, "a", patch, 2)
        sent = len(cloud.sends(topics.down(FLEET, "b")))
        assert get(cloud, "b", patch, 2) == []
        cloud.poll(5.0)
        assert len(cloud.sends(topics.down(FLEET, "b"))) == sent
    assert cloud.core.counters["refused"] == before + 2
    assert cloud.sends(topics.blob(FLEET, patch.transfer)) == []


def test_a_blob_that_cannot_be_read_is_noted_and_asked_again(cloud: Cloud, tmp_path: Path) -> None:
    cloud.hello()
    model = cloud.order("a").model
    name = model.sha256.hex()
    path = tmp_path / "state" / "blobs" / name
    data = path.read_bytes()
    path.unlink()
    for device in "ab":
        get(cloud, device, model)
    cloud.poll(5.0)
    assert cloud.core.counters["storage_errors"] == 1
    assert cloud.sends(topics.blob(FLEET, model.transfer)) == []
    path.write_bytes(data)
    for device in "ab":
        get(cloud, device, model)
    cloud.poll(5.0)
    assert len(cloud.chunks(topics.blob(FLEET, model.transfer))) == model.count


def test_what_a_device_is_seen_to_do(tmp_path: Path) -> None:
    """It trains once it has asked for all that it lacks and is silent: longer if it had to ask again."""
    cloud = Cloud(tmp_path, devices=("a", "b", "c"))
    for name in "abc":
        cloud.say(name, a_hello(name, max_packet=LEAST_PACKET_BYTES))
    cloud.poll()
    recorder, model = Recorder(cloud.core, cloud.wall), cloud.order("a").model
    every = set(range(model.count))

    def get(name: str, missing: set[int]) -> None:
        cloud.say(name, Get(RUN, 1, to_bitmap(missing, model.count)), model.transfer)

    def seen(name: str) -> tuple[str, int, int]:
        session = cloud.core.devices[name].session
        assert (session.run, session.round) == (RUN, 1)
        return session.state, session.done, session.total

    def passes(seconds: float) -> list[tuple[str, int, int]]:
        cloud.poll(seconds)
        recorder.flush(cloud.now)
        return [seen(name) for name in "abc"]

    fetching, training = ("fetching the model", 0, model.count), (TRAINING, 0, 0)
    for name, missing in (("a", {0}), ("b", every), ("b", every), ("c", every)):
        get(name, missing)
    cloud.say("c", Goodbye(a_hello("c").nonce))
    assert passes(QUIET_S) == [fetching] * 3
    get("a", every - {0})
    assert passes(0.9 * QUIET_S) == [("fetching the model", 1, model.count), fetching, fetching]
    assert passes(0.1 * QUIET_S) == [training, fetching, fetching]
    assert passes(REPEATED_QUIET_S - 2 * QUIET_S) == [training, training, fetching]
    get("a", every)
    manifest = describe(update(cloud.order("a"), random_theta(1)))
    cloud.say("a", Offer(RUN, 1, manifest, 1), manifest.transfer)
    assert passes(QUIET_S)[0] == (SENDING, 0, 0)
