"""The broadcast as changes: what is sent, what is owed, and which changes an order names."""

import hashlib
import logging
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, a_hello, random_theta, update

from sedge_cloud.config import BroadcastConfig, RunConfig
from sedge_cloud.rounds.orders import with_step
from sedge_cloud.store.broadcast import (
    chosen,
    first_version,
    next_version,
    on_grid,
    steps_since,
    summed,
    worth_sending,
)
from sedge_cloud.store.schema import StepRow
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import LocalError
from sedge_protocol.layout import Theta
from sedge_protocol.wire import topics
from sedge_protocol.wire.messages import MAX_STEPS, Get, Goodbye, Order, encode_body
from sedge_protocol.wire.transfer import Manifest, to_bitmap

FLEET = "bench"
LOSSY = [
    BroadcastConfig(ValueCoding.BF16, 1.0),
    BroadcastConfig(ValueCoding.FP32, 0.1),
    BroadcastConfig(ValueCoding.INT8, 0.03, Compression.ZLIB),
    BroadcastConfig(ValueCoding.FP16, 1e-9, Compression.NONE),
    BroadcastConfig(),
]


def random_change(seed: int, size: int = 500) -> Theta:
    """A change (n,) of some thousandths."""
    return random_theta(seed, size) / np.float32(100)


@pytest.mark.parametrize("broadcast", LOSSY, ids=str)
def test_nothing_is_lost_for_good(broadcast: BroadcastConfig) -> None:
    """Over the rounds, what was sent and what is still owed make up what was wanted."""
    theta, owed = random_theta(1, 500), np.zeros(500, np.float32)
    begin, wanted = theta.astype(np.float64), np.zeros(500)
    for number in range(30):
        change = random_change(number)
        target = theta + change
        wanted += target.astype(np.float64) - theta
        version = next_version(target, theta, owed, broadcast)
        # What a device does: it holds theta, and adds what it decodes.
        device = theta.copy()
        decode(version.step, 500).add_to(device)
        assert device.tobytes() == version.theta.tobytes()
        theta, owed = version.theta, version.owed
    np.testing.assert_allclose(theta - begin + owed, wanted, rtol=0, atol=3e-6)
    assert owed.any()


def test_the_largest_part_is_sent() -> None:
    theta, change = random_theta(1, 500), random_change(2)
    version = next_version(theta + change, theta, None, BroadcastConfig(ValueCoding.FP32, 0.1))
    sent = decode(version.step, 500)
    assert sent.count == 50 and sent.indices is not None
    d = (theta + change) - theta
    assert set(sent.indices.tolist()) == set(np.argsort(-np.abs(d), kind="stable")[:50].tolist())
    assert not version.owed[sent.indices].any()
    rest = np.setdiff1d(np.arange(500), sent.indices)
    assert version.owed[rest].tobytes() == d[rest].tobytes()
    assert version.theta[rest].tobytes() == theta[rest].tobytes()


def test_what_is_owed_comes_with_the_next_change() -> None:
    theta = random_theta(1, 500)
    owed = np.zeros(500, np.float32)
    owed[7] = 3.0
    version = next_version(theta, theta, owed, BroadcastConfig(ValueCoding.FP32, 0.002))
    assert decode(version.step, 500).indices == [7] and not version.owed.any()
    assert version.theta[7] == theta[7] + np.float32(3)


def test_the_versions_are_on_a_grid() -> None:
    """Multiples of a power of two that is near what the elements move by: few bits an element."""
    broadcast = BroadcastConfig(fraction=0.2)
    theta = first_version(random_theta(1, 2000), (), broadcast)
    begin = encode(SparseVector(2000, None, theta), ValueCoding.FP32)
    owed = None
    for number in range(10):
        version = next_version(theta + 2 * random_change(number, 2000), theta, owed, broadcast)
        theta, owed = version.theta, version.owed
        assert decode(version.step, 2000).values.any()
    multiples = theta * 512
    np.testing.assert_array_equal(multiples, np.rint(multiples))
    end = encode(SparseVector(2000, None, theta), ValueCoding.FP32)
    exact = encode(SparseVector(2000, None, random_theta(1, 2000)), ValueCoding.FP32)
    assert len(begin) < len(end) < len(exact) / 2


