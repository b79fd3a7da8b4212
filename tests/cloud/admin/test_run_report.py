"""What ``run show`` says of a round besides its accuracy; test_cloud_main.py plays the command."""

import json
from pathlib import Path

import msgspec
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import CONFIG, RUN, a_hello, fetch_model

from sedge_cloud.admin.run_report import run_report
from sedge_cloud.coding import BroadcastConfig, PatchConfig
from sedge_protocol.codec import ValueCoding
from sedge_protocol.wire.messages import Decline


def test_reasons_and_bytes_of_a_round(tmp_path: Path) -> None:
    """One update of no use, one decline; a device that lost its model, and one new."""
    config = msgspec.structs.replace(CONFIG, broadcast=BroadcastConfig(ValueCoding.INT8))
    seen = Seen(tmp_path / "cloud", config)
    cloud = seen.cloud
    cloud.hello("a", "b")
    cloud.offer("a", b"x" * 100)
    cloud.say("c", a_hello("c"))
    cloud.answer("b")
    fetch_model(cloud, "b", "c")
    cloud.say("c", Decline(RUN, 2, "TrainingDiverged", "NaN"))
    cloud.answer("a", "b")
    seen.record()
    narrow = list(run_report(seen.reader, RUN, as_json=False, width=70))
    assert max(map(len, narrow[:6])) <= 70 and not any("received" in line for line in narrow)
    lines = list(run_report(seen.reader, RUN, as_json=False))
    (counted,) = [line for line in lines if line.startswith("since its start, the coordinator")]
    assert counted.endswith("declined 1, rejected 1, updates 3, whole_models 1")
    lines = lines[: lines.index(next(line for line in lines if " open" in line))]
    assert [line.strip() for line in lines if line.startswith("      ")] == [
        lines[2].strip(), "rejected: malformed 1", lines[5].strip(),
        "fetched the whole model instead of changes: 1", "declined: TrainingDiverged 1",
        "c: TrainingDiverged: NaN",
    ]  # fmt: skip
    assert [lines[at].split()[:2] for at in (2, 5)] == [["new", "2"], ["new", "1"]]
    one, two, current = map(json.loads, run_report(seen.reader, RUN, as_json=True))
    assert (current["round"], current["state"], len(current["waiting"])) == (3, "open", 3)
    assert one["opened"] <= one["closed"] and one["state"] == "closed"
    assert (one["newcomers"], two["newcomers"]) == (["a", "b"], ["c"])
    assert list(one["rejects"]) == ["a"] and list(two["declines"]) == ["c"]
    assert [t["whole_model"] for t in two["traffic"].values()] == [False, True, False]
    assert two["link"]["up"] > 0 < two["link"]["down"]
    assert lines[1].split()[-2:] == [str(one["link"][way]) for way in ("up", "down")]


def test_who_waits_before_beginning_is_named_with_the_reason(tmp_path: Path) -> None:
    seen = Seen(tmp_path / "cloud")
    cloud = seen.cloud
    cloud.hello("a", "b")
    for device, why in {"a": "hot\n\x1b[2J", "b": "quiet hours", "c": "not asked"}.items():
        cloud.say(device, a_hello(device, waits=why))

    def waiting() -> tuple[list[str], list[str]]:
        """Of the open round, and of the fleet."""
        seen.record()
        lines = [line.strip() for line in run_report(seen.reader, RUN, as_json=False)]
        here = lines.index("what is wrong:")
        first, last = ([x for x in part if "waits" in x] for part in (lines[:here], lines[here:]))
        return first, last

    hot, quiet = "a waits: hot\\n\\x1b[2J (0 s)", "b waits: quiet hours (0 s)"
    assert waiting()[0] == [hot, quiet]
    assert [line.split()[1] for line in waiting()[1]] == ["run:", "a:", "b:", "c:"]
    cloud.say("b", a_hello("b"))
    assert [line.split()[0] for line in waiting()[0]] == ["a"]


def test_who_gets_no_work_is_named_with_what_is_lacking(tmp_path: Path) -> None:
    """What the strategy needs, too: so far only what the run file needs was."""
    options = {"strategy": "fedpurin", "patch": PatchConfig(values=ValueCoding.INT4)}
    seen = Seen(tmp_path / "cloud", msgspec.structs.replace(CONFIG, **options), "ab")
    cloud = seen.cloud
    cloud.say("a", a_hello("a", codecs=("remember",)))
    cloud.say("b", a_hello("b", codecs=("remember", "select", "int4")))
    seen.record()
    _, why, line, *_ = run_report(seen.reader, RUN, as_json=False)
    assert why == "running: needs 2 devices online, 1 is; 1 more cannot do its work"
    assert line == "no work for a: it lacks int4, select"
