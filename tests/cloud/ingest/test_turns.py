"""What arrives in one turn of the loop is one transaction; no answer leaves before it, and none is lost."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, began, random_theta, small_update, update
from tests.fleet import failing

from sedge_cloud.algorithms.outliers import lengths
from sedge_cloud.config import RunConfig
from sedge_cloud.ingest import uploads as inbox
from sedge_cloud.store.rows import UpdateRow
from sedge_protocol.codec import decode
from sedge_protocol.errors import StorageError
from sedge_protocol.wire import topics
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.messages import Busy, Committed, Message, Offer
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import decode_update

NAMES = ("a", "b", "c", "d")
WAITING = msgspec.structs.replace(CONFIG, quorum=1.0, num_rounds=9)


@pytest.fixture
def cloud(tmp_path: Path) -> Cloud:
    return began(tmp_path, NAMES, WAITING)


def arrive(cloud: Cloud, *names: str) -> dict[str, bytes]:
    """These devices' updates arrive, whole in their offers, in one turn that has not ended."""
    blobs: dict[str, bytes] = {}
    for seed, name in enumerate(names):
        blobs[name] = small_update(cloud.order(name), seed)
        manifest = describe(blobs[name])
        offer = Offer(RUN, cloud.order(name).round, manifest, 1, blobs[name])
        payload = cloud.devices[name].peer.seal(offer, manifest.transfer)
        assert cloud.core.admits(topics.up("bench", name), payload, cloud.now)
        assert cloud.core.receive(topics.up("bench", name), payload, cloud.now) == []
    return blobs


def end(cloud: Cloud) -> dict[str, list[Message]]:
    """The turn ends; what each device is answered."""
    sends = [effect for effect in cloud.core.commit(cloud.now) if isinstance(effect, Send)]
    return {
        name: [device.read(s) for s in sends if s.topic == topics.down("bench", name)]
        for name, device in cloud.devices.items()
    }


def commits(cloud: Cloud) -> list[str]:
    """From now on, how transactions end."""
    ended: list[str] = []
    db = cloud.store._db
    commit, rollback = db.commit, db.rollback

    def committing() -> None:
        ended.append("commit")
        commit()

    def undoing() -> None:
        ended.append("rollback")
        rollback()

    vars(db)["commit"], vars(db)["rollback"] = committing, undoing
    return ended


def test_a_turn_is_one_transaction_and_its_answers_come_after_it(cloud: Cloud) -> None:
    ended = commits(cloud)
    blobs = arrive(cloud, *NAMES)
    assert ended == [] and all(cloud.store.update(RUN, 1, name) is None for name in NAMES)
    answers = end(cloud)
    assert ended == ["commit"]
    for name, blob in blobs.items():
        assert answers[name] == [Committed(RUN, 1, describe(blob).sha256)]
    cloud.poll()
    assert [device.device for device in cloud.summaries()[0].devices] == list(NAMES)


def test_an_offer_that_comes_again_in_its_turn_is_answered_once(cloud: Cloud) -> None:
    arrive(cloud, "a", "a")
    assert [type(answer) for answer in end(cloud)["a"]] == [Committed]


def test_one_that_fails_undoes_no_other(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = cloud.store.commit_receipt

    def picky(row: UpdateRow, *rest: object) -> UpdateRow:
        stored = receive(row, *rest)  # type: ignore[arg-type]
        if row.device == "b":
            raise StorageError("a trigger says no")
        return stored

    arrive(cloud, *NAMES)
    with monkeypatch.context() as patched:
        patched.setattr(cloud.store, "commit_receipt", picky)
        answers = end(cloud)
    assert {name: type(said) for name, (said,) in answers.items()} == {
        "a": Committed, "b": Busy, "c": Committed, "d": Committed,
    }  # fmt: skip
    assert cloud.store.update(RUN, 1, "b") is None and cloud.store.update(RUN, 1, "c") is not None
    cloud.answer("b")
    assert len(cloud.summaries()[0].devices) == 4


def test_a_turn_that_fails_answers_nobody_and_loses_nothing(cloud: Cloud) -> None:
    arrive(cloud, *NAMES)
    with failing(cloud.store.blobs, "settle", StorageError("disk full: it is")):
        answers = end(cloud)
    assert {type(said) for (said,) in answers.values()} == {Busy}
    assert all(cloud.store.update(RUN, 1, name) is None for name in NAMES)
    assert cloud.core.open[RUN].received == set() and cloud.core.counters["storage_errors"] == 1
    cloud.answer(*NAMES)
    assert len(cloud.summaries()[0].devices) == 4


def test_a_turn_ends_when_much_has_arrived(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "MAX_TURN", 2)
    with pytest.raises(AssertionError):  # the second one is answered at once, with the first
        arrive(cloud, "a", "b")
    assert {row.device for row in cloud.store.received(RUN, 1).counted} == {"a", "b"}


def test_a_receipt_has_the_lengths_that_the_filter_measures(tmp_path: Path) -> None:
    config = RunConfig(strategy="fedobp", num_rounds=3, evaluate=False, options={"quantile": 0.9})
    cloud = Cloud(tmp_path, config)
    cloud.hello()
    cloud.send("a", "b")
    cloud.poll()
    cloud.upload("a", update(cloud.order("a"), random_theta(7)))
    (row,), (order,) = cloud.store.received(RUN, 2).counted, cloud.store.orders(RUN, 2)[:1]
    run_store, run = cloud.core.run_store, cloud.core.runs[RUN]
    base = run_store.theta(run.state.model, LAYOUT.size)
    given = run_store.updates(run, 2, base, [row])
    (seen,) = given
    assert order.patch_hash and (row.patch_length, row.delta_length) == lengths(seen)
    assert row.patch_length and row.delta_length
    (measured,) = given.measured()
    assert measured[-2:] == lengths(seen)
    delta = decode(decode_update(cloud.store.update_blob(row.blob))[1], LAYOUT.size).dense()
    np.testing.assert_allclose(row.delta_length, np.linalg.norm(delta.astype(float)), rtol=1e-12)