@pytest.mark.parametrize(
    ("size", "grid"), [(1 / 64, 1 / 64), (1.4 / 64, 1 / 64), (1.45 / 64, 1 / 32), (1e-6, 2**-20)]
)
def test_the_grid_of_a_step(size: float, grid: float) -> None:
    """The power of two that is nearest to what its elements need."""
    values = np.array([size, -size] * 64, np.float32)
    step = on_grid(SparseVector(128, None, values), ValueCoding.SIGN)
    np.testing.assert_array_equal(step.values, np.sign(values) * np.float32(grid))


def test_what_is_too_small_for_the_grid_does_not_travel() -> None:
    values = np.array([0.9, -0.4, 1.6, -0.6], np.float32) / np.float32(64)
    places = np.array([3, 5, 7, 9], np.uint32)
    for indices, moved in ((places, [3, 7, 9]), (None, [0, 2, 3])):
        step = on_grid(SparseVector(10 if moved[0] else 4, indices, values), ValueCoding.BF16)
        assert step.indices is not None and step.indices.tolist() == moved
        assert (step.values * 64).tolist() == [1, 2, -1]


def test_a_step_without_a_grid() -> None:
    """Of zeros."""
    zeros = SparseVector(3, None, np.zeros(3, np.float32))
    assert on_grid(zeros, ValueCoding.SIGN).count == 0


def test_nothing_to_send() -> None:
    theta = random_theta(1, 500)
    version = next_version(theta, theta, None, BroadcastConfig())
    assert not decode(version.step, 500).values.any()
    assert version.theta.tobytes() == theta.tobytes()


def test_a_first_version_rounds_neither_statistics_nor_what_it_must_not() -> None:
    theta, kept = random_theta(1, 500), slice(100, 200)
    found = first_version(theta, [kept], BroadcastConfig())
    assert found[kept].tobytes() == theta[kept].tobytes()
    np.testing.assert_array_equal(found[200:], np.rint(theta[200:] * 64) / 64)
    for broadcast in (BroadcastConfig(levels=0), BroadcastConfig(whole=True), LOSSY[1]):
        assert first_version(theta, (), broadcast) is theta
    zeros = np.zeros(500, np.float32)
    assert first_version(zeros, (), BroadcastConfig()).tobytes() == zeros.tobytes()


def test_the_arguments_stay_as_they_are() -> None:
    theta, owed = random_theta(1, 500), random_change(2)
    target = theta + random_change(3)
    copies = [a.copy() for a in (theta, owed, target)]
    next_version(target, theta, owed, LOSSY[0])
    for array, copy in zip((theta, owed, target), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("values", [ValueCoding.FP16, ValueCoding.BF16])
def test_a_change_that_cannot_be_coded(values: ValueCoding, fraction: float) -> None:
    huge = np.full(4, 3e38, np.float32)
    with pytest.raises(LocalError, match=r"not.* finite"):
        next_version(huge, -huge, None, BroadcastConfig(values, fraction))


def test_a_sum_that_is_not_finite() -> None:
    theta = np.full(4, 3.3e38, np.float32)
    owed = np.full(4, 3e37, np.float32)
    with pytest.raises(LocalError, match="broadcast: element 0 is not finite"):
        next_version(theta, theta, owed, BroadcastConfig(ValueCoding.BF16, 1.0))


@pytest.mark.parametrize(("fraction", "count"), [(1.0, 500), (0.5, 250), (1e-9, 1)])
def test_how_much_is_chosen(fraction: float, count: int) -> None:
    assert chosen(random_change(1), fraction).count == count


def steps(*sizes: int) -> list[StepRow]:
    """Steps of these sizes."""
    return [StepRow(bytes([i]) * 32, bytes([i + 100]) * 32, size) for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "model", "kept"),
    [
        ((), 100, 0),
        ((99,), 100, 1),
        ((100,), 100, 0),
        ((10, 20, 30), 100, 3),
        ((50, 20, 30), 100, 2),
        ((1, 1, 100), 100, 0),  # an old small one leads nowhere without the last
        ((1, 100, 1), 100, 1),
        ((1,) * MAX_STEPS, 100, MAX_STEPS),
        ((1,) * (MAX_STEPS + 5), 100, MAX_STEPS),
    ],
)
def test_the_longest_end_smaller_than_the_model(
    sizes: tuple[int, ...], model: int, kept: int
) -> None:
    rows = steps(*sizes)
    assert worth_sending(rows, model) == tuple(rows[len(rows) - kept :])


