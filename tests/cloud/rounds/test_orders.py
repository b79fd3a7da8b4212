"""Orders: the same again from the same rows, and a codec that the device knows."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, a_hello, began, served

from sedge_cloud.coding import BroadcastConfig, CodecConfig
from sedge_cloud.config import RunConfig, ScheduleConfig
from sedge_cloud.runs.capabilities import codec_for
from sedge_cloud.runs.orders import PUBLIC_BYTES, packet_of, places, trimmed
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.places import MAX_URL
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import Codec

ZSTD, ZLIB, NONE = Compression.ZSTD, Compression.ZLIB, Compression.NONE


@pytest.mark.parametrize(
    ("wanted", "announced", "given"),
    [
        (ZSTD, ("zstd", "zlib"), ZSTD), (ZLIB, ("zstd", "zlib"), ZLIB),
        (NONE, ("zstd", "zlib"), NONE), (NONE, (), NONE), (ZLIB, ("zstd",), ZLIB),
        (ZSTD, ("zlib", "none"), ZLIB), (ZSTD, (), ZLIB),
    ],
)  # fmt: skip
def test_the_compression_of_an_update(
    wanted: Compression, announced: tuple[str, ...], given: Compression
) -> None:
    codec = Codec(compression=wanted)
    assert codec_for(codec, a_hello(compressions=announced)) == Codec(compression=given)
    assert codec_for(codec, None) is codec


def test_the_value_coding_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.runs.capabilities.COMMON_VALUES", (ValueCoding.INT8,))
    sent = Codec(values=ValueCoding.BF16, fraction=0.1, threshold=0.5, error_feedback=False)
    assert codec_for(sent, a_hello(codecs=("int4", "bf16"))) == sent
    coarser = msgspec.structs.replace(sent, values=ValueCoding.INT8)
    assert codec_for(sent, a_hello(codecs=("int4",))) == coarser


@pytest.mark.parametrize(
    ("size", "fraction", "sent"), [(582_026, 0.04, 29_101), (20_000, 0.5, 10_000), (611, 1.0, 611)]
)
def test_of_a_small_model_more_is_sent_by_default(size: int, fraction: float, sent: int) -> None:
    suited = Codec(ValueCoding.BF16, 0.04)
    assert CodecConfig().completed(suited, size).fraction == fraction
    assert BroadcastConfig().count(size) == sent
    assert CodecConfig(fraction=0.04).completed(suited, size) == suited
    assert BroadcastConfig(fraction=0.05).count(size) == round(0.05 * size)


@pytest.mark.parametrize(
    ("strategy", "options", "values", "fraction"),
    [
        ("fedobp", {}, ValueCoding.BF16, 10_000 / LAYOUT.size),
        ("fedobp", {"values": ValueCoding.INT4}, ValueCoding.INT4, 10_000 / LAYOUT.size),
        ("fedobp", {"fraction": 0.04}, ValueCoding.BF16, 0.04),
        ("fedcac", {}, ValueCoding.INT8, 1.0),
        ("fedcac", {"fraction": 0.5}, ValueCoding.INT8, 0.5),
        ("fedrolex", {}, ValueCoding.INT8, 1.0),
        ("scaffold", {}, ValueCoding.INT8, 1.0),
    ],
)
def test_what_a_run_leaves_out_of_its_codec_follows_from_the_strategy(
    tmp_path: Path, strategy: str, options: dict[str, Any], values: ValueCoding, fraction: float
) -> None:
    config = RunConfig(strategy=strategy, codec=CodecConfig(**options))
    cloud = Cloud(tmp_path, config)
    cloud.hello(codecs=("int4", "correction"))
    assert cloud.order("a").codec == Codec(values, fraction)
    patch = cloud.core.runs[RUN].patch_values
    assert patch is (ValueCoding.INT8 if strategy == "fedcac" else ValueCoding.FP32)


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        (ScheduleConfig(), (1.0, 1.0, 1.0, 1.0)),
        (ScheduleConfig(warmup_rounds=2), (0.5, 1.0, 1.0, 1.0)),
        (ScheduleConfig("linear", final=0.2), (1.0, 0.8, 0.6, 0.4)),
        (ScheduleConfig("exponential", final=0.0625), (1.0, 0.5, 0.25, 0.125)),
        (ScheduleConfig("cosine"), (1.0, 0.5 + 0.125**0.5, 0.5, 0.5 - 0.125**0.5)),
        (ScheduleConfig("cosine", warmup_rounds=2, final=0.1), (0.5, 1.0, 1.0, 0.55)),
        (ScheduleConfig("linear", warmup_rounds=2, steps=True), (0.5, 1.0, 1.0, 0.5)),
    ],
)
def test_the_learning_rate_of_a_round(
    tmp_path: Path, schedule: ScheduleConfig, shares: tuple[float, ...]
) -> None:
    config = msgspec.structs.replace(
        CONFIG, num_rounds=4, evaluate=True, evaluate_every=2, schedule=schedule
    )
    cloud = Cloud(tmp_path, config)
    cloud.hello(codecs=("schedule",))
    rates: list[float] = []
    ends: list[float] = []
    while cloud.core.open:
        order = cloud.order("a")
        assert order.work.training is not None
        if order.task == "train":
            rates.append(order.work.training.learning_rate)
            ends.append(order.work.training.end_factor * rates[-1])
            context = RunStore(cloud.store).context(Run(cloud.run_row(), cloud.store))
            assert context.training.learning_rate == rates[-1]  # what a strategy builds phases from
        cloud.answer("a", "b")
    expected = [config.training.learning_rate * share for share in shares]
    assert rates == pytest.approx(expected, rel=1e-12)
    if schedule.steps:  # each round's lead to where the next one begins, the last one's to final
        assert ends == pytest.approx([*expected[1:], 0.0], rel=1e-12)
    else:
        assert ends == rates


def test_what_a_rounds_orders_have_in_common(tmp_path: Path) -> None:
    cloud = began(tmp_path, broadcast=BroadcastConfig(ValueCoding.BF16, 0.01))
    cloud.answer("a", "b")
    order = cloud.order("a")
    assert len(order.steps) == 1
    current, found = cloud.core.open[RUN], served(cloud, "a")
    assert [one.manifest for one in found] == [order.bundle, order.model, order.steps[0].blob]
    assert {one.receivers for one in found} == {2}
    current.settle("a")
    current.settle("b")  # it may have lost the receipt and ask still: everyone listens
    assert {one.receivers for one in served(cloud, "a")} == {1}


def test_large_blobs_have_a_place_for_whoever_needs_them_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = msgspec.structs.replace(CONFIG, broadcast=BroadcastConfig(ValueCoding.BF16, 0.01))
    cloud = Cloud(tmp_path, config, ("a", "b", "c"))
    cloud.store.public = lambda sha256: f"https://cdn.example/{sha256.hex()}"  # pyright: ignore[reportUnknownLambdaType]
    cloud.begin()
    cloud.hello("a", "b")
    order = cloud.order("a")
    assert PUBLIC_BYTES > order.model.size > order.bundle.size
    assert order.places == ()
    monkeypatch.setattr("sedge_cloud.runs.orders.PUBLIC_BYTES", order.model.size)
    cloud.begin()
    cloud.hello("a", "b")
    order = cloud.order("a")
    (place,) = order.places
    assert place.sha256 == order.model.sha256
    assert place.url == f"https://cdn.example/{order.model.sha256.hex()}"
    assert trimmed(order, packet_of(order) - 1).places == ()
    assert places([order.model], lambda sha256: "https://cdn.example/" + "x" * MAX_URL) == ()
    cloud.hello("c")
    cloud.answer("a", "b")
    assert cloud.order("a").steps and cloud.order("a").places == ()  # the steps lead there
    newcomer = cloud.order("c")
    assert [place.sha256 for place in newcomer.places] == [newcomer.model.sha256]


def test_a_bundle_has_one_number_of_receivers_however_its_orders_name_it(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abcd")
    run, current = cloud.core.runs[RUN], cloud.core.open[RUN]
    bundle = run.bundles[0].sha256
    current.orders["d"] = msgspec.structs.replace(current.orders["d"], bundle=bundle)
    for name in "ad":
        found = served(cloud, name)
        assert (bundle, 4) in {(one.manifest.sha256, one.receivers) for one in found}


def test_equal_starts_are_shared_and_others_private(tmp_path: Path) -> None:
    cloud = began(tmp_path, "abcd")
    run, current = cloud.core.runs[RUN], cloud.core.open[RUN]
    for name, start, patch in (("a", b"1", b""), ("b", b"1", b"p"), ("c", b"2", b"p")):
        row = msgspec.structs.replace(current.orders[name], model=start, patch_blob=patch)
        current.orders[name] = row
    cloud.core.ingest.open.order_builder._cut = describe
    found = {
        name: {one.manifest.sha256: one.receivers for one in served(cloud, name)}
        for name in current.orders
    }
    first, second, patch = (describe(data).sha256 for data in (b"1", b"2", b"p"))
    named = run.bundles[0].sha256, current.row.model
    bundle, model = (describe(name).sha256 for name in named)
    assert found["a"] == {bundle: 4, first: 2}
    assert found["b"] == {bundle: 4, first: 2, patch: 2}
    assert found["c"] == {bundle: 4, second: 0, patch: 2}
    assert found["d"] == {bundle: 4, model: 1}
