"""One device of ten: what it reaches through the cloud's memory of it, after its round has clipped it."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import LAYOUT, RUN, Cloud, a_hello, random_theta, report_for

from sedge_cloud.coding import WHOLE
from sedge_cloud.config import RobustConfig, RunConfig
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Committed, Goodbye
from sedge_protocol.wire.update import encode_update

NAMES = tuple(f"d{i}" for i in range(10))
BAD = "d9"
FEATURES = ("freeze", "select", "remember")
# The largest magnitude of the model that a run begins with is .39; a round's changes are up to .005.
NEAR = 0.42


def honest(name: str) -> Theta:
    return random_theta(int(name[1:])) * np.float32(0.01)


# What nobody could have learned, with critical elements as all others have theirs.
WILD = random_theta(9) * np.float32(1e30)


def send(
    cloud: Cloud,
    names: Sequence[str] = NAMES,
    bad: Theta | None = None,
    claim: int = 10,
    scale: float = 1.0,
) -> None:
    """These are all devices of the open round, and answer; the bad one what it likes."""
    assert set(cloud.core.open[RUN].orders) == set(names)
    for name in names:
        delta, report = honest(name) * np.float32(scale), report_for(cloud.order(name))
        if name == BAD and bad is not None:
            delta, report = bad, msgspec.structs.replace(report, num_examples=claim)
        payload = encode(SparseVector(delta.size, None, delta), ValueCoding.FP32)
        assert isinstance(cloud.upload(name, encode_update(report, payload))[-1], Committed)


def online(cloud: Cloud, *names: str) -> None:
    """From now on these devices and no others are there; rounds close and open."""
    for name in cloud.devices:
        hello = a_hello(name, codecs=FEATURES)
        cloud.say(name, hello if name in names else Goodbye(hello.nonce))
    cloud.poll()


def distrusted(cloud: Cloud) -> list[str]:
    """Whose update did not count in full in the last round that has closed."""
    return list(cloud.summaries()[-1].distrusted)


def largest(cloud: Cloud) -> float:
    return float(np.abs(cloud.model(cloud.state().model)).max())


def largest_patch(cloud: Cloud, name: str) -> float:
    patch = cloud.core.run_store.patch(cloud.core.open[RUN].orders[name], LAYOUT.size)
    assert patch is not None
    return float(np.abs(patch.values).max())


@pytest.mark.parametrize("strategy", ["fedcac", "fedpurin"])
def test_nobody_is_grouped_with_it(strategy: str, tmp_path: Path) -> None:
    config = RunConfig(strategy=strategy, num_rounds=4, broadcast=WHOLE)
    cloud = Cloud(tmp_path, config, NAMES)
    online(cloud, *NAMES)
    for _ in range(2):
        send(cloud, bad=WILD)
        cloud.poll()
        assert distrusted(cloud) == [BAD] and largest(cloud) < NEAR
        assert max(largest_patch(cloud, name) for name in NAMES[:-1]) < NEAR


def test_its_group_gets_it_shortened(tmp_path: Path) -> None:
    """Twice or three times as long as the others': either counts as much as theirs, also for others."""
    patches: list[float] = []
    for times in (2, 3):
        config = RunConfig(strategy="fedpurin", num_rounds=2, broadcast=WHOLE)
        cloud = Cloud(tmp_path / str(times), config, NAMES)
        online(cloud, *NAMES)
        mark = honest(BAD)
        mark[0] = 0.06
        send(cloud, bad=mark * np.float32(times))
        cloud.poll()
        assert distrusted(cloud) == []
        assert BAD in cloud.core.run_store.read_groups(cloud.state().groups)[NAMES[0]]
        patch = cloud.core.run_store.patch(cloud.core.open[RUN].orders[NAMES[0]], LAYOUT.size)
        assert patch is not None and (patch.indices is None or patch.indices[0] == 0)
        patches.append(float(patch.values[0]))
        cloud.store.close()
    assert patches[0] == pytest.approx(patches[1], abs=2e-4)


