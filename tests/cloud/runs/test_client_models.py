"""What a plan is told of a device and of its group: as its last update left it, and made when asked for."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.helper import (
    CONFIG,
    RUN,
    Cloud,
    a_hello,
    began,
    random_theta,
    report_for,
    small_update,
    update,
)

from sedge_cloud.runs.client_models import ClientModels
from sedge_cloud.strategy import ClientModel
from sedge_protocol.codec import decode
from sedge_protocol.wire.messages import Committed, Hello
from sedge_protocol.wire.update import decode_update, encode_update

GIVEN = msgspec.structs.replace(CONFIG, strategy=given.NAME, num_rounds=9)


def silent(device: str) -> Hello | None:
    return None


def seen() -> dict[str, ClientModel]:
    """The last client model of each device that the strategy was given."""
    return {client.device: client for client in given.SEEN}


def test_everything_that_a_report_told(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, GIVEN)
    for name, memory_mb in (("a", 512), ("b", 0)):
        cloud.say(name, a_hello(name, memory_mb=memory_mb))
    cloud.poll()
    assert seen()["a"].memory_mb == 512 and seen()["a"].trained is None
    blob = small_update(cloud.order("a"))
    payload = bytes(decode_update(blob)[1])
    report = report_for(cloud.order("a"), mix=0.25, seconds=6.0, steps=12)
    cloud.offer("a", encode_update(report, payload))
    cloud.answer("b")
    one, other = seen()["a"], seen()["b"]
    assert (one.round, one.mix, one.step_s, one.width) == (1, 0.25, 0.5, 0)
    assert one.memory_mb == 512 and list(one.group) == []
    assert one.trained is not None and one.sent is not None
    sent = decode(payload, one.trained.size)
    assert one.sent.values.tobytes() == sent.values.tobytes()
    assert (other.mix, other.step_s, other.memory_mb) == (None, 2.0 / 3, 0)


def test_a_group_comes_in_its_order_each_round(tmp_path: Path) -> None:
    """Also after a restart, and with a member that nobody has heard of."""
    names = ("a", "bb", "ccc")  # each sends other elements (helper.answer)
    cloud = Cloud(tmp_path, GIVEN, names)
    given.GROUPS.update(a=("ccc", "bb"), bb=("nobody", "a"))
    cloud.hello()
    cloud.answer(*names)
    run = cloud.core.runs[RUN]
    expected = {name: cloud.core.run_store.client_model(run, name).trained for name in names}
    assert cloud.core.run_store.context(run).groups == {"a": ("ccc", "bb"), "bb": ("nobody", "a")}
    cloud.restart()
    run = cloud.core.runs[RUN]
    groups = cloud.core.run_store.context(run).groups
    found = ClientModels(run, cloud.core.run_store, groups, silent)
    for _ in range(2):
        members = list(found.of("a").group)
        assert [member.device for member in members] == ["ccc", "bb"]
        for member in members:
            trained = expected[member.device]
            assert trained is not None and member.trained is not None
            assert member.trained.tobytes() == trained.tobytes()
    (nobody, one) = found.of("bb").group
    assert nobody.trained is None and nobody.device == "nobody" and one.device == "a"
    assert list(found.of("ccc").group) == [] and list(one.group) == []


def test_nobody_is_in_a_group_whose_last_update_did_not_count_in_full(tmp_path: Path) -> None:
    """In the second round one is clipped and another too late; in the third both count again."""
    names = ("a", "b", "c", "d", "late")
    cloud = Cloud(tmp_path, msgspec.structs.replace(GIVEN, quorum=0.8), names)

    def members() -> list[str]:
        run, run_store = cloud.core.runs[RUN], cloud.core.run_store
        group = ClientModels(run, run_store, {"a": names}, silent).of("a").group
        return [member.device for member in group]

    cloud.hello()
    for name in ("late", *names[:-1]):
        cloud.offer(name, small_update(cloud.order(name)))
    cloud.poll()
    assert members() == list(names)
    missed = cloud.order("late")
    for name in names[:-1]:
        delta = random_theta(3) * np.float32(1000 if name == "b" else 1)
        cloud.upload(name, update(cloud.order(name), delta))
    cloud.poll()
    assert members() == ["a", "c", "d", "late"], "what it sent last was in time"
    (answer,) = cloud.offer("late", small_update(missed), order=missed)
    assert isinstance(answer, Committed) and answer.late
    assert members() == ["a", "c", "d"]
    for name in names[1:]:
        cloud.offer(name, small_update(cloud.order(name)))
    cloud.poll()
    assert members() == list(names)


def test_a_client_model_cannot_be_written_to(tmp_path: Path) -> None:
    """It may be another device's as well, or the global itself."""
    cloud = began(tmp_path, config=GIVEN)
    cloud.answer("a", "b")
    trained = cloud.core.run_store.client_model(cloud.core.runs[RUN], "a").trained
    assert trained is not None
    with pytest.raises(ValueError, match="read-only"):
        trained[0] = 1.0


def test_models_beyond_the_store_are_theirs(tmp_path: Path) -> None:
    """A device that sends nothing is where it began."""
    cloud = began(tmp_path, strategy="local_only")
    cloud.answer("a", "b")
    found = cloud.core.run_store.client_model(cloud.core.runs[RUN], "a")
    assert found.sent is None and found.trained is not None
    assert found.trained.tobytes() == random_theta(1).tobytes()