def config_of(broadcast: BroadcastConfig, **values: object) -> RunConfig:
    """The tests' run with a broadcast."""
    return msgspec.structs.replace(CONFIG, broadcast=broadcast, num_rounds=6, **values)


def sparse_update(cloud: Cloud, name: str, seed: int) -> None:
    """A device sends a change of every element."""
    cloud.upload(name, update(cloud.order(name), random_change(seed, LAYOUT.size)))


def rounds_of(cloud: Cloud, count: int) -> None:
    """Devices a and b answer so many orders."""
    for number in range(count):
        for place, name in enumerate("ab"):
            sparse_update(cloud, name, 10 * cloud.order(name).round + place + number)
        cloud.poll()


def fetched(cloud: Cloud, manifest: Manifest) -> bytes:
    """A blob as the coordinator serves it to device a."""
    order = cloud.order("a")
    topic = topics.blob(FLEET, manifest.transfer)
    before = len(cloud.chunks(topic))
    bitmap = to_bitmap(range(manifest.count), manifest.count)
    cloud.say("a", Get(RUN, order.round, bitmap), manifest.transfer)
    cloud.poll(1.0)
    return b"".join(frame.body for frame in cloud.chunks(topic)[before:])


def hash_of(theta: Theta) -> bytes:
    return hashlib.sha256(theta.astype("<f4").tobytes()).digest()


@pytest.mark.parametrize("broadcast", LOSSY[:3], ids=str)
def test_steps_lead_a_device_to_the_model(tmp_path: Path, broadcast: BroadcastConfig) -> None:
    cloud = Cloud(tmp_path, config_of(broadcast))
    for name in "ab":
        cloud.say(name, a_hello(name, compressions=("zstd", "zlib")))
    cloud.poll()
    begin = cloud.model(cloud.order("a").model.sha256)
    theta = begin.copy()
    for closed in range(4):
        order = cloud.order("a")
        chain = cloud.core.open[RUN].steps
        assert len(chain) == closed or broadcast.fraction == 1.0
        assert sum(step.size for step in chain) < order.model.size
        if closed:
            last = order.steps[-1]
            assert last.base_hash == hash_of(theta)
            decode(fetched(cloud, last.blob), LAYOUT.size).add_to(theta)
        assert hash_of(theta) == order.model_hash
        # Someone new gets the same model whole.
        assert decode(fetched(cloud, order.model), LAYOUT.size).dense().tobytes() == theta.tobytes()
        behind = begin.copy()  # someone who holds the first version goes all the way
        if chain and chain[0].base_hash == hash_of(behind):
            for step in chain:
                assert step.base_hash == hash_of(behind)
                decode(cloud.store.blobs.read(step.blob), LAYOUT.size).add_to(behind)
            assert behind.tobytes() == theta.tobytes()
        rounds_of(cloud, 1)


