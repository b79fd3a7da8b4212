"""What the agent writes down for people, and what ``sedge-edge status`` makes of it."""

import json
import re
from pathlib import Path

import pytest
from tests.edge.harness import report_of
from tests.edge.home import make_home, put_models

from sedge_edge.__main__ import main
from sedge_edge.diary import DAY_S, FILE, MOST_RESULTS, WRITE_EVERY_S, Diary, Page, read_diary
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import EVALUATE

NOW = 20_000.5 * DAY_S


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


def test_status_tells_what_the_agent_lived_through(
    tmp_path: Path, tiny: tuple[bytes, Theta], capsys: pytest.CaptureFixture[str]
) -> None:
    config = make_home(tmp_path)
    put_models(config, tiny[0], {"first": tiny[1]})
    with config.open("a") as file:
        file.write("[gates]\nmin_free_memory_mb = 1\n")
    diary = Diary(tmp_path / "state")
    diary.link(True, "mqtt://broker")
    diary.bytes(down=2_500_000)
    diary.bytes(up=1500)
    assert (
        diary.done(report_of(4))
        == "run first, round 4 (train) is done: 0.2500 before, 0.5000 after"
    )
    diary.done(report_of(5, EVALUATE))
    diary.error("the coordinator refuses: revoked: by its operator")
    with lock_folder(tmp_path / "state"):
        assert main(["status", "-c", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "fleet home: running, last started" in lines[0]
    assert lines[1].startswith("connected to mqtt://broker since ")
    assert lines[2].startswith("last message from the fleet: ")
    assert lines[3].startswith("gate min_free_memory_mb: open (")
    assert "run first, round 4 (train): 0.2500 before, 0.5000 after" in lines
    assert "run first, round 5 (evaluate): 0.5000" in lines
    (error,) = [line for line in lines if line.startswith("last error, ")]
    assert error.endswith("UTC: the coordinator refuses: revoked: by its operator")
    assert re.fullmatch(r"disk: \d+\.\d kB used, \d+\.\d [MG]B free", lines[-2])
    assert lines[-1] == "today: 1.5 kB sent, 2.5 MB received"
    diary.close()
    assert main(["status", "--json", "-c", str(config)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["running"], found["link"]["connected"], found["link"]["reason"]) == (
        False, False, "stopped",
    )  # fmt: skip
    assert [one["round"] for one in found["results"]] == [4, 5] and found["disk"]["used"] > 0


def test_what_is_kept_has_bounds_and_a_day_begins_anew(tmp_path: Path) -> None:
    clock = Clock()
    diary = Diary(tmp_path, clock)
    for number in range(MOST_RESULTS + 3):
        diary.done(report_of(number))
    diary.bytes(up=7)
    assert read_diary(tmp_path).up == 0, "bytes alone are written now and then"
    clock.now += WRITE_EVERY_S
    diary.bytes(up=7)
    page = read_diary(tmp_path)
    assert page.up == 14 and [one.round for one in page.results] == [*range(3, MOST_RESULTS + 3)]
    clock.now += DAY_S
    diary.bytes(down=1)
    assert (Diary(tmp_path).page.up, Diary(tmp_path).page.down) == (0, 1)


@pytest.mark.parametrize("data", [b"", b"{", b'{"results": 3}'])
def test_a_damaged_diary_is_an_empty_one(tmp_path: Path, data: bytes) -> None:
    (tmp_path / FILE).write_bytes(data)
    assert Diary(tmp_path).page == Page()


def test_a_disk_that_refuses_is_passed_over(tmp_path: Path) -> None:
    diary = Diary(tmp_path / "nowhere")
    diary.error("an error")
    assert diary.page.error == "an error" and not (tmp_path / "nowhere").exists()
