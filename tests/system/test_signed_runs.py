"""A signed run with real processes: its coordinator never sees the key, and then changes the policy."""

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.system.conftest import run_text
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

from sedge_cloud.runs.run import StrategyState
from sedge_cloud.store.opening import open_folder

pytestmark = pytest.mark.fleet

RUN = run_text("fedavg", rounds=1000, devices=1)


def test_a_policy_that_was_tampered_with_is_refused_by_name(
    fleet: RealFleet, small_bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workstation = tmp_path_factory.mktemp("workstation")
    key, policy, run_file = (workstation / name for name in ("key.pem", "run.policy", "run.toml"))
    run_file.write_text(RUN)
    public = command("sedge_cloud", "key", "new", str(key)).split()[-1]
    with (fleet.folder / "cloud.toml").open("a") as config:
        config.write(f'\n[trust]\nkeys = ["{public}"]\n')
    fleet.add_device("pi-0", 0)
    described = ("run", "--bundle", str(small_bundle), "--run-file", str(run_file))
    command("sedge_cloud", "run", "sign", *described, "--key", str(key), "--out", str(policy))
    fleet.cloud("run", "start", *described, "--policy", str(policy))
    fleet.start_cloud()
    fleet.start_agent("pi-0")
    wait_until(lambda: bool(fleet.rounds()), 60, "a round of a signed run")
    fleet.kill("cloud")
    tamper(fleet)
    fleet.start_cloud()
    said = "'PolicyError: its policy does not match its signature by the key "
    wait_until(lambda: said in fleet.log("cloud"), 60, "the device refuses the policy by name")


def tamper(fleet: RealFleet) -> None:
    """Another last byte of what was signed, in the coordinator's own database."""
    with closing(open_folder(fleet.folder / "state")) as store:
        (row,) = store.runs()
        state = msgspec.msgpack.decode(row.state, type=StrategyState)
        changed = state.policy[:-1] + bytes([state.policy[-1] ^ 1])
        coded = msgspec.msgpack.encode(msgspec.structs.replace(state, policy=changed))
        with store.transaction():
            store._db.execute("UPDATE runs SET state = ?", (coded,))
