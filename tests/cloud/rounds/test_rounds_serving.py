"""A finished run gives its model to devices that missed the end, and what they do changes nothing of it."""

import logging
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud, a_hello, fetch_model, make_bundle, small_update

from sedge_cloud.admin.run_report import run_report
from sedge_cloud.admin.runs import delete_run, resume_run, start_run
from sedge_cloud.config import RunConfig
from sedge_cloud.facts.reader import Reader
from sedge_cloud.ingest.open_orders import RESEND_S
from sedge_cloud.rounds.lifecycle import FINISHED, RUNNING
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_protocol.wire.messages import Cancel, Committed, Decline, Get, Order
from sedge_protocol.wire.transfer import to_bitmap

SHORT = msgspec.structs.replace(CONFIG, num_rounds=1, evaluate=False)


@pytest.fixture
def ended(tmp_path: Path) -> Cloud:
    """A coordinator whose run has finished with devices a and b; c was never online."""
    cloud = Cloud(tmp_path, SHORT, ("a", "b", "c"))
    cloud.hello("a", "b")
    cloud.answer("a", "b")
    assert cloud.run_row().status == FINISHED
    return cloud


def orders(cloud: Cloud, name: str) -> list[tuple[int, str]]:
    return [(order.round, order.task) for order in cloud.messages(name, Order)]


@pytest.mark.parametrize("restarts", [False, True])
def test_a_newcomer_gets_the_last_model_and_trains_its_own(ended: Cloud, restarts: bool) -> None:
    if restarts:
        ended.restart()
    last = ended.state()
    ended.hello()
    assert orders(ended, "a") == orders(ended, "b") == [(1, "train")]
    assert orders(ended, "c") == [(2, "train")]
    assert ended.order("c").model_hash == last.model_hash
    fetch_model(ended, "c")
    assert len(ended.chunks("sedge/1/bench/blob/" + ended.order("c").model.transfer.hex())) > 0
    (answer,) = ended.offer("c", small_update(ended.order("c")))
    assert isinstance(answer, Committed) and not answer.late
    run = Run(ended.run_row(), ended.store)
    assert RunStore(ended.store).client_model(run, "c").trained is not None
    for _ in range(3):
        ended.poll(RESEND_S)
    ended.hello()
    assert len(orders(ended, "c")) == 1
    assert ended.state() == last and len(ended.summaries()) == 1
    assert ended.run_row().status == FINISHED


@pytest.mark.parametrize("restarts", [False, True])
def test_a_device_that_has_lost_the_model_gets_it_again(ended: Cloud, restarts: bool) -> None:
    """As often as its disk dies: who it is does not say what it has."""
    whole = a_hello("whole", holds=(RUN,))
    for _ in range(2):
        if restarts:
            ended.restart()
            ended.load()
        assert len(ended.say("a", whole)) == 1
        _, order = ended.say("a", a_hello("empty", holds=()))
        assert isinstance(order, Order) and order.round == 2
        assert len(ended.say("a", a_hello("empty", holds=()))) == 2
        (answer,) = ended.offer("a", small_update(order), order=order)
        assert isinstance(answer, Committed)
    assert len(ended.summaries()) == 1


def test_who_has_declined_is_not_asked_at_each_hello(ended: Cloud) -> None:
    empty = a_hello("empty", holds=())
    _, order = ended.say("c", empty)
    assert isinstance(order, Order)
    ended.say("c", Decline(RUN, order.round, "DataError", "no data"))
    assert len(ended.say("c", empty)) == 1


def test_every_device_that_comes_gets_its_own_order(ended: Cloud) -> None:
    for name in ("d", "e"):
        ended.enrol(name)
    ended.restart()
    ended.hello("c", "d", "e")
    assert [orders(ended, name) for name in "cde"] == [[(2, "train")]] * 3
    ended.offer("d", small_update(ended.order("d")))
    ended.poll(RESEND_S)
    assert [len(orders(ended, name)) for name in "cde"] == [2, 1, 2]
    assert {order.device for order in ended.store.orders(RUN, 2)} == {"c", "d", "e"}