def test_an_order_has_the_steps_that_its_device_lacks(tmp_path: Path) -> None:
    """One from the last version, three from that of four rounds ago, and for a new device all of them."""
    config = config_of(BroadcastConfig(ValueCoding.FP16, 0.05))
    cloud = Cloud(tmp_path, config, devices=("a", "b", "c", "new"))
    cloud.hello("a", "b", "c")
    held = cloud.order("c").model_hash
    sparse_update(cloud, "c", 7)
    cloud.say("c", Goodbye(a_hello("c").nonce))
    rounds_of(cloud, 2)
    cloud.say("c", a_hello("c"))
    cloud.say("new", a_hello("new"))
    rounds_of(cloud, 1)
    chain = cloud.core.open[RUN].steps
    lacking = {name: [s.base_hash for s in cloud.order(name).steps] for name in ("a", "c", "new")}
    all_of_them = [step.base_hash for step in chain]
    assert lacking == {"a": all_of_them[2:], "c": all_of_them, "new": all_of_them}
    assert len(chain) == 3 and chain[0].base_hash == held
    cloud.restart()
    cloud.say("c", a_hello("again"))
    assert [step.base_hash for step in cloud.order("c").steps] == all_of_them


def test_a_device_that_has_lost_its_model_is_counted(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.BF16, 0.05)))
    cloud.hello()
    fetched(cloud, cloud.order("a").model)  # as a newcomer
    rounds_of(cloud, 1)
    fetched(cloud, cloud.order("a").steps[0].blob)
    assert cloud.core.counters["fetched_anew"] == 0
    for _ in range(2):
        fetched(cloud, cloud.order("a").model)
    assert cloud.core.counters["fetched_anew"] == 1
    text = "run run, round 2: a has lost its model, or was away too long: gets it whole"
    assert cloud.notes(logging.WARNING) == [text]


def test_a_whole_broadcast_loses_no_models(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(whole=True)))
    cloud.hello()
    rounds_of(cloud, 1)
    fetched(cloud, cloud.order("a").model)
    assert cloud.core.counters["fetched_anew"] == 0


def test_a_small_step_is_inside_the_orders_once(tmp_path: Path) -> None:
    """Who says hello again, or lacks more than that step, asks for it."""
    config = config_of(BroadcastConfig(ValueCoding.FP16, 0.01))
    cloud = Cloud(tmp_path, config, devices=("a", "b", "c"))
    cloud.hello()
    sparse_update(cloud, "c", 7)
    cloud.say("c", Goodbye(a_hello("c").nonce))
    rounds_of(cloud, 1)
    order = cloud.order("a")
    assert order.step == cloud.store.blobs.read(order.steps[0].blob.sha256)
    assert not cloud.messages("a", Order)[0].step
    cloud.say("a", a_hello("again"))
    assert cloud.order("a") == msgspec.structs.replace(order, step=b"")
    cloud.say("c", a_hello("c"))
    rounds_of(cloud, 1)
    assert (len(cloud.order("c").steps), cloud.order("c").step) == (2, b"")
    assert cloud.order("a").step


@pytest.mark.parametrize("limit", ["INLINE_STEP_BYTES", "MAX_ORDER_BYTES"])
def test_a_step_that_does_not_fit_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.BF16, 0.01)))
    cloud.hello()
    rounds_of(cloud, 1)
    order = cloud.order("a")
    least = {"INLINE_STEP_BYTES": len(order.step), "MAX_ORDER_BYTES": len(encode_body(order))}
    bare, read = msgspec.structs.replace(order, step=b""), cloud.store.blobs.read
    for allowed, expected in ((least[limit], order), (least[limit] - 1, bare)):
        monkeypatch.setattr(f"sedge_cloud.rounds.orders.{limit}", allowed)
        assert with_step(bare, read) == expected


def test_a_device_that_does_not_know_the_coding_gets_the_model_whole(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.SIGN)))
    cloud.hello("a", codecs=("sign",))
    cloud.hello("b")
    rounds_of(cloud, 1)
    assert [len(cloud.order(name).steps) for name in "ab"] == [1, 0]
    assert cloud.order("a").model == cloud.order("b").model
    assert cloud.core.counters["whole_models"] == 0


