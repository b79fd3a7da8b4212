"""Several ``serve`` on one PostgreSQL, one object store and one Mosquitto: the bytes of a single one."""

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tools.bench.parts.real_fleet import RealFleet, command, wait_until
from tools.bench.parts.servers import Servers

from sedge_cloud.config import load_cloud
from sedge_cloud.store.opening import open_store
from sedge_cloud.store.schema import LEADER

pytestmark = pytest.mark.fleet
DEVICES, ROUNDS = 12, 4
CLIENT = """\
import numpy as np


def initial():
    return [np.zeros((64, 200), np.float32), np.zeros(200, np.float32)]


def forward(parameters, x):
    scores = x @ parameters[0] + parameters[1]
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def fit(parameters, examples, settings):
    x, count = examples.inputs, len(examples.targets)
    error = (forward(parameters, x) - np.eye(200)[examples.targets]) / count
    parameters[0] -= settings["learning_rate"] * (x.T @ error)
    parameters[1] -= settings["learning_rate"] * error.sum(axis=0)
    return parameters, count, {}


def evaluate(parameters, examples):
    chances = forward(parameters, examples.inputs)
    loss = -np.log(chances[np.arange(len(chances)), examples.targets] + 1e-9).mean()
    return loss, len(chances), {"accuracy": (chances.argmax(axis=1) == examples.targets).mean()}
"""
# A round needs every device, so that its bytes do not depend on who is late.
RUN = f"""\
strategy = "fedobp"
num_rounds = {ROUNDS}
evaluate = false
min_available_devices = {DEVICES}
min_train_devices = {DEVICES}
min_updates = {DEVICES}
deadline_s = 600
offline_grace_s = 600
options = {{ quantile = 0.99 }}
[training]
learning_rate = 0.5
[codec]
values = "fp32"
fraction = 1.0
[broadcast]
values = "fp32"
fraction = 1.0
"""
STORE = """
[store]
url = "{url}"
[blobs]
url = "{blobs.url}"
endpoint = "{blobs.endpoint}"
region = "{blobs.region}"
key_id = "{blobs.key_id}"
secret_file = "{blobs.secret_file}"
"""


class Many(RealFleet):
    """A fleet that any number of processes serve, each with a state folder of its own."""

    def __init__(self, folder: Path, servers: Servers | None) -> None:
        super().__init__(folder)
        if servers is not None:
            rows, blobs = servers.place(folder / "state")
            with (folder / "cloud.toml").open("a") as config:
                config.write(STORE.format(url=rows.url, blobs=blobs))
        devices = folder / "devices"
        self.cloud("device", "add", "d", "--count", str(DEVICES), "--out", str(devices))
        self.processes["broker"].send_signal(signal.SIGHUP)
        for number, home in enumerate(sorted(devices.iterdir())):
            rng = np.random.default_rng(number)
            x = rng.normal(0, 1, (50, 64)).astype(np.float32)
            np.savez(home / "train.npz", x=x, y=rng.integers(0, 200, 50))
        (devices / "client.py").write_text(CLIENT)

    def begin(self, bundle: Path) -> None:
        self.start_run(bundle, RUN)
        devices = str(self.folder / "devices")
        self.start(
            "agents", [sys.executable, str(Path(__file__).with_name("many_agents.py")), devices]
        )

    def serve(self, name: str) -> None:
        text = (self.folder / "cloud.toml").read_text()
        home = self.folder / name
        home.mkdir(exist_ok=True)
        config = self.folder / f"{name}.toml"
        config.write_text(text.replace('state_dir = "state"', f'state_dir = "{name}"'))
        self.start(name, [sys.executable, "-m", "sedge_cloud", "-c", str(config), "serve"])

    def shares(self) -> dict[str, int]:
        names = {self.processes[name].pid: name for name in self.processes}
        with closing(open_store(load_cloud(self.folder / "cloud.toml"))) as store:
            tokens = {row.token: names.get(row.pid, "") for row in store.processes()}
            counted = Counter(tokens.get(lease.token, "") for lease in store.leases()[:-1])
        return dict(counted)

    def leader(self) -> str:
        names = {self.processes[name].pid: name for name in self.processes}
        with closing(open_store(load_cloud(self.folder / "cloud.toml"))) as store:
            (lead,) = (lease.token for lease in store.leases() if lease.name == LEADER)
            return next(names.get(it.pid, "") for it in store.processes() if it.token == lead)

    def closed(self) -> int:
        with closing(open_store(load_cloud(self.folder / "cloud.toml"))) as store:
            return sum(row.summary is not None for row in store.rounds("run"))

    def model(self) -> str:
        """The hash of the last global model, and of whose updates it was made."""
        with closing(open_store(load_cloud(self.folder / "cloud.toml"))) as store:
            return max(store.rounds("run"), key=lambda row: row.round).model_hash.hex()


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    started = Servers()
    yield started
    started.close()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that every run begins with."""
    folder = tmp_path_factory.mktemp("bundle")
    (folder / "client.py").write_text(CLIENT)
    command(
        "sedge_export", "bundle", "client:initial", "--sample-shape", "64", "--batch-size", "16",
        "--num-classes", "200", "--name", "softmax", "--out", "bundle", folder=folder,
    )  # fmt: skip
    return folder / "bundle"


@pytest.fixture(scope="module")
def undisturbed(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model of a single process that nothing disturbs, on its own disk."""
    with closing(Many(tmp_path_factory.mktemp("single"), None)) as fleet:
        fleet.serve("state")
        fleet.begin(bundle)
        wait_until(lambda: fleet.closed() == ROUNDS, 90, "all rounds close")
        return fleet.model()


@pytest.fixture
def fleet(tmp_path: Path, servers: Servers) -> Iterator[Many]:
    with closing(Many(tmp_path, servers)) as fleet:
        yield fleet


def test_whoever_is_killed_or_stands_still_the_bytes_are_those_of_one(
    fleet: Many, bundle: Path, undisturbed: str
) -> None:
    """The leader is killed and not replaced; another process stands still until its lease is over."""
    names = ["one", "two", "three"]
    for name in names:
        fleet.serve(name)
    wait_until(lambda: sorted(fleet.shares().values()) == [21, 21, 22], 40, "they share evenly")
    fleet.begin(bundle)
    wait_until(lambda: fleet.closed() >= 1, 60, "a round closes")
    first = fleet.leader()
    fleet.kill(first)
    wait_until(lambda: sorted(fleet.shares().values()) == [32, 32], 30, "two go on")
    wait_until(lambda: fleet.closed() >= 2, 60, "a round closes")
    still = next(name for name in names if name not in (first, fleet.leader()))
    fleet.processes[still].send_signal(signal.SIGSTOP)
    wait_until(lambda: fleet.shares() == {fleet.leader(): 64}, 40, "one goes on")
    fleet.processes[still].send_signal(signal.SIGCONT)
    wait_until(lambda: sorted(fleet.shares().values()) == [32, 32], 40, "it is back")
    wait_until(lambda: fleet.closed() == ROUNDS, 90, "all rounds close")
    assert fleet.model() == undisturbed
    assert "another has replaced" in fleet.log(still)
    facts = json.loads(fleet.cloud("run", "watch", "--json").splitlines()[-1])["processes"]
    assert (
        sorted(it["shards"] for it in facts) == [32, 32] and sum(it["leads"] for it in facts) == 1
    )
    assert "Traceback" not in "".join(map(fleet.log, names))
    leader = fleet.leader()
    assert fleet.stop(leader) == 0
    assert fleet.shares() == {still: 64} and fleet.leader() == still
