"""The agent and a bundle's frozen data: fetched once, kept while named, refused when too large."""

import msgspec
import numpy as np
import pytest
from tests.edge.harness import Harness, make_bundle

from sedge_edge.rounds.frozen_data import read_bundle
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.bundle import Bundle, unpack
from sedge_protocol.wire.frozen import FrozenData, frozen_blob, frozen_data
from sedge_protocol.wire.transfer import Manifest

VALUES = np.random.default_rng(0).standard_normal(64_000).astype(np.float32)
CODED = frozen_blob(VALUES)
DATA = frozen_data(Layout.of([("base", (640, 100), Role.PARAMETER)]), VALUES)
BLOB = DATA.blob  # 211 kB, 4 chunks
FILE = BLOB.sha256.hex()


def give(
    device: Harness,
    number: int = 1,
    seed: int = 0,
    data: FrozenData | None = DATA,
    run: str = "run",
) -> Manifest:
    """An order with a bundle that names the data. Returns the bundle's manifest."""
    device.serve(CODED, BLOB)
    bundle = device.serve(make_bundle(seed, frozen=data))
    device.give(device.order(number, bundle=bundle, run=run))
    return bundle


def chunks(device: Harness) -> int:
    """How many chunks have come since the last call."""
    sent, device.chunks_sent = device.chunks_sent, 0
    return sent


def test_it_comes_once_and_goes_with_the_last_bundle_that_names_it(device: Harness) -> None:
    bundle = give(device)
    device.settle()
    found = read_bundle(device.blobs(), bundle.sha256).frozen
    assert found is not None
    np.testing.assert_array_equal(found, VALUES)
    others = [
        unpack(make_bundle()),
        Bundle(unpack(make_bundle(1, frozen=DATA)).manifest, {}, found),
    ]
    assert read_bundle(device.blobs(), bundle.sha256, others=others).frozen is found
    first = chunks(device)
    give(device, 2)  # the same bundle
    give(device, 1, seed=1, run="other")  # another bundle with the same data
    device.settle()
    assert {("run", 1), ("run", 2), ("other", 1)} <= device.updates.keys()
    model = device.order(1).model.count
    assert first >= BLOB.count + bundle.count + model
    assert chunks(device) == bundle.count + 2 * model
    give(device, 3, seed=2, data=None)
    device.settle()
    assert FILE in device.blob_files()  # the other run's
    give(device, 2, seed=3, data=None, run="other")
    device.settle()
    assert FILE not in device.blob_files()


def test_a_transfer_goes_on_after_a_power_cut(device: Harness) -> None:
    device.serve(CODED, BLOB)
    order = device.order(1, bundle=device.serve(make_bundle(frozen=DATA)))
    effects = device.tell(order)
    for manifest in (order.bundle, order.model):
        device.listen(effects)
        effects = device.feed(manifest)
    device.listen(effects)
    device.chunk(BLOB, 2)
    device.chunk(BLOB, 0)
    assert not device.updates
    device.order_at_hand = order
    device.pump(device.reboot())
    device.settle()
    assert ("run", 1) in device.updates
    assert chunks(device) == 2


def test_a_damaged_one_is_fetched_again(device: Harness) -> None:
    give(device)
    device.settle()
    (path,) = device.folder.glob(f"blobs/{FILE}")
    path.write_bytes(bytes(BLOB.size))
    chunks(device)
    give(device, 2)
    device.settle()
    assert ("run", 2) in device.updates
    assert any("do not match its sha256" in note for note in device.notes)
    assert chunks(device) == BLOB.count + device.order(2).model.count
    assert path.read_bytes() == CODED


def test_one_that_is_too_large_for_the_device_is_not_fetched(device: Harness) -> None:
    large = msgspec.structs.replace(BLOB, size=4 * 10**6, chunk_bytes=2**18, digests=bytes(16 * 16))
    layout = Layout.of([("base", (10**6,), Role.PARAMETER)])
    device.memory_mb = 7
    device.pump(device.reboot())
    bundle = give(device, data=FrozenData(layout, large))
    device.settle()
    (decline,) = device.declines
    expected = "at most half of this device's 7 MB of memory"
    assert decline.detail == f"bundle 'drift': frozen data of 4 MB, expected {expected}"
    assert decline.reason == "OutOfMemory"
    assert chunks(device) == bundle.count + device.order(1).model.count


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            FrozenData(Layout.of([("base", (7,), Role.PARAMETER)]), BLOB),
            f"bundle: frozen: a blob of {BLOB.size} bytes, expected at most 60 for 7 values",
        ),
        (
            frozen_data(Layout.of([("head.bias", (640, 100), Role.PARAMETER)]), VALUES),
            "bundle: frozen: tensor 'head.bias' is also in the layout",
        ),
    ],
    ids=["size", "name"],
)
def test_a_bundle_that_contradicts_itself(device: Harness, data: FrozenData, message: str) -> None:
    give(device, data=data)
    device.settle()
    (decline,) = device.declines
    assert (decline.reason, decline.detail) == ("CodecError", message)


def test_a_disk_without_room_waits(device: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    blobs, full = device.agent.blobs, [True]
    kept = blobs.open_part

    def refusing(owner: str, manifest: Manifest) -> set[int]:
        if full[0] and manifest == BLOB:
            raise StorageError("disk full: it needs 211000 bytes, 5 are free")
        return kept(owner, manifest)

    monkeypatch.setattr(blobs, "open_part", refusing)
    give(device)
    assert not device.updates
    assert "disk full: it needs 211000 bytes, 5 are free" in device.notes
    full[0] = False
    device.settle()
    assert ("run", 1) in device.updates
