"""The report of a real fleet's runs: the figures of its store, and nothing that no store knows.

A whole run of real processes is reported on in tests/system/test_model_life.py.
"""

from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import CONFIG, FLEET, LAYOUT, RUN, report_for, small_update
from tests.cloud.stores import open_store

from sedge_cloud.admin.runs import start_run
from sedge_cloud.facts.reader import Reader
from sedge_emulate.report.page import page
from sedge_emulate.report.stored import stored_result
from sedge_emulate.result import Result
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.messages import Decline
from sedge_protocol.wire.update import encode_update

OTHER = "other"


def worth(seen: Seen, name: str, before: float) -> None:
    """A device answers its order without a change, having measured this."""
    order = seen.cloud.order(name)
    report = report_for(order)
    report = replace(report, before=replace(report.before, metric=before))
    payload = small_update(order)[len(encode_update(report_for(order), b"")) :]
    seen.cloud.offer(name, encode_update(report, payload))


@pytest.fixture
def seen(tmp_path: Path) -> Seen:
    """A run of two rounds and a final evaluation, and another one after it; c declines the second round."""
    config = replace(CONFIG, strategy="fedobp", options={"quantile": "paper"})
    seen = Seen(tmp_path, config, "abc")
    seen.cloud.hello()
    seen.cloud.now += 1
    seen.round("a", "b", "c")
    seen.cloud.now += 60
    seen.cloud.say("c", Decline(RUN, 2, "no_disk", ""))
    seen.round("a", "b")
    for name, before in (("a", 0.5), ("b", 0.9)):
        worth(seen, name, before)
    seen.cloud.say("c", Decline(RUN, 3, "no_disk", ""))
    seen.round()
    assert seen.facts().runs[0].status == "finished"
    with closing(open_store(seen.state)) as beside:  # as the command line does
        start_run(beside, OTHER, seen.cloud.bundle, CONFIG)
    seen.cloud.load()
    seen.cloud.poll()
    seen.round("a", "b", "c")
    return seen


def of(seen: Seen, *names: str) -> Result:
    """The result of these runs."""
    return stored_result(seen.reader, names, "sedge-emulate report …")


def test_the_figures_are_the_stores(seen: Seen) -> None:
    result = of(seen, RUN, OTHER)
    assert (result.fleet, result.devices) == ("bench", 3)
    assert (result.model.name, result.model.dense_bytes) == ("bench", 4 * LAYOUT.size)
    one, other = result.strategies
    assert (one.name, other.name) == ("run (fedobp)", "other (fedavg)")
    facts = seen.facts().runs[0].rounds
    first, second = one.rounds  # the evaluation is no round of training
    assert [r.num_updates for r in one.rounds] == [3, 2]
    assert (first.before_mean, first.before_worst, first.after_worst) == (0.25, 0.25, 0.75)
    assert (first.newcomers, first.newcomer_up) == (3, first.bytes_up)
    assert (second.newcomers, second.newcomer_up) == (0, 0)
    assert second.late_devices == ["c"] and not first.late_devices
    assert [(r.bytes_up, r.bytes_down) for r in one.rounds] == [(f.up, f.down) for f in facts[:2]]
    assert first.bytes_up > 0 and first.bytes_down > 0
    assert 60 <= second.seconds < 70 and second.opened_s >= first.closed_s > 0
    assert one.bytes.device_up == sum(f.up for f in facts)
    # Each device's last round: the evaluation of a and b, the first round of c.
    assert [(d.device, d.before, d.num_test) for d in one.devices] == [
        ("a", 0.5, 10), ("b", 0.9, 10), ("c", 0.25, 10),
    ]  # fmt: skip
    assert (one.before.worst_tenth, one.before.max) == (0.25, 0.9)
    assert [d.late for d in one.devices] == [0, 0, 1]
    assert len(other.rounds) == 1
    assert not other.remarks
    (said,) = one.remarks
    assert said.startswith("fedobp: quantile 0.99993 of 12,000 elements keeps at most 1 personal")
    assert said in page(result)


def test_the_page_leaves_out_what_no_store_knows(seen: Seen) -> None:
    text = page(of(seen, RUN, OTHER))
    there = "fleet bench on 3 devices", "run (fedobp)", "other (fedavg)", "run.seed", "Who was late"
    absent = ["reboots", "sent again", "classes", "Link", "workers", "Machine", "Data<"]
    absent += ["final evaluation", "Coordinator, a round"]
    assert [words for words in there if words not in text] == []
    assert [words for words in absent if words in text] == []


def test_rounds_that_were_thinned_out_have_their_figures(seen: Seen) -> None:
    before = of(seen, RUN).strategies[0].rounds
    seen.cloud.store.delete_old_rows(RUN, 1)
    later = Reader(FLEET, seen.state, seen.reader.store)  # which has not read them before
    first, second = stored_result(later, [RUN], "sedge-emulate report …").strategies[0].rounds
    assert first == before[0] and first.bytes_up > 0 and first.newcomers == 3
    assert (second.num_updates, second.newcomers) == (2, 0)


def test_runs_that_have_no_report(seen: Seen, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="found 'none', expected the name of a run"):
        of(seen, "none")
    start_run(seen.cloud.store, "empty", seen.cloud.bundle, CONFIG)
    with pytest.raises(ConfigError, match="found 'empty', expected a run with a closed round"):
        of(seen, RUN, "empty")
