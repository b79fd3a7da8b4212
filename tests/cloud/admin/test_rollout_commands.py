"""The commands of rollouts: what is typed becomes a plan, and its state is told."""

import json
from pathlib import Path

import pytest
from tests.cloud.helper import CONFIG, RUN, Cloud
from tests.cloud.rounds.test_rollouts import new_version

from sedge_cloud.__main__ import main
from sedge_cloud.admin.commands import seconds_of
from sedge_cloud.admin.rollout_commands import percent_of, phases_of
from sedge_protocol.errors import ConfigError


@pytest.mark.parametrize("text", ["", "1,", "0,1", "10,10", "10,1", "50,101", "nan", "a"])
def test_phases_that_do_not_grow_to_100_at_most_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="increasing percentages"):
        phases_of(text)


@pytest.mark.parametrize("text", ["", "h", "1", "1.5h", "-1h", "1w", "366d"])
def test_times_without_a_unit_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="such as 30m"):
        seconds_of("--hold", text)


def test_what_is_typed_is_what_is_meant() -> None:
    assert phases_of("1,10,100") == (0.01, 0.1, 1.0)
    assert [seconds_of("--hold", text) for text in ("0s", "90s", "2d")] == [0, 90, 172_800]
    with pytest.raises(ConfigError, match="--expires"):
        seconds_of("--expires", "0s", 1)
    with pytest.raises(ConfigError, match="from 0 to 100"):
        percent_of("--abort-at", 101)


def test_a_rollout_is_begun_looked_at_and_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Cloud(tmp_path, CONFIG).store.close()
    given = tmp_path / "cloud.toml"
    given.write_text('fleet = "bench"\nstate_dir = "state"\n[broker]\nurl = "mqtt://127.0.0.1"\n')
    new = str(new_version(tmp_path))
    assert main(["rollout", "start", RUN, new, "--phases", "50,100", "-c", str(given)]) == 0
    assert main(["rollout", "status", RUN, "-c", str(given)]) == 0
    for _ in range(2):
        assert main(["rollout", "rollback", RUN, "-c", str(given)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rollout 1 of run run begins with 1 device",
        "rollout 1: in_progress, phase 1 of 2 (50 %, 100 %), 1 device",
        "  succeeded 0, failed 0, waiting 1: a",
        "  phase 1: 0 of the 1 devices that it adds have trained, 1 offline, paused or not asked",
        "rollout 1 of run run is rolled back, order by order",
        "rollout 1 of run run is rolled back already: there is nothing to roll back",
    ]
    assert main(["rollout", "status", RUN, "--json", "-c", str(given)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["run"], told["state"], told["shares"]) == (RUN, "rolled_back", [0.5, 1.0])
    assert (told["failures"], told["awaited"], told["added"]) == ({}, [], None)
    assert main(["rollout", "rollback", "-c", str(given)]) == 2, "of settings there is none"
