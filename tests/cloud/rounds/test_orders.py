"""Orders: the same again from the same rows, and a codec that the device knows."""

import hashlib
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, a_hello

from sedge_cloud.config import BroadcastConfig, CodecConfig
from sedge_cloud.devices.capabilities import codec_for
from sedge_cloud.devices.downloads import Describe
from sedge_cloud.rounds.lifecycle import OpenRound
from sedge_cloud.rounds.orders import make_order, require_sendable
from sedge_cloud.store.runs import Run
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.messages import (
    MAX_INLINE_BYTES,
    Order,
    encode_body,
)
from sedge_protocol.wire.transfer import Manifest, describe

ZSTD, ZLIB, NONE = Compression.ZSTD, Compression.ZLIB, Compression.NONE


@pytest.mark.parametrize(
    ("wanted", "announced", "given"),
    [
        (ZSTD, ("zstd", "zlib"), ZSTD),
        (ZLIB, ("zstd", "zlib"), ZLIB),
        (NONE, ("zstd", "zlib"), NONE),
        (NONE, (), NONE),
        (ZLIB, ("zstd",), ZSTD),
        (ZSTD, ("zlib", "none"), ZLIB),
        (ZSTD, ("none",), NONE),
        (ZLIB, ("lz4",), NONE),
    ],
)
def test_the_compression_of_an_update(
    wanted: Compression, announced: tuple[str, ...], given: Compression
) -> None:
    config = msgspec.structs.replace(CONFIG, codec=CodecConfig(compression=wanted))
    assert codec_for(config, a_hello(compressions=announced)) == CodecConfig(compression=given)
    assert codec_for(config, None).compression is wanted


def test_the_value_coding_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.devices.capabilities.COMMON_VALUES", (ValueCoding.INT8,))
    sent = CodecConfig(values=ValueCoding.BF16, fraction=0.1, threshold=0.5, error_feedback=False)
    config = msgspec.structs.replace(CONFIG, codec=sent)
    assert codec_for(config, a_hello(codecs=("int4", "bf16"))) == sent
    assert codec_for(config, a_hello(codecs=("int4",))) == msgspec.structs.replace(
        sent, values=ValueCoding.INT8
    )


def made(run: Run, current: OpenRound, name: str, describe: Describe, left_s: float = 0.0) -> Order:
    """The order of a device of the open round, with nothing known of the device."""
    given = current.orders[name]
    return make_order(run, current.row, current.steps, given, None, describe, left_s)


@pytest.mark.parametrize("size", [0, 1, MAX_INLINE_BYTES])
def test_a_patch_in_its_row_travels_inside(cloud: Cloud, size: int) -> None:
    cloud.hello()
    run, current = cloud.core.runs[RUN], cloud.core.open[RUN]
    patch = bytes(size)
    current.orders["a"] = msgspec.structs.replace(current.orders["a"], patch=patch)
    manifest = describe(b"model")
    order = made(run, current, "a", lambda blob: manifest, left_s=-5.0)
    assert order.patch == patch and order.patch_blob is None
    assert order.patch_hash == (hashlib.sha256(patch).digest() if size else b"")
    assert order.deadline_ms == 0  # never negative


def test_an_order_may_fill_its_frame(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud.hello()
    run, current = cloud.core.runs[RUN], cloud.core.open[RUN]
    current.orders["b"] = msgspec.structs.replace(current.orders["b"], patch=bytes(9000))

    def manifest(blob: bytes) -> Manifest:
        return describe(cloud.store.blobs.read(blob))

    order = made(run, current, "b", manifest)
    size = len(encode_body(order))
    monkeypatch.setattr("sedge_cloud.rounds.orders.MAX_ORDER_BYTES", size)
    assert require_sendable(run, order, "b") is order
    monkeypatch.setattr("sedge_cloud.rounds.orders.MAX_ORDER_BYTES", size - 1)
    expected = f"fedavg, b: an order of {size} bytes, of which patch takes 9003, expected at most "
    with pytest.raises(LocalError, match=expected):
        require_sendable(run, order, "b")


def test_what_a_rounds_orders_have_in_common(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, broadcast=BroadcastConfig(ValueCoding.BF16, 0.01))
    cloud = Cloud(tmp_path, config)
    cloud.hello()
    cloud.answer("a", "b")
    order = cloud.order("a")
    assert len(order.steps) == 1
    current = cloud.core.open[RUN]
    found = list(cloud.core.rounds.served(current, "a"))
    assert [one.manifest for one in found] == [order.bundle, order.model, order.steps[0].blob]
    assert {one.askers for one in found} == {2}
    current.settle("a")
    current.settle("b")  # it may have lost the receipt and ask still: everyone listens
    found = list(cloud.core.rounds.served(current, "a"))
    assert {one.askers for one in found} == {1}


def test_equal_starts_are_shared_and_others_private(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, devices=("a", "b", "c", "d"))
    cloud.hello()
    run, current = cloud.core.runs[RUN], cloud.core.open[RUN]
    for name, start, patch in (("a", b"1", b""), ("b", b"1", b"p"), ("c", b"2", b"p")):
        row = msgspec.structs.replace(current.orders[name], model=start, patch_blob=patch)
        current.orders[name] = row
    cloud.core.rounds._describe = describe
    found = {
        name: {one.manifest.sha256: one.askers for one in cloud.core.rounds.served(current, name)}
        for name in current.orders
    }
    first, second, patch = (describe(data).sha256 for data in (b"1", b"2", b"p"))
    bundle, model = run.bundles[0].sha256, describe(current.row.model).sha256
    assert found["a"] == {bundle: 4, first: 2}
    assert found["b"] == {bundle: 4, first: 2, patch: 2}
    assert found["c"] == {bundle: 4, second: 0, patch: 2}
    assert found["d"] == {bundle: 4, model: 1}
