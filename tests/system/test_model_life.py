"""A coordinator loses its disk, goes on from a backup behind its devices, and serves a newcomer."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.system.harness import RealFleet, command, wait_until
from tests.system.test_processes import RUN, counted

from sedge_protocol.host.model_files import read_tensors

pytestmark = pytest.mark.fleet

# So many that the run is not over before its backup is written.
ROUNDS = 30


def test_a_disk_is_lost_and_the_run_goes_on_to_its_end_and_beyond(
    fleet: RealFleet, small_bundle: Path
) -> None:
    fleet.start_cloud()
    for seed, device in enumerate(("pi-1", "pi-2", "pi-3")):
        fleet.add_device(device, seed)
    for device in ("pi-1", "pi-2"):
        fleet.start_agent(device)
    fleet.start_run(small_bundle, RUN.format(rounds=ROUNDS, epochs=40, values="fp32", fraction=1.0))
    wait_until(lambda: len(fleet.rounds()) >= 2, 60, "two rounds close")
    backup = fleet.folder / "b.tar"
    said = fleet.cloud("backup", str(backup))
    held = counted(fleet)  # what had its receipt now had it then, or a moment later
    begun = int(said.split("run run: running, ")[1].split()[0])
    wait_until(lambda: len(fleet.rounds()) >= begun + 2, 60, "the devices are ahead")
    fleet.kill("cloud")
    shutil.rmtree(fleet.folder / "state")
    assert f"run run: running, {begun} rounds closed" in fleet.cloud("restore", str(backup))
    kept = counted(fleet)
    closed = {(number, device) for number in range(1, begun + 1) for device in ("pi-1", "pi-2")}
    assert closed <= set(kept) <= set(held)
    fleet.start_cloud()
    wait_until(fleet.finished, 180, "the run ends")
    assert [r.round for r in fleet.rounds()] == list(range(1, ROUNDS + 2))
    expected = {(number, device) for number in range(1, ROUNDS + 2) for device in ("pi-1", "pi-2")}
    assert counted(fleet) == dict.fromkeys(expected, 1)
    assert fleet.rounds()[-1].before > 0.8
    newcomer = fleet.folder / "pi-3"
    fleet.start_agent("pi-3")
    wait_until(
        lambda: (ROUNDS + 2, "pi-3") in counted(fleet), 60, "the newcomer has trained its own model"
    )
    wait_until(
        lambda: "pending" not in command("sedge_edge", "-c", f"{newcomer}/edge.toml", "status"),
        20,
        "its receipt",
    )
    assert fleet.stop("pi-3") == 0
    config = f"{newcomer}/edge.toml"
    assert "has a personal model" in command("sedge_edge", "-c", config, "status")
    command("sedge_edge", "-c", config, "export", f"{newcomer}/own.npz")
    fleet.cloud("run", "export", "run", "--device", "pi-3", "--out", f"{newcomer}/cloud.npz")
    own, seen = (read_tensors(newcomer / name) for name in ("own.npz", "cloud.npz"))
    for name, values in own.items():
        both = values.astype(np.float32), seen[name].astype(np.float32)
        np.testing.assert_allclose(*both, rtol=1e-4, atol=1e-5)
    fleet.cloud("run", "resume", "run", "--rounds", str(ROUNDS + 1))
    wait_until(
        lambda: [r.round for r in fleet.rounds()][-1] == ROUNDS + 4,
        60,
        "the extended run ends again",
    )
    assert [r.task for r in fleet.rounds()][-2:] == ["train", "evaluate"]
