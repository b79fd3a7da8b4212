"""A run's whole life: its coordinator loses its disk and goes on from a backup, serves a newcomer, and the
model that it trained leaves.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.system.conftest import begin
from tests.system.test_processes import RUN, counted
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

from sedge_edge import Examples, split
from sedge_edge.config import load_config
from sedge_export.models import mlp
from sedge_protocol.host.model_files import read_tensors

pytestmark = pytest.mark.fleet

# So many that the run is not over before its backup is written.
ROUNDS = 30


def test_a_disk_is_lost_and_the_run_goes_on_to_its_end_and_beyond(
    fleet: RealFleet, small_bundle: Path
) -> None:
    begin(fleet, "pi-1", "pi-2")
    fleet.add_device("pi-3", 2)
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
    page = fleet.folder / "report.html"
    command(
        "sedge_emulate", "report", "-c", f"{fleet.folder}/cloud.toml", "run", "--out", str(page)
    )
    text = page.read_text()
    assert "fleet test on 2 devices" in text and "run (fedobp)" in text
    assert "Where the personal parameters sit" in text and "Its first round" in text


def test_what_is_exported_is_as_good_in_torch(fleet: RealFleet, small_bundle: Path) -> None:
    """The global model as in the evaluation round, a device's own as after its last training."""
    begin(fleet, "pi-1", "pi-2")
    text = RUN.format(rounds=3, epochs=5, values="fp32", fraction=1.0).replace("fedobp", "fedavg")
    fleet.start_run(small_bundle, text.replace("options = { quantile = 0.99 }", ""))
    wait_until(fleet.finished, 60, "the run ends")
    *_, last, evaluation = fleet.rounds()
    fleet.cloud("run", "export", "run", "--out", f"{fleet.folder}/global.pt")
    fleet.cloud("run", "export", "run", "--out", f"{fleet.folder}/global.safetensors")
    state = torch.load(fleet.folder / "global.pt", weights_only=True)
    same = load_file(fleet.folder / "global.safetensors")
    assert state.keys() == same.keys() and all(torch.equal(state[k], same[k]) for k in state)
    for part in evaluation.devices:
        assert accuracy(fleet, part.device, state) == pytest.approx(part.before, abs=1e-6)
        assert part.before > 0.5
    for part in last.devices:
        own = fleet.folder / f"{part.device}.pt"
        fleet.cloud("run", "export", "run", "--device", part.device, "--out", str(own))
        found = accuracy(fleet, part.device, torch.load(own, weights_only=True))
        assert found == pytest.approx(part.after, abs=1e-6)


def accuracy(fleet: RealFleet, device: str, state: dict[str, torch.Tensor]) -> float:
    """What a model is worth in torch on the examples that a device sets aside."""
    data = load_config(fleet.folder / device / "edge.toml").data
    with np.load(fleet.folder / device / "train.npz") as file:
        examples = Examples(file["x"], file["y"])
    _, test = split(examples, data.test_fraction, data.split_seed)
    model = mlp(64, 32, 10)
    model.load_state_dict(state)
    with torch.no_grad():
        labels = model(torch.from_numpy(test.inputs)).argmax(1)
    return float((labels == torch.from_numpy(test.targets)).double().mean())
