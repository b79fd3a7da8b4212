"""From assignments to orders: coded as the device can read them, or refused before anyone hears of them."""

import hashlib
import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.given import assigned
from tests.cloud.helper import (
    AXES,
    CONFIG,
    LAYOUT,
    RUN,
    TRUSTING,
    Cloud,
    a_hello,
    began,
    random_theta,
    report_for,
    update,
)

from sedge_cloud.coding import PatchConfig
from sedge_cloud.events import RunEnded
from sedge_cloud.rounds.assignments import check_assignment
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol import codec
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import ConfigError, StrategyError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Committed, Order, Refusal
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import encode_update
from sedge_protocol.wire.work import (
    Blend,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    UpdateSelection,
    Work,
)

GIVEN = msgspec.structs.replace(CONFIG, strategy=given.NAME, num_rounds=9, robust=TRUSTING)
ALL = ("freeze", "phases", "own_model", "select", "scoring", "remember", "correction")
HALF = AXES.layout(LAYOUT, AXES.narrowed(0.5))


def gives(*devices: str, **fields: Any) -> None:
    given.PLANS.update(dict.fromkeys(devices, lambda context, client: assigned(**fields)))


def part(count: int, seed: int = 0, size: int = LAYOUT.size) -> SparseVector:
    places = np.random.default_rng(seed).choice(size, count, replace=False)
    return SparseVector(size, np.sort(places).astype(np.uint32), random_theta(seed, count))


def sends(cloud: Cloud, name: str, delta: SparseVector, context: bytes | None = None) -> None:
    order = cloud.order(name)
    layout = HALF if delta.size == HALF.size else LAYOUT
    payload = encode(delta, ValueCoding.FP32, Compression.ZSTD, context)
    (answer,) = cloud.upload(name, encode_update(report_for(order, layout), payload))
    assert isinstance(answer, Committed), answer


def known(cloud: Cloud, name: str) -> ClientModel:
    return cloud.core.run_store.client_model(cloud.core.runs[RUN], name)


NOTHING: Any = (None, None)
DOUBLES: Any = np.zeros(LAYOUT.size)