def test_nor_stays_who_was_absent_meanwhile(tmp_path: Path) -> None:
    """The group is of a round in which all were honest; what the members count with is newer."""
    config = RunConfig(strategy="fedpurin", num_rounds=4, broadcast=WHOLE)
    cloud = Cloud(tmp_path, config, NAMES)
    online(cloud, *NAMES)
    send(cloud)
    online(cloud, *NAMES[1:])
    assert BAD in cloud.core.run_store.read_groups(cloud.state().groups)[NAMES[0]]
    send(cloud, NAMES[1:], bad=WILD)
    online(cloud, *NAMES)
    assert distrusted(cloud) == [BAD]
    assert largest_patch(cloud, NAMES[0]) < NEAR


@pytest.mark.parametrize("strategy", ["fedobp", "fedcac"])
def test_its_patch_is_not_measured_by_itself(strategy: str, tmp_path: Path) -> None:
    """All others of the second round are newcomers, who begin with none."""
    newcomers = tuple(f"d{i}" for i in range(10, 19))
    config = RunConfig(strategy=strategy, num_rounds=4, broadcast=WHOLE)
    cloud = Cloud(tmp_path, config, (*NAMES, *newcomers))
    online(cloud, *NAMES)
    wild = honest(BAD)
    wild[0] = 1e30
    send(cloud, bad=wild)
    online(cloud, BAD, *newcomers)
    for _ in range(2):
        assert largest_patch(cloud, BAD) > 1e29  # what is its own alone is its own affair
        send(cloud, (BAD, *newcomers))
        cloud.poll()
        assert distrusted(cloud) == [BAD] and largest(cloud) < NEAR


def test_an_honest_patch_alone_is_left_as_it_is(tmp_path: Path) -> None:
    """It took rounds to grow, and is ten times as long as what a device still changes."""
    newcomers = tuple(f"d{i}" for i in range(10, 19))
    config = RunConfig(strategy="fedobp", num_rounds=4, broadcast=WHOLE)
    cloud = Cloud(tmp_path, config, (*NAMES, *newcomers))
    online(cloud, *NAMES)
    far = honest(BAD)
    far[0] = 0.35  # the median change is .11 long
    send(cloud, bad=far)
    online(cloud, BAD, *newcomers)
    assert distrusted(cloud) == []
    send(cloud, (BAD, *newcomers), scale=0.05)
    cloud.poll()
    assert distrusted(cloud) == []


def test_its_past_makes_no_start(tmp_path: Path) -> None:
    config = RunConfig(
        strategy="subflot", options={"solver": "assign"}, num_rounds=4, broadcast=WHOLE
    )
    cloud = Cloud(tmp_path, config, NAMES, widths=(0.5,))
    online(cloud, *NAMES)
    send(cloud, bad=WILD)
    cloud.poll()
    assert distrusted(cloud) == [BAD]
    send(cloud)
    cloud.poll()
    assert distrusted(cloud) == [] and largest(cloud) < NEAR


@pytest.mark.parametrize(
    ("said", "max_weight", "share"),
    [(2**40, 4, 4 / 13), (2**40, 0, 1.0), (20, 0, 2 / 11), (0, 0, 1 / 91)],
)
def test_what_it_claims_to_have(said: int, max_weight: float, share: float, tmp_path: Path) -> None:
    """Its weight is that of four others, or all there is, and never more than it said hello with."""
    robust = RobustConfig(clip=0, max_weight=max_weight, rule="mean")
    config = RunConfig(strategy="fedavg", num_rounds=2, robust=robust, broadcast=WHOLE)
    cloud = Cloud(tmp_path, config, NAMES)
    for name in NAMES:
        hello = a_hello(name, codecs=FEATURES)
        cloud.say(name, msgspec.structs.replace(hello, num_train=said) if name == BAD else hello)
    cloud.poll()
    before = cloud.model(cloud.state().model)
    send(cloud, bad=honest(BAD), claim=2**40)
    cloud.poll()
    others = sum(honest(name).astype(np.float64) for name in NAMES[:-1]) / 9
    expected = share * honest(BAD) + (1 - share) * others
    moved = cloud.model(cloud.state().model) - before
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-7)
    assert distrusted(cloud) == []