def test_only_the_newest_finished_run_serves(ended: Cloud) -> None:
    start_run(ended.store, "later", ended.bundle, SHORT)
    ended.restart()
    ended.hello("a", "b")
    ended.answer("a", "b")
    ended.hello("c")
    assert [(order.run, order.round) for order in ended.messages("c", Order)] == [("later", 2)]


def test_no_run_serves_while_one_is_running(ended: Cloud) -> None:
    """A newcomer takes part in that one, and predicts with its model."""
    config = msgspec.structs.replace(SHORT, min_available_devices=3)
    start_run(ended.store, "later", ended.bundle, config)
    ended.restart()
    ended.hello("c")
    assert ended.messages("c", Order) == []
    ended.hello("a", "b")
    assert [order.run for order in ended.messages("c", Order)] == ["later"]


def test_a_newcomer_in_the_moment_of_a_resumption(ended: Cloud) -> None:
    """The coordinator does not know yet; its round would take the number of the next one."""
    resume_run(ended.store, RUN, 2)
    ended.hello("c")
    assert ended.messages("c", Order) == []
    assert any("run run: it is running" in note for note in ended.notes(logging.ERROR))
    assert [row.round for row in ended.store.rounds(RUN)] == [1]


def test_a_stopped_run_serves_nobody(tmp_path: Path) -> None:
    cloud = Cloud(tmp_path, CONFIG, ("a", "b", "c"))
    cloud.hello("a", "b")
    cloud.store.set_status(RUN, "stopped")
    cloud.restart()
    cloud.hello("c")
    assert cloud.messages("c", Order) == []


def test_a_device_without_the_strategys_features_is_not_asked(tmp_path: Path) -> None:
    config = RunConfig(strategy="ditto", num_rounds=1, evaluate=False)
    cloud = Cloud(tmp_path, config, ("a", "b", "c"))
    cloud.hello("a", "b", codecs=("own_model",))
    cloud.answer("a", "b")
    assert cloud.run_row().status == FINISHED
    cloud.hello("c")
    assert cloud.messages("c", Order) == []
    cloud.say("c", a_hello("c", codecs=("own_model",)))
    assert orders(cloud, "c") == [(2, "train")]


def test_a_resumed_run_takes_newcomers_in(ended: Cloud) -> None:
    """The work for nobody but the device counts as none of the training; its round's number is spent."""
    ended.hello("c")
    config = resume_run(ended.store, RUN, 3)
    assert (config.total_rounds, config.training_rounds(2)) == (4, 1)
    ended.come_back()
    assert ended.run_row().status == RUNNING
    first = ended.messages("c", Order)[0]
    bitmap = to_bitmap(range(first.model.count), first.model.count)
    (answer,) = ended.say("c", Get(RUN, 2, bitmap), first.model.transfer)
    assert isinstance(answer, Cancel)
    for _ in range(2):
        ended.answer("a", "b", "c")
    lines = list(run_report(Reader("home", ended.store.folder, ended.store), RUN, as_json=False))
    assert lines[3].split() == ["2", "train", "0/1", "newcomers"]
    assert [summary.round for summary in ended.summaries()] == [1, 3, 4]
    assert ended.run_row().status == FINISHED


def test_a_deleted_run_serves_nobody_even_if_its_name_comes_again(ended: Cloud) -> None:
    """Its newcomer would get an order of the old round for the new run's bundle."""
    ended.hello("c")
    another = 2 * ended.model(ended.state().model)
    with closing(ended.second_store()) as store:
        delete_run(store, RUN)
        ended.load()
        assert [cancel.reason for cancel in ended.messages("c", Cancel)] == ["the run was deleted"]
        bundle = make_bundle(ended.folder / "another", init=another)
        start_run(store, RUN, bundle, msgspec.structs.replace(SHORT, min_available_devices=4))
        ended.load()
    ended.hello("c")
    assert orders(ended, "c") == [(2, "train")]


def test_a_resumed_run_asks_no_newcomer_for_its_spent_round(ended: Cloud) -> None:
    ended.hello("c")
    with closing(ended.second_store()) as store:
        resume_run(store, RUN, 3)
    ended.core.disconnected(ended.now)
    ended.load()
    ended.core.connected(ended.now)
    ended.hello("c")
    assert orders(ended, "c") == [(2, "train")]