WRONG: dict[str, tuple[Assignment, str]] = {
    "width": (assigned(width=2), "width 2, but the run has 2 bundles"),
    "negative": (assigned(width=-1), "width -1, but the run has 2 bundles"),
    "no start": (assigned(width=1), "width 1 without its own start"),
    "a start of another width": (
        assigned(start=random_theta(0), width=1),
        rf"start float32 \(12000,\), expected float32 \({HALF.size},\)",
    ),
    "a start in float64": (assigned(start=DOUBLES), r"start float64"),
    "a correction of another n": (
        assigned(correction=random_theta(0, 99)),
        r"correction float32 \(99,\), expected float32 \(12000,\)",
    ),
    "a correction of a mixture": (
        assigned(correction=random_theta(0), own_model=OwnModel(mix=0.5)),
        "a correction cannot be combined with a mixture",
    ),
    "the mean of a mixture": (
        assigned(training=Training(average=0.5), own_model=OwnModel(mix=0.5)),
        "training.average with a mixture, expected 0",
    ),
    "a patch of another n": (assigned(patch=part(3, size=99)), "a patch of n=99, expected 12000"),
    "own and a patch": (
        assigned(patch=part(3), scoring=DeviceScoring(quantile=0.5)),
        "device scoring cannot be combined with a patch or an own model",
    ),
    "a holdout and own": (
        assigned(scoring=DeviceScoring(quantile=0.5), holdout=0.1),
        "a holdout cannot be combined with device scoring or an own model",
    ),
    "a holdout and a personal model": (
        assigned(own_model=OwnModel(), holdout=0.1),
        "a holdout cannot be combined with device scoring or an own model",
    ),
    "a holdout of everything": (assigned(holdout=1.0), "< 1"),
    "a holdout below nothing": (assigned(holdout=-0.1), "> 0"),
    "a holdout that is no number": (assigned(holdout=float("nan")), "holdout"),
    "a choice of its own": (assigned(choice=PatchChoice(0.1)), "work.choice is set, but it follows from"),
    "a blend and an own model": (
        assigned(blend=Blend(0.5), own_model=OwnModel()),
        "a blend, expected no device scoring",
    ),
    "a blend and a holdout": (
        assigned(blend=Blend(0.5), holdout=0.1),
        "a blend, expected no device scoring",
    ),
    "informed": (assigned(blend=Blend(0.5, "head.b")), "no tensor named 'head.b'"),
    "kept": (assigned(keep=("head",)), "no tensor named 'head'"),
    "frozen": (assigned(then=(Training(freeze=("x",)),)), "no tensor named 'x'"),
    "personal": (assigned(own_model=OwnModel(Training(freeze=("y",)))), "no tensor named 'y'"),
    "scored": (assigned(scoring=DeviceScoring(quantile=0.5, tensors=("z",))), "no tensor named 'z'"),
    "a range": (assigned(training=Training(prox=-1.0)), r"prox|>= 0"),
    "an array of NaN": (
        assigned(send={"m": np.full(2, np.nan, np.float32)}), r"work.arrays.m\[0\]: nan, expected a fin",
    ),
    "an array too large": (assigned(send={"m": np.zeros(8193, np.float32)}), r"32768 - at `\$\.arrays"),
    "arrays in the work": (
        Assignment(work=Work(arrays={"m": b""})), "work.arrays is set: use Assignment.send",
    ),
    "too many phases": (assigned(then=(Training(),) * 9), "length"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_device_could_do(tmp_path: Path, name: str) -> None:
    cloud = Cloud(tmp_path, GIVEN, widths=(0.5,))
    assignment, text = WRONG[name]
    with pytest.raises(StrategyError, match=f"Given, a: .*{text}"):
        check_assignment(cloud.core.runs[RUN], "a", assignment)


def test_who_lacks_a_feature_is_left_out_with_one_note(tmp_path: Path) -> None:
    gives("b", "c", then=(Training(),), own_model=OwnModel())
    cloud = Cloud(tmp_path, GIVEN, ("a", "b", "c"))
    cloud.hello("a", "b", codecs=("phases",))
    cloud.hello("c", codecs=("phases", "own_model"))
    (note,) = cloud.notes(logging.WARNING)
    assert note == "run run has no work for b: it lacks own_model"
    assert cloud.messages("b", Refusal) == [Refusal("unable", note)]
    assert set(cloud.core.open[RUN].orders) == {"a"}
    cloud.answer("a")
    assert set(cloud.core.open[RUN].orders) == {"a", "c"} and cloud.order("c").work.then
    cloud.hello("b", codecs=("phases",))
    assert len(cloud.notes(logging.WARNING)) == 1  # not at every draw, nor at every hello
    assert cloud.messages("b", Order) == []


def test_who_cannot_correct_its_gradients_is_left_out(tmp_path: Path) -> None:
    gives("a", "b", correction=random_theta(7))
    cloud = Cloud(tmp_path, GIVEN)
    cloud.hello("a", codecs=("correction",))
    cloud.hello("b")
    assert set(cloud.core.open[RUN].orders) == {"a"}
    (note,) = cloud.notes(logging.WARNING)
    assert note == "run run has no work for b: it lacks correction"


@pytest.mark.parametrize("error", [None, ConfigError("x", 1, "something else")])
def test_a_plan_that_cannot_be_given_ends_a_run(tmp_path: Path, error: ConfigError | None) -> None:
    def plan(context: Context, client: ClientModel) -> Assignment:
        if error is not None:
            raise error
        return Assignment(width=3)

    given.PLANS["b"] = plan
    cloud = began(tmp_path, config=GIVEN)
    assert cloud.run_row().status == "failed" and cloud.core.open == {}
    (note,) = cloud.notes(logging.ERROR)
    expected = f"{given.NAME}, b: {error or 'width 3, but the run has 1 bundles'}"
    assert note == f"run run has failed: round 1 cannot be planned: {expected}"
    assert cloud.events(RunEnded) == [RunEnded(RUN, "failed", note.partition(": ")[2])]
    cloud.come_back()
    assert cloud.run_row().status == "failed" and cloud.core.open == {}


def test_a_run_that_was_stopped_meanwhile_does_not_fail(tmp_path: Path) -> None:
    def plan(context: Context, client: ClientModel) -> Assignment:
        cloud.store.set_status(RUN, "stopped")
        return Assignment(width=3)

    cloud = Cloud(tmp_path, GIVEN)
    given.PLANS["b"] = plan
    cloud.hello()
    assert cloud.run_row().status == "stopped" and cloud.core.open == {}


def starts(cloud: Cloud) -> dict[str, Theta]:
    """Where each device's order begins, the patch left out."""
    return {name: cloud.model(cloud.order(name).model.sha256) for name in cloud.devices}


def test_equal_starts_are_one_blob_and_the_globals_own_is_none(tmp_path: Path) -> None:
    gives("a", "b", start=random_theta(4))
    gives("c", start=random_theta(5))
    gives("d", start=random_theta(1))  # the run's first model
    cloud = began(tmp_path, "abcd", GIVEN)
    orders = {name: cloud.order(name) for name in cloud.devices}
    assert orders["a"].model == orders["b"].model != orders["c"].model
    assert orders["d"].model_hash == cloud.state().model_hash
    for name, seed in zip("abcd", (4, 4, 5, 1), strict=True):
        start = random_theta(seed)
        assert starts(cloud)[name].tobytes() == start.tobytes()
        assert orders[name].model_hash == hashlib.sha256(start.tobytes()).digest()
    ends: dict[str, bytes] = {}
    for seed, (name, first) in enumerate(starts(cloud).items(), start=20):
        ends[name] = (first + random_theta(seed)).tobytes()
        (answer,) = cloud.upload(name, update(cloud.order(name), random_theta(seed)))
        assert isinstance(answer, Committed)
    cloud.poll()
    assert [seen.device for seen in given.UPDATES] == ["a", "b", "c", "d"]
    for seen, seed in zip(given.UPDATES, (4, 4, 5, 1), strict=True):
        assert np.array_equal(seen.base, random_theta(seed))
        assert seen.trained.tobytes() == ends[seen.device]
    cloud.restart()
    for name, end in ends.items():
        trained = known(cloud, name).trained
        assert trained is not None and trained.tobytes() == end


@pytest.mark.parametrize("wild", ["patch", "start"])
def test_what_a_coding_does_not_hold_travels_in_fp32(tmp_path: Path, wild: str) -> None:
    """One device's value must not end the run of all; whose values fit, gets them as the run says."""
    for name in ("a", "b"):
        start, patch = random_theta(4), part(50)
        if name == "a":
            (start if wild == "start" else patch.values)[3] = 1e6
        gives(name, start=start, patch=patch)
    cloud = began(tmp_path, config=GIVEN, patch=PatchConfig(ValueCoding.FP16))
    for name, exact in (("a", wild), ("b", "")):
        order, planned = cloud.order(name), given.PLANS[name](*NOTHING)
        assert planned.patch is not None and planned.start is not None
        start, patch = cloud.model(order.model.sha256), decode(order.patch, LAYOUT.size)
        assert order.model_hash == hashlib.sha256(start.tobytes()).digest()
        for what, found, wanted in (
            ("start", start, planned.start),
            ("patch", patch.values, planned.patch.values),
        ):
            coding = ValueCoding.FP32 if what == exact else ValueCoding.FP16
            assert found.tobytes() == codec.decoded_values(wanted, coding).tobytes()
        patch.scatter_into(start)
        change = part(50, seed=8)
        sends(cloud, name, change)
        change.add_to(start)
        trained = known(cloud, name).trained
        assert trained is not None and trained.tobytes() == start.tobytes()


def test_a_value_that_no_coding_holds_ends_the_run(tmp_path: Path) -> None:
    gives("a", start=np.full(LAYOUT.size, np.nan, np.float32))
    cloud = began(tmp_path, config=GIVEN, patch=PatchConfig(ValueCoding.FP16))
    (note,) = cloud.notes(logging.ERROR)
    assert cloud.run_row().status == "failed" and "nan is not a finite number in fp32" in note


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize(("count", "inline"), [(10, True), (11_000, False)])
def test_what_a_device_keeps_is_named_as_it_keeps_it(
    tmp_path: Path, count: int, inline: bool, lost: bool
) -> None:
    """The blob of its own last elements at their own values is a function of these alone."""

    def plan(context: Context, client: ClientModel) -> Assignment:
        if client.trained is None or client.sent is None or client.sent.indices is None:
            return assigned(remember=True)
        values = client.trained[client.sent.indices]
        return Assignment(SparseVector(LAYOUT.size, client.sent.indices, values))

    given.PLANS["a"] = plan
    cloud = began(tmp_path, config=GIVEN, codecs=ALL, patch=PatchConfig(ValueCoding.BF16))
    change = part(count, seed=8)
    sends(cloud, "a", change)
    if lost:
        cloud.say("a", a_hello("new disk", codecs=ALL, holds=()))
    cloud.answer("b")
    trained = random_theta(1)
    change.add_to(trained)
    assert change.indices is not None
    own = SparseVector(LAYOUT.size, change.indices, trained[change.indices])
    kept = encode(own, ValueCoding.FP32, Compression.NONE)
    order = cloud.order("a")
    if lost:
        coded = order.patch or cloud.store.blobs.read(order.patch_blob.sha256)  # type: ignore[union-attr]
        assert order.round == 2 and decode(coded, LAYOUT.size).count == count
        return
    assert order.round == 2 and order.patch_hash == hashlib.sha256(kept).digest()
    assert (order.patch == kept) is inline and (order.patch_blob is None) is inline
    # Nobody told it to keep what it sends now, and so nobody counts on it.
    sends(cloud, "a", change)
    cloud.answer("b")
    assert cloud.order("a").round == 3 and cloud.order("a").patch_hash != order.patch_hash


def test_what_orders_and_client_models_name_is_not_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts, large patches, their masks and the groups, for as long as they are needed."""
    monkeypatch.setattr("sedge_cloud.runs.garbage.ORPHAN_AGE_S", -60.0)

    def plan(context: Context, client: ClientModel) -> Assignment:
        patch = part(11_000, seed=8)
        if client.sent is not None:
            values = random_theta(7, client.sent.count)
            patch = SparseVector(LAYOUT.size, client.sent.indices, values)
        start = random_theta(60 + context.round)
        return assigned(patch=patch, start=start, select=UpdateSelection())

    given.PLANS["a"] = plan
    given.GROUPS["a"] = ("b",)
    cloud = began(tmp_path, config=GIVEN, codecs=ALL)
    named: list[set[bytes]] = []
    for number in range(1, 7):
        cloud.core.garbage.collect()
        order = cloud.order("a")
        assert order.round == number and order.patch_blob is not None
        masks = {order.context} - {b""}
        if number > 1:
            assert order.patch_context is not None and order.patch_context.sha256 in masks
        named.append({order.model.sha256, order.patch_blob.sha256, *masks})
        assert all(cloud.store.blobs.has(blob) for blob in named[-1])
        sends(cloud, "a", part(11_000, seed=number), _mask(cloud, order))
        cloud.core.garbage.collect()
        assert known(cloud, "a").trained is not None
        cloud.restart()
        assert known(cloud, "a").trained is not None
        cloud.hello(codecs=ALL)
        cloud.answer("b")
    groups = cloud.state().groups
    assert groups and cloud.store.blobs.has(groups)
    # A start of its own each round; three closed rounds may still have a late update.
    assert not cloud.store.blobs.has(next(iter(named[0] - named[1])))


def _mask(cloud: Cloud, order: Order) -> bytes | None:
    return cloud.store.blobs.read(order.context) if order.context else None


def test_a_width_of_its_own(tmp_path: Path) -> None:
    """Its bundle, a start of that layout, an update of that layout, and a client model of that layout."""
    narrow = random_theta(4, HALF.size)
    gives("b", start=narrow, width=1, select=UpdateSelection())
    cloud = Cloud(tmp_path, GIVEN, widths=(0.5,))
    cloud.hello(codecs=ALL)
    whole, order = cloud.order("a"), cloud.order("b")
    run = cloud.core.runs[RUN]
    assert (whole.bundle, order.bundle) == run.bundles
    wrong = encode_update(report_for(order), encode(part(5), ValueCoding.FP32))
    with pytest.raises(AssertionError, match=r"update\.layout_hash"):
        (answer,) = cloud.upload("b", wrong)
        assert isinstance(answer, Committed), answer
    cloud.answer("a")
    assert cloud.order("a").round == 2
    change = part(5, size=HALF.size)
    sends(cloud, "b", change)
    cloud.answer("a")
    change.add_to(narrow)
    assert [(seen.device, seen.width) for seen in given.UPDATES] == [("a", 0), ("b", 1)]
    assert given.UPDATES[1].trained.tobytes() == narrow.tobytes()
    found = known(cloud, "b")
    assert found.width == 1 and found.trained is not None
    assert found.trained.tobytes() == narrow.tobytes()
    context = cloud.core.run_store.context(run)
    assert [width.layout for width in context.widths] == [LAYOUT, HALF] and context.axes == AXES
    assert [width.dropped for width in context.widths] == [0.0, 0.5]
    mask = cloud.order("b").context
    sends(cloud, "b", part(0, size=HALF.size), _mask(cloud, cloud.order("b")))
    cloud.answer("a")  # an update that sends nothing leaves the device its last mask
    assert mask and cloud.order("b").context == mask
    gives("b", select=UpdateSelection())  # back to the whole: nothing of the other layout is used
    cloud.come_back(codecs=ALL)
    sends(cloud, "b", change, _mask(cloud, cloud.order("b")))
    cloud.answer("a")
    for count in (0, LAYOUT.size, 1):  # the first two have no mask of their own
        assert cloud.order("b").bundle == whole.bundle and cloud.order("b").context == b""
        sends(cloud, "b", part(count))
        cloud.answer("a")
    assert known(cloud, "b").width == 0
