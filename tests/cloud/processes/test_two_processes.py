"""Two processes that serve a fleet: the first leads and has device a, the second has device b."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest
from tests.cloud import given
from tests.cloud.given import assigned
from tests.cloud.helper import CONFIG, FLEET, RUN, Cloud, a_hello, make_bundle, small_update
from tests.cloud.stores import open_store
from tests.fleet import failing

from sedge_cloud.admin.runs import delete_run, start_run, stop_run
from sedge_cloud.config import CohortConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.disk_errors import DISK_RETRY_S
from sedge_cloud.hints import Lacking, LeftOut
from sedge_cloud.ingest.open_orders import RESEND_S
from sedge_cloud.outage import RETURN_S
from sedge_cloud.processes.signals import Changed
from sedge_cloud.recorder import Recorder
from sedge_cloud.rounds.lifecycle import Phase
from sedge_cloud.runs import vectors
from sedge_cloud.store.contract import Dialect
from sedge_cloud.store.rows import DeviceRow, SessionRow, TrafficRow
from sedge_protocol.codec import SparseVector, decode
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Cancel, Get, Goodbye, Order, Refusal
from sedge_protocol.wire.topics import SHARD_NAMES, blob, down, hint, shard_of
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import to_bitmap
from sedge_protocol.wire.work import OwnModel

THEIRS = frozenset({shard_of("b")})
OURS = frozenset(SHARD_NAMES) - THEIRS


class Pair:
    def __init__(self, folder: Path, config: RunConfig) -> None:
        fleet = Cloud(folder, config)
        fleet.store.close()
        self.first, self.second = (_process(fleet) for _ in range(2))
        self.recorders = [Recorder(one.core, one.wall) for one in (self.second, self.first)]
        take(self.first, OURS, leads=True)
        take(self.second, THEIRS)

    def go_on(self) -> None:
        """Each looks at what the other has written, and does what is due."""
        for _ in range(6):
            for process, recorder in zip((self.second, self.first), self.recorders, strict=True):
                process.load()
                process.poll(0.5)
                recorder.flush(process.now)

    def close(self) -> None:
        self.first.store.close()
        self.second.store.close()


Pairs = Callable[[RunConfig], Pair]


def _process(fleet: Cloud) -> Cloud:
    store = open_store(fleet.folder / "state")
    process = Cloud.of(store, fleet.folder, (), 1)
    process.devices = fleet.devices
    process.core = Coordinator(FLEET, store, 0.1, int(fleet.now), shared=True)
    process.load()
    process.core.connected(process.now)
    return process


def take(process: Cloud, shards: frozenset[str], leads: bool = False) -> None:
    process.effects += process.core.take(shards, leads, process.now)


def broadcast_bytes(process: Cloud, name: str) -> int:
    """The bytes that count for a device in the first round, without its order's."""
    rows, _ = process.core.ingest.traffic.of_round(RUN, 1, ())
    total = next(row.down for row in rows if row.device == name)
    return total - len(process.sends(down(FLEET, name))[-1].payload)


@pytest.fixture
def pair_of(tmp_path: Path) -> Iterator[Pairs]:
    made: list[Pair] = []

    def make(config: RunConfig) -> Pair:
        made.append(Pair(tmp_path, config))
        return made[0]

    yield make
    made[0].close()


@pytest.fixture
def pair(pair_of: Pairs) -> Pair:
    """The two, whose devices have an order of the first round."""
    pair = pair_of(CONFIG)
    pair.first.hello("a")
    pair.second.hello("b")
    pair.go_on()
    assert pair.first.order("a") and pair.second.order("b")
    return pair


def test_the_end_of_a_run_is_told_to_each_device_by_its_own_process(pair: Pair) -> None:
    """With two senders' start counts it would hear the newer, and be deaf to its own process."""
    take(pair.first, OURS - {"00"}, leads=True)
    take(pair.first, OURS, leads=True)  # its start count is the newest
    stop_run(pair.second.store, RUN)
    pair.go_on()
    assert pair.first.messages("a", Cancel) and pair.second.messages("b", Cancel)
    assert not pair.first.sends(down(FLEET, "b")) and not pair.second.sends(down(FLEET, "a"))


def test_a_run_that_begins_anew_between_two_looks_is_another(pair: Pair, tmp_path: Path) -> None:
    before = pair.second.order("b")
    stop_run(pair.second.store, RUN)
    delete_run(pair.second.store, RUN)
    config = msgspec.structs.replace(CONFIG, seed=CONFIG.seed + 1)
    start_run(pair.second.store, RUN, make_bundle(tmp_path / "another"), config)
    pair.first.notice()
    pair.go_on()
    assert pair.second.order("b").round == before.round == 1
    assert pair.second.order("b").seed != before.seed
    assert broadcast_bytes(pair.second, "b") == 0