def away(tmp_path: Path, broadcast: BroadcastConfig) -> tuple[Cloud, Theta]:
    """Device c comes back after four rounds, to a fifth; and the version (n,) that it holds."""
    cloud = Cloud(tmp_path, config_of(broadcast), devices=("a", "b", "c"))
    cloud.hello(codecs=("sign",))
    held = cloud.model(cloud.order("c").model.sha256)
    sparse_update(cloud, "c", 7)
    cloud.say("c", Goodbye(a_hello("c").nonce))
    rounds_of(cloud, 4)
    cloud.say("c", a_hello("c", codecs=("sign",)))
    rounds_of(cloud, 1)
    return cloud, held


def test_who_was_away_gets_the_sum_of_what_it_missed(tmp_path: Path) -> None:
    cloud, theta = away(tmp_path, BroadcastConfig())
    chain, order = cloud.core.open[RUN].steps, cloud.order("c")
    (step,) = order.steps
    assert len(chain) == 5 and step.base_hash == hash_of(theta)
    assert step.blob.size < sum(row.size for row in chain)
    cloud.core.run_store.collect()
    current = cloud.core.open[RUN]
    private = [one.manifest for one in cloud.core.rounds.served(current, "c") if not one.askers]
    assert private == [step.blob]
    decode(cloud.store.blobs.read(step.blob.sha256), LAYOUT.size).add_to(theta)
    assert hash_of(theta) == order.model_hash
    assert [s.blob.sha256 for s in cloud.order("a").steps] == [chain[-1].blob]


def test_a_sum_that_depends_on_its_order_is_none(tmp_path: Path) -> None:
    cloud, _ = away(tmp_path, BroadcastConfig(ValueCoding.FP16, 0.05))
    assert len(cloud.order("c").steps) == 5


def test_who_may_hold_a_later_version_gets_the_steps_apart(tmp_path: Path) -> None:
    """It was asked meanwhile, and its update may be on its way."""
    config = config_of(BroadcastConfig(), quorum=0.5)
    cloud = Cloud(tmp_path, config, devices=("a", "b", "c"))
    cloud.hello(codecs=("sign",))
    sparse_update(cloud, "c", 7)
    rounds_of(cloud, 3)
    assert len(cloud.core.open[RUN].steps) == len(cloud.order("c").steps) == 3


def test_what_a_sum_needs() -> None:
    """Every bit: of zeros, of an element that came back, of one that rounding has touched."""
    theta = np.array([0.0, 0.5, -0.25, 1e-9], np.float32)
    there = SparseVector(4, np.array([0, 1, 2], np.uint32), np.array([1, 2, 3], np.float32))
    back = SparseVector(4, np.array([1], np.uint32), np.array([-2], np.float32))
    current = theta.copy()
    for step in (there, back):
        step.add_to(current)
    found = summed([there, back], current, hash_of(theta))
    assert found is not None and found.indices is not None and found.indices.tolist() == [0, 2]
    assert summed([there, back], current, hash_of(current)) is None
    small = SparseVector(4, np.array([3], np.uint32), np.array([1], np.float32))
    lossy = theta.copy()
    for step in (small, there):
        step.add_to(lossy)
    assert summed([small, there], lossy, hash_of(theta)) is None


def test_a_version_that_no_step_builds_on() -> None:
    rows = steps(1, 1, 1)
    assert steps_since(rows, bytes([1]) * 32) == rows[1:]
    for unknown in (b"", b"?" * 32):
        assert steps_since(rows, unknown) == rows


def test_a_whole_broadcast_has_no_steps(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(whole=True)))
    cloud.hello()
    rounds_of(cloud, 2)
    assert [order.steps for order in cloud.messages("a", Order)] == [(), (), ()]
    assert cloud.state().owed == b"" and cloud.state().steps == ()


