"""Of a fleet larger than a reader keeps, everything is still counted, found and named."""

from pathlib import Path

import pytest
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import a_hello

from sedge_cloud.facts.records import Fleet
from sedge_cloud.facts.selection import DeviceSelection
from sedge_cloud.outlets.page.actions import find
from sedge_cloud.outlets.page.html import status_page
from sedge_protocol.wire.messages import Goodbye

NAMES = [f"d{i}" for i in range(8)]


@pytest.fixture
def seen(tmp_path: Path, engine: str, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """Eight devices, of which a reader keeps three: d0 to d4 were online, d0 has left, d5 is revoked."""
    monkeypatch.setattr("sedge_cloud.facts.reader.MAX_DEVICES", 3)
    seen = Seen(tmp_path, devices=NAMES)
    seen.cloud.hello(*NAMES[:5])
    seen.cloud.say("d0", Goodbye(a_hello("d0").nonce))
    seen.cloud.store.revoke_device("d5")
    return seen


def named(seen: Seen, facts: Fleet, wanted: DeviceSelection) -> tuple[list[str], int]:
    """The ids on a page, and how many there are in all."""
    chosen, found = seen.reader.choose(facts, wanted)
    return [device.device for device in chosen], found


def test_every_device_is_counted_and_found(seen: Seen) -> None:
    facts = seen.facts()
    counted = {"online": 4, "offline": 1, "never": 2, "paused": 0, "revoked": 1, "unknown": 0}
    assert facts.states == counted
    assert (facts.online, facts.active, len(facts.devices) < 8) == (4, 7, True)
    assert named(seen, facts, DeviceSelection(limit=2, offset=2)) == (["d2", "d3"], 8)
    assert named(seen, facts, DeviceSelection(search="D7")) == (["d7"], 1)
    assert named(seen, facts, DeviceSelection(search="_")) == ([], 0)
    for state, names in (
        ("online", ["d1", "d2", "d3"]), ("offline", ["d0"]), ("never", ["d6", "d7"]),
        ("revoked", ["d5"]), ("unknown", []),
    ):  # fmt: skip
        chosen, _ = seen.reader.choose(facts, DeviceSelection(state=state))  # type: ignore[arg-type]
        assert [(d.device, d.state) for d in chosen] == [(name, state) for name in names]
    # Who never came stays so, and who was revoked.
    seen.cloud.store.pause(["d0", "d1", "d5", "d6"], 1.0)
    facts = seen.facts(later=20.0)
    assert facts.states == {**counted, "online": 3, "offline": 0, "paused": 2}
    assert named(seen, facts, DeviceSelection(state="paused")) == (["d0", "d1"], 2)
    assert named(seen, facts, DeviceSelection(state="online")) == (["d2", "d3", "d4"], 3)
    seen.cloud.store.resume(["d0", "d1", "d5", "d6"])
    silent = seen.facts(later=60.0, alive=False)
    assert silent.states["unknown"] == 5 and silent.online == 0
    assert named(seen, silent, DeviceSelection(state="unknown", limit=1)) == (["d0"], 5)


def test_a_round_names_all_that_it_waits_for(seen: Seen) -> None:
    (run,) = seen.facts().runs
    assert run.open is not None
    assert {waiting.device for waiting in run.open.waiting} == set(NAMES[:5])
    seen.round("d1", "d2")
    (run,) = seen.facts().runs
    assert run.open is not None
    assert {waiting.device for waiting in run.open.waiting} == {"d0", "d3", "d4"}


def test_the_page_shows_and_revokes_devices_that_are_not_kept(seen: Seen) -> None:
    facts = seen.facts()
    wanted = DeviceSelection(limit=60, search="d7")
    page = status_page(facts, None, wanted, seen.reader.choose(facts, wanted))
    assert 'id="device-d7"' in page and "<b>4</b> of 7 devices online" in page
    assert find("revoke", "d7", facts).name == "d7"