def test_a_device_of_another_process_is_told_by_that_one_what_it_lacks(pair_of: Pairs) -> None:
    given.PLANS["b"] = lambda context, client: assigned(then=(Training(),), own_model=OwnModel())
    pair = pair_of(msgspec.structs.replace(CONFIG, strategy=given.NAME))
    pair.first.hello("a")
    pair.second.hello("b", codecs=("phases",))
    pair.go_on()
    (lacks,) = (one for one in pair.first.core.signals if isinstance(one, LeftOut))
    for process in (pair.first, pair.second):
        process.effects += process.core.left_out(lacks, process.now)
    (note,) = pair.second.notes(logging.WARNING)
    assert note == "run run has no work for b: it lacks own_model"
    assert pair.second.messages("b", Refusal) == [Refusal("unable", note)]
    assert not pair.first.sends(down(FLEET, "b")) and not pair.first.notes(logging.WARNING)


@pytest.mark.parametrize("returns", [True, False])
def test_who_has_come_back_or_moved_on_is_not_waited_for_again(pair: Pair, returns: bool) -> None:
    """The shard of a comes to a process, which then gains another before it gives up waiting."""
    take(pair.first, OURS - {shard_of("a")}, leads=True)
    take(pair.second, THEIRS | {shard_of("a")})
    assert pair.second.core.devices.returning == {"a"}
    if returns:
        pair.second.hello("a")
    holder = THEIRS | {shard_of("a")} if returns else THEIRS
    take(pair.second, holder)
    take(pair.second, holder | {"00"})
    assert not pair.second.core.devices.returning
    pair.second.poll(RETURN_S)
    pair.go_on()
    assert "a" in pair.first.store.online()


def test_a_new_leader_waits_for_devices_that_it_takes_over_and_not_for_ever(pair: Pair) -> None:
    pair.second.answer("b")
    take(pair.first, frozenset())
    take(pair.second, OURS | THEIRS, leads=True)
    for seconds, phase in ((RETURN_S - 1, Phase.OPEN), (1, Phase.OFFLINE)):
        pair.second.poll(seconds)
        assert pair.second.core.open[RUN].phase == phase


@pytest.mark.parametrize("read", ["sessions", "changed_devices", "devices_named"])
def test_who_came_while_a_read_failed_is_seen_by_the_next(pair_of: Pairs, read: str) -> None:
    pair = pair_of(CONFIG)
    pair.go_on()
    pair.second.hello("b")
    with failing(pair.first.store, read, StorageError("connection lost")):
        pair.go_on()
    pair.first.now += DISK_RETRY_S
    pair.go_on()
    pair.first.hello("a")
    assert set(pair.first.core.open[RUN].orders) == {"a", "b"}


def test_a_selected_device_of_another_process_that_no_longer_waits_is_drawn(pair_of: Pairs) -> None:
    """Its hello is stored at once, its session up to a second later, and the leader looks in between."""
    pair = pair_of(msgspec.structs.replace(CONFIG, cohort=CohortConfig("num_train>1")))
    pair.first.hello("a")
    pair.second.say("b", a_hello("b", waits="charging"))
    pair.go_on()
    assert RUN not in pair.first.core.open
    pair.second.say("b", a_hello("b"))
    pair.first.notice()
    pair.go_on()
    assert pair.second.order("b")


def test_a_device_of_either_process_that_loses_a_final_model_gets_it_again(pair_of: Pairs) -> None:
    pair = pair_of(msgspec.structs.replace(CONFIG, num_rounds=1, evaluate=False))
    homes = {"a": pair.first, "b": pair.second}

    def held() -> set[tuple[str, ...] | None]:
        rows = pair.second.store.devices_named(homes).values()
        return {hello.holds for row in rows if (hello := row.read_hello()) is not None}

    for name, process in homes.items():
        process.hello(name)
    pair.go_on()
    for name, process in homes.items():
        process.answer(name)
    pair.go_on()
    for count in (1, 2, 3):
        for name, process in homes.items():
            process.say(name, a_hello(f"{name}{count}", holds=()))
        assert held() == {()}
        pair.go_on()
        for process in homes.values():
            process.poll(RESEND_S)
        for name, process in homes.items():
            served = [order.round for order in process.messages(name, Order)].count(2)
            assert served == 2 * count, name  # and once more, as it did not answer
            process.answer(name)
        pair.go_on()
        assert held() == {(RUN,)}


