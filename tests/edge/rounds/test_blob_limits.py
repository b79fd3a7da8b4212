"""Blobs larger than an order's layout allows: refused before a byte of them is fetched."""

from collections.abc import Callable

import numpy as np
import pytest
from tests.edge.harness import Harness, N, hash_of, theta_of

from sedge_edge.rounds import blob_limits
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode, top_k
from sedge_protocol.wire.bundle import MAX_BUNDLE_BYTES
from sedge_protocol.wire.messages import Decline, Get, Order
from sedge_protocol.wire.transfer import MAX_CHUNK_BYTES, MAX_CHUNKS, Manifest
from sedge_protocol.wire.update import MAX_REPORT_BYTES, max_coded_bytes
from sedge_protocol.wire.work import Step


def manifest_of(size: int, number: int = 0) -> Manifest:
    """The manifest of a blob that nobody has."""
    chunk = MAX_CHUNK_BYTES if size > 2**20 else 2**16
    return Manifest(bytes([number]) * 32, size, chunk, bytes(16 * -(-size // chunk)))


HUGE = manifest_of(MAX_CHUNKS * MAX_CHUNK_BYTES)  # 1 GiB
CONTEXT = "a patch's context"  # an extension
Change = Callable[[Harness], Order]
TOO_LARGE: dict[str, Change] = {
    "a model": lambda d: d.order(2, model=HUGE),
    "one byte": lambda d: d.order(2, model=manifest_of(max_coded_bytes(N) + 1)),
    "31 steps": lambda d: d.order(
        2, steps=tuple(Step(hash_of(theta_of(1)), manifest_of(2**25, i)) for i in range(31))
    ),
    "a patch": lambda d: d.order(2, patch_blob=HUGE, patch_hash=bytes(32)),
    CONTEXT: lambda d: d.order(2, patch_context=manifest_of(-(-N // 8) + 1)),
    "a correction": lambda d: d.order(2, correction=HUGE),
    "a bundle": lambda d: d.order(2, bundle=manifest_of(MAX_BUNDLE_BYTES + 1)),
}


@pytest.mark.both_cores
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.python_only("extensions")] if name == CONTEXT else [])
        for name in TOO_LARGE
    ],
)
def test_it_is_declined_without_a_trace(device: Harness, name: str) -> None:
    device.give(device.order(1))
    device.settle()
    before = device.on_disk()
    answers = device.messages(device.tell(TOO_LARGE[name](device)))
    (decline,) = (message for message in answers if isinstance(message, Decline))
    assert (decline.run, decline.round, decline.reason) == ("run", 2, "CodecError")
    assert "bytes, expected at most" in decline.detail
    assert not [message for message in answers if isinstance(message, Get)]
    assert device.on_disk() == before
    device.complete(2)


@pytest.mark.both_cores
@pytest.mark.parametrize("name", ["a model", "31 steps", "a patch", "a correction"])
def test_of_an_unknown_layout_the_bundle_comes_first(device: Harness, name: str) -> None:
    order = TOO_LARGE[name](device)
    device.give(order)
    device.settle()
    (decline,) = device.declines
    assert decline.reason == "CodecError" and f"for the bundle's {N} parameters" in decline.detail
    assert not device.on_disk().orders
    assert device.chunks_sent <= device.bundle.count + order.model.count
    device.complete(3)


@pytest.mark.both_cores
@pytest.mark.python_only("small limits")
def test_a_large_model_comes_after_its_bundle(
    device: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_limits, "FIRST_BYTES", 4096)
    order = device.order(1)
    assert order.model.size > 4096
    effects = device.tell(order)
    asked = [frame.transfer for frame, said in device.opened(effects) if isinstance(said, Get)]
    assert asked == [order.bundle.transfer]
    device.pump(effects)
    device.settle()
    assert ("run", 1) in device.updates


@pytest.mark.parametrize("size", [1, 2, 9, 100, 4099, 300_000])
@pytest.mark.parametrize("share", [0.02, 0.5, 0.999, 1.0])
def test_no_coded_vector_is_larger_than_the_limit(size: int, share: float) -> None:
    theta = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    for vector in (SparseVector(size, None, theta), top_k(theta, max(1, int(share * size)))):
        coded = encode(vector, ValueCoding.FP32, Compression.NONE)
        assert len(coded) <= max_coded_bytes(size) - MAX_REPORT_BYTES + 64
