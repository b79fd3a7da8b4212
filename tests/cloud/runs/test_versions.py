"""The broadcast as changes: what is sent, what is owed, and which changes an order names."""

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, a_hello, random_theta, served, update

from sedge_cloud.coding import WHOLE, BroadcastConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.runs.versions import first_version, next_version, summed, worth_sending
from sedge_cloud.store.schema import StepRow
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode
from sedge_protocol.errors import Unencodable
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire import topics
from sedge_protocol.wire.messages import MAX_STEPS, Get, Goodbye
from sedge_protocol.wire.transfer import Manifest, to_bitmap

GRID = BroadcastConfig(ValueCoding.BF16, 0.1)
LOSSY = [
    BroadcastConfig(ValueCoding.BF16, 1.0),
    BroadcastConfig(ValueCoding.FP32, 0.1),
    BroadcastConfig(ValueCoding.INT8, 0.03, Compression.ZLIB),
    BroadcastConfig(ValueCoding.FP16, 1e-9, Compression.NONE),
    BroadcastConfig(ValueCoding.SIGN, 0.2),
    GRID,
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


@pytest.mark.parametrize("fraction", [1.0, 0.5])
@pytest.mark.parametrize("values", [ValueCoding.FP16, ValueCoding.BF16])
def test_a_change_that_cannot_be_coded(values: ValueCoding, fraction: float) -> None:
    huge = np.full(4, 3e38, np.float32)
    with pytest.raises(Unencodable, match=r"not.* finite"):
        next_version(huge, -huge, None, BroadcastConfig(values, fraction))


def test_a_sum_that_is_not_finite() -> None:
    theta = np.full(4, 3.3e38, np.float32)
    owed = np.full(4, 3e37, np.float32)
    with pytest.raises(Unencodable, match="broadcast: element 0 is not finite"):
        next_version(theta, theta, owed, BroadcastConfig(ValueCoding.BF16, 1.0))


def test_the_versions_are_on_a_grid() -> None:
    """Multiples of a power of two near what the elements move by: few bits an element."""
    layout = Layout.of([("weight", (2000,), Role.PARAMETER)])
    theta, owed = first_version(random_theta(1, 2000), layout, GRID), None
    begin = encode(SparseVector(2000, None, theta), ValueCoding.FP32)
    for number in range(10):
        version = next_version(theta + 2 * random_change(number, 2000), theta, owed, GRID)
        theta, owed = version.theta, version.owed
        assert decode(version.step, 2000).values.any()
    multiples = theta * 2**13
    np.testing.assert_array_equal(multiples, np.rint(multiples))
    end = encode(SparseVector(2000, None, theta), ValueCoding.FP32)
    exact = encode(SparseVector(2000, None, random_theta(1, 2000)), ValueCoding.FP32)
    assert len(begin) < len(end) < len(exact) / 2


def test_a_first_version_is_rounded_tensor_by_tensor() -> None:
    """A small one is not lost beside a large one; statistics and models off the grid stay exact."""
    shapes = [("large", Role.PARAMETER), ("small", Role.PARAMETER), ("mean", Role.STATISTIC)]
    layout = Layout.of([(name, (100,), role) for name, role in shapes])
    theta = random_theta(1, 300)
    theta[100:200] /= 1024
    first = first_version(theta, layout, GRID)
    np.testing.assert_array_equal(first[:100], np.rint(theta[:100] * 64) / 64)
    np.testing.assert_array_equal(first[100:200], np.rint(theta[100:200] * 2**16) / 2**16)
    assert first[200:].tobytes() == theta[200:].tobytes()
    for broadcast in (WHOLE, *LOSSY[:-1]):
        assert first_version(theta, layout, broadcast) is theta
    zeros = np.zeros(300, np.float32)
    assert first_version(zeros, layout, GRID).tobytes() == zeros.tobytes()


def steps(*sizes: int) -> list[StepRow]:
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
def test_the_longest_end_below_the_model(sizes: tuple[int, ...], model: int, kept: int) -> None:
    rows = steps(*sizes)
    assert worth_sending(rows, model) == tuple(rows[len(rows) - kept :])


def config_of(broadcast: BroadcastConfig, **values: object) -> RunConfig:
    return msgspec.structs.replace(CONFIG, broadcast=broadcast, num_rounds=6, **values)


def sparse_update(cloud: Cloud, name: str, seed: int) -> None:
    cloud.upload(name, update(cloud.order(name), random_change(seed, LAYOUT.size)))


def rounds_of(cloud: Cloud, count: int) -> None:
    for number in range(count):
        for place, name in enumerate("ab"):
            sparse_update(cloud, name, 10 * cloud.order(name).round + place + number)
        cloud.poll()


def fetched(cloud: Cloud, manifest: Manifest) -> bytes:
    """A blob as the coordinator serves it to device a."""
    order = cloud.order("a")
    topic = topics.blob(cloud.core.fleet, manifest.transfer)
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
    theta = random_theta(1)
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
        behind = random_theta(1)  # someone who holds the first version goes all the way
        if chain and chain[0].base_hash == hash_of(behind):
            for step in chain:
                assert step.base_hash == hash_of(behind)
                decode(cloud.store.blobs.read(step.blob), LAYOUT.size).add_to(behind)
            assert behind.tobytes() == theta.tobytes()
        rounds_of(cloud, 1)


def test_an_order_has_the_steps_that_its_device_lacks(tmp_path: Path) -> None:
    """The last step; the three since a device left; all of them for a device without a past."""
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
    chain = [step.base_hash for step in cloud.core.open[RUN].steps]
    named = {name: [s.base_hash for s in cloud.order(name).steps] for name in ("a", "c", "new")}
    assert named == {"a": chain[2:], "c": chain, "new": chain}
    assert len(chain) == 3 and chain[0] == held
    cloud.restart()
    cloud.say("c", a_hello("again"))
    assert [step.base_hash for step in cloud.order("c").steps] == chain


def test_a_device_that_was_away_gets_the_sum_of_what_it_missed(tmp_path: Path) -> None:
    """It comes back in the fifth round after the first."""
    config = config_of(BroadcastConfig(ValueCoding.BF16, 0.2))
    cloud = Cloud(tmp_path, config, devices=("a", "b", "c"))
    cloud.hello()
    theta = cloud.model(cloud.order("c").model.sha256)
    sparse_update(cloud, "c", 7)
    cloud.say("c", Goodbye(a_hello("c").nonce))
    rounds_of(cloud, 4)
    cloud.say("c", a_hello("c"))
    rounds_of(cloud, 1)
    chain, order = cloud.core.open[RUN].steps, cloud.order("c")
    (step,) = order.steps
    assert len(chain) == 5 and step.base_hash == hash_of(theta)
    assert step.blob.size < sum(row.size for row in chain)
    cloud.core.garbage.collect()
    private = [named.manifest for named in served(cloud, "c") if not named.receivers]
    assert private == [step.blob]
    decode(cloud.store.blobs.read(step.blob.sha256), LAYOUT.size).add_to(theta)
    assert hash_of(theta) == order.model_hash
    assert [s.blob.sha256 for s in cloud.order("a").steps] == [chain[-1].blob]


def test_a_sum_leads_to_every_bit() -> None:
    """Of zeros, of an element that came back, of one that rounding has changed."""
    theta = np.array([0.0, 0.5, -0.25, 1e-9], np.float32)
    there = SparseVector(4, np.array([0, 1, 2], np.uint32), np.array([1, 2, 3], np.float32))
    back = SparseVector(4, np.array([1], np.uint32), np.array([-2], np.float32))
    current = theta.copy()
    for change in (there, back):
        change.add_to(current)
    found = summed([there, back], current, hash_of(theta))
    assert found is not None and found.indices is not None and found.indices.tolist() == [0, 2]
    assert summed([there, back], current, hash_of(current)) is None
    small = SparseVector(4, np.array([3], np.uint32), np.array([1], np.float32))
    lossy = theta.copy()
    for change in (small, there):
        change.add_to(lossy)
    assert summed([small, there], lossy, hash_of(theta)) is None


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