def test_the_cloud_computes_with_the_models_that_the_devices_hold(tmp_path: Path) -> None:
    """Two rounds by hand: the mean of the updates on the adopted model, and what is owed."""
    broadcast = BroadcastConfig(ValueCoding.FP16, 0.05)
    cloud = Cloud(tmp_path, config_of(broadcast))
    cloud.hello()
    theta, owed = random_theta(1), None
    for number in range(3):
        deltas = [random_change(100 * number + i, LAYOUT.size) for i in range(2)]
        for name, delta in zip("ab", deltas, strict=True):
            cloud.upload(name, update(cloud.order(name), delta))
        cloud.poll()
        mean = (theta + sum(d.astype(np.float64) for d in deltas) / 2).astype(np.float32)
        version = next_version(mean, theta, owed, broadcast)
        theta, owed = version.theta, version.owed
        assert cloud.model(cloud.state().model).tobytes() == theta.tobytes()
        assert cloud.store.blobs.read(cloud.state().owed) == owed.tobytes()


def test_a_restart_repeats_the_same_order(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.BF16, 0.05)))
    cloud.hello()
    rounds_of(cloud, 3)
    before = msgspec.structs.replace(cloud.order("a"), step=b"")
    assert len(before.steps) == 1
    cloud.restart()
    cloud.hello()
    assert cloud.order("a") == before


def test_closing_is_a_pure_function_of_what_is_stored(tmp_path: Path) -> None:
    """Whatever is in memory: with decoded updates at hand, and after a new start without."""
    cloud = Cloud(tmp_path / "one", config_of(BroadcastConfig(ValueCoding.INT8, 0.05)))
    cloud.hello()
    rounds_of(cloud, 2)
    for place, name in enumerate("ab"):
        sparse_update(cloud, name, place)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    cloud.poll()
    expected = cloud.state()
    again = Cloud.__new__(Cloud)
    again.__dict__.update(cloud.__dict__, folder=tmp_path / "two")
    again.restart()
    again.poll()
    assert again.state() == expected and expected.round == 3


def test_the_evaluation_changes_nothing(tmp_path: Path) -> None:
    config = msgspec.structs.replace(
        config_of(BroadcastConfig(ValueCoding.FP32, 0.05)), num_rounds=2
    )
    cloud = Cloud(tmp_path, config)
    cloud.hello()
    rounds_of(cloud, 2)
    last = cloud.state()
    assert cloud.order("a").task == "evaluate" and len(cloud.order("a").steps) == 1
    cloud.answer("a", "b")
    assert cloud.run_row().status == "finished"
    assert cloud.state() == msgspec.structs.replace(last, round=3)


def test_a_change_that_underflows_is_owed(tmp_path: Path) -> None:
    """The model stays the same version, and no step leads from it to itself."""
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.FP16, 0.05)))
    cloud.hello()
    before = cloud.state()
    tiny = SparseVector(LAYOUT.size, np.array([5], np.uint32), np.array([2e-8], np.float32))
    for name in "ab":
        cloud.upload(name, update(cloud.order(name), tiny.dense()))
    cloud.poll()
    after = cloud.state()
    assert (after.model, after.model_hash, after.steps) == (before.model, before.model_hash, ())
    assert after.round == 1
    owed = np.frombuffer(cloud.store.blobs.read(after.owed), "<f4")
    assert np.flatnonzero(owed).tolist() == [5] and 1e-8 < owed[5] < 3e-8


def test_an_update_that_changes_nothing_owes_nothing(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.BF16, 0.05)))
    cloud.hello()
    before = cloud.state()
    for name in "ab":
        cloud.upload(name, update(cloud.order(name), np.zeros(LAYOUT.size, np.float32)))
    cloud.poll()
    assert cloud.state() == msgspec.structs.replace(before, round=1)


def test_a_step_that_only_a_later_order_names_is_not_served(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, config_of(BroadcastConfig(ValueCoding.BF16, 0.05)))
    cloud.hello()
    rounds_of(cloud, 1)
    (step,) = cloud.order("a").steps
    stray = encode(SparseVector(LAYOUT.size, None, random_theta(9)), ValueCoding.FP32)
    cloud.store.blobs.write(stray)
    assert fetched(cloud, step.blob) == cloud.store.blobs.read(step.blob.sha256)
    other = msgspec.structs.replace(step.blob, sha256=hashlib.sha256(stray).digest())
    assert fetched(cloud, other) == b""