def test_only_bytes_that_moved_are_written_for_the_leader_and_nothing_waits(pair: Pair) -> None:
    take(pair.first, frozenset(), leads=True)
    take(pair.second, OURS | THEIRS)
    pair.second.hello("a", "b")
    pair.go_on()
    written, flushed, store = list[str](), list[bool](), pair.second.store
    save, begin = store._save_traffic, store._db.begin

    def saving(db: Dialect, rows: Sequence[TrafficRow]) -> None:
        written.extend(row.device for row in rows)
        save(db, rows)

    def beginning(*, alone: bool = False, flush: bool = True) -> None:
        flushed.append(flush)
        begin(alone=alone, flush=flush)

    vars(store)["_save_traffic"], vars(store._db)["begin"] = saving, beginning
    for name in "aab":
        pair.second.hello(name)
        pair.recorders[0].flush(pair.second.now)
    assert written == ["a", "a", "b"] and not any(flushed)
    rows = {row.device: row.up for row in pair.first.store.traffic(RUN, 1)}
    assert rows["a"] > rows["b"] > 0


@pytest.mark.parametrize("read", ["online", "receipts", "next_incarnation"])
def test_shards_with_unreadable_rows_are_taken_at_the_next_try(pair: Pair, read: str) -> None:
    process, gained = pair.second, frozenset({shard_of("a")})
    with failing(process.store, read, StorageError("connection lost")), pytest.raises(StorageError):
        take(process, gained)
    assert "b" not in process.core.devices  # what goes is gone, whatever becomes of what comes
    take(process, gained)
    assert process.sends(hint(FLEET, shard_of("a")))
    assert process.core.devices.returning == {"a"}
    process.hello("a")
    assert process.order("a")


def test_a_broadcast_leaves_as_soon_as_the_devices_of_all_processes_have_asked(pair: Pair) -> None:
    """Whoever asks last, and whether the process that sends has devices of its own or not."""
    model = pair.first.order("a").model
    missing = to_bitmap(range(model.count), model.count)
    pair.first.core.ingest.broadcast.others = 1
    pair.first.say("a", Get(RUN, 1, missing), model.transfer)
    pair.first.poll()
    assert not pair.first.chunks(blob(FLEET, model.transfer))
    pair.second.say("b", Get(RUN, 1, missing), model.transfer)
    pair.second.poll()
    (wanted,) = (one for one in pair.second.core.signals if isinstance(one, Lacking))
    for lacking in (Lacking(bytes(32), wanted.chunk_bytes, wanted.missing), wanted):
        assert not pair.first.core.wanted(2, lacking, pair.first.now)
    pair.first.poll()
    assert len(pair.first.chunks(blob(FLEET, model.transfer))) == model.count
    sent = sum(len(send.payload) for send in pair.first.sends(blob(FLEET, model.transfer)))
    assert broadcast_bytes(pair.first, "a") == broadcast_bytes(pair.second, "b") == sent
    take(pair.first, frozenset(), leads=True)
    pair.first.core.ingest.broadcast.others = 2
    for asker, times in ((2, 1), (3, 2)):
        pair.first.core.wanted(asker, wanted, pair.first.now)
        pair.first.poll()
        assert len(pair.first.chunks(blob(FLEET, model.transfer))) == times * model.count


def test_the_leader_decodes_an_update_once(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []

    def counted(data: bytes, size: int, context: bytes | None = None) -> SparseVector:
        decoded.append(len(data))
        return decode(data, size, context)

    pair.first.answer("a")
    pair.second.offer("b", small_update(pair.second.order("b"), seed=2))
    monkeypatch.setattr(vectors, "decode", counted)
    pair.go_on()
    assert pair.first.order("a").round == 2 and len(decoded) == 1


def test_of_answers_a_leader_elsewhere_is_told_the_last_that_is_due(pair: Pair) -> None:
    """It finds the others by itself, twice a second; told of each it would look as often."""
    take(pair.first, frozenset(), leads=True)
    take(pair.second, OURS | THEIRS)
    pair.second.hello("a", "b")
    pair.go_on()
    pair.second.core.signals.clear()
    pair.second.answer("a")
    assert Changed() not in pair.second.core.signals
    pair.second.answer("b")
    assert Changed() in pair.second.core.signals


def test_a_leader_reads_the_row_of_another_processes_device_once(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who owes an answer and is away is looked up whenever another process has written something.

    It is read once more after too many others.
    """
    pair.second.say("b", Goodbye(a_hello("b").nonce))
    pair.go_on()
    take(pair.first, OURS)
    read, device = list[str](), pair.first.store.device

    def counted(name: str) -> DeviceRow | None:
        read.append(name)
        return device(name)

    monkeypatch.setattr(pair.first.store, "device", counted)
    take(pair.first, OURS, leads=True)
    for _ in range(3):
        pair.second.store.save_sessions([SessionRow("b")])
        pair.first.load()
    assert read.count("b") == 1
    monkeypatch.setattr("sedge_cloud.rounds.elsewhere.MOST_AWAY", 0)
    pair.second.store.save_sessions([SessionRow("b")])
    pair.first.load()
    assert read.count("b") == 2
