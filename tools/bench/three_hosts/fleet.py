"""A fleet on several hosts: the files written by the product's commands, and a process for each part."""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tools.bench.parts.real_fleet import ENVIRONMENT, command
from tools.bench.parts.servers import Place, Servers
from tools.bench.three_hosts import client
from tools.bench.three_hosts.network import Network, Process
from tools.bench.three_hosts.watch import wait_for

from sedge_cloud.broker.child import find_mosquitto
from sedge_cloud.broker.ports import wait_until_accepting
from sedge_cloud.config import CloudConfig, load_cloud

ROOT = Path(__file__).parents[3]
HOSTS = ("host-1", "host-2", "host-3", "host-4")
BROKER, ROWS, OBJECTS, AGENTS = "broker", "rows", "objects", "agents"
RUNS = ("fedavg", "fedobp")
FLEET = "hosts"
PORT = 1883
START_S = 60.0
# Updates of the first run have several chunks; those of the second are small and fit in the offer. A round
# waits for every device and has no deadline, so its bytes do not depend on which devices are late.
_RUN = """\
strategy = "{strategy}"
num_rounds = 100000
min_available_devices = {devices}
fraction_train = {fraction}
min_train_devices = {asked}
min_updates = {asked}
deadline_s = 600000
offline_grace_s = 600000
{more}
[training]
learning_rate = 0.5
"""
_MORE = {
    "fedavg": '[codec]\nvalues = "fp32"\nfraction = 1.0\n[broadcast]\nvalues = "fp32"\nfraction = 1.0',
    "fedobp": "options = { quantile = 0.99 }",
}
# Restarts a process that fails, as sedge-cloud.service does.
_AGAIN = ("sh", "-c", 'until "$@"; do sleep 5; done', "sh")
_STORE = """
[store]
url = "{url}"
[blobs]
url = "{blobs.url}"
endpoint = "{blobs.endpoint}"
region = "{blobs.region}"
key_id = "{blobs.key_id}"
secret_file = "objects-secret"
"""


def open_servers(network: Network) -> Servers:
    """Start PostgreSQL and the object store, each on its own host."""
    hosts = {name: network.addresses.get(name) or network.add(name) for name in (ROWS, OBJECTS)}
    places = [Place(address, network.within(name)) for name, address in hosts.items()]
    return Servers(*places)


def make_bundle(folder: Path) -> Path:
    """Export the bundle that all runs start from. Returns its folder."""
    shutil.copy(Path(client.__file__), folder / "client.py")
    command(
        "sedge_export", "bundle", "client:initial", "--sample-shape", str(client.INPUTS), "--batch-size",
        "16", "--num-classes", str(client.CLASSES), "--name", "softmax", "--out", "bundle", folder=folder,
    )  # fmt: skip
    return folder / "bundle"


@dataclass
class Fleet:
    """A fleet's files and running processes.

    Without servers there is a single host, which keeps its state in a folder.
    """

    network: Network
    folder: Path
    hosts: tuple[str, ...]
    servers: Servers | None
    count: int

    def __post_init__(self) -> None:
        self.processes: dict[str, Process] = {}
        self.cpu_s = 0.0
        self.admin = self.folder / "admin"
        # In memory, because real devices are separate machines whose disks do not wait for one another.
        (self.folder / "devices").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", self.folder / "devices"], check=True)
        self.broker = self.network.addresses[BROKER]
        command("sedge_cloud", "init", str(self.admin), "--fleet", FLEET,
                "--url", f"mqtt://{self.broker}:{PORT}")  # fmt: skip
        if self.servers is not None:
            self._write_store(self.servers)
        self.cloud(
            "device", "add", "d", "--count", str(self.count), "--out", str(self.folder / "devices")
        )
        for number, home in enumerate(sorted((self.folder / "devices").iterdir())):
            rng = np.random.default_rng(number)
            x = rng.normal(0, 1, (50, client.INPUTS)).astype(np.float32)
            np.savez(home / "train.npz", x=x, y=rng.integers(0, client.CLASSES, 50))
        shutil.copy(Path(client.__file__), self.folder / "devices" / "client.py")
        if self.servers is not None:
            for host in self.hosts:
                shutil.copytree(self.admin, self.home(host))

    def add(self, host: str) -> None:
        """Start a coordinator on another host, with the same files and command."""
        shutil.copytree(self.admin, self.home(host))
        self.start(host)

    def retire(self, host: str, seconds: float) -> None:
        """Shut down a coordinator. Raises ``TimeoutError`` if it still runs after ``seconds``."""
        process = self.processes.pop(host)
        process.end()
        wait_for(lambda: process.popen.poll() is not None, seconds, f"{host} stops")

    def _write_store(self, servers: Servers) -> None:
        rows, blobs = servers.place(self.folder / "state")
        shutil.copy(blobs.secret_file or "", self.admin / "objects-secret")
        with (self.admin / "cloud.toml").open("a") as config:
            config.write(_STORE.format(url=rows.url, blobs=blobs))

    @property
    def config(self) -> CloudConfig:
        """The configuration in cloud.toml."""
        return load_cloud(self.admin / "cloud.toml")

    def home(self, host: str) -> Path:
        """Return the folder that has a host's copy of cloud.toml.

        Without servers, it also has the state.
        """
        return self.admin if self.servers is None else self.folder / host

    def cloud(self, *words: str) -> str:
        """Run a ``sedge-cloud`` command, and return its output.

        Raises ``AssertionError`` if the command fails.
        """
        return command("sedge_cloud", "-c", str(self.admin / "cloud.toml"), *words)

    def begin(self, bundle: Path) -> None:
        """Start both runs, with all devices in each round."""
        for name in RUNS:
            self.begin_run(bundle, name, name, self.count)

    def begin_run(self, bundle: Path, name: str, strategy: str, asked: int) -> None:
        """Start a run with ``asked`` devices in each round."""
        text = _RUN.format(
            strategy=strategy, devices=self.count, asked=asked, fraction=asked / self.count,
            more=_MORE[strategy],
        )  # fmt: skip
        path = self.folder / f"{name}.toml"
        path.write_text(text)
        self.cloud("run", "start", name, "--bundle", str(bundle), "--run-file", str(path))

    def start(self, name: str) -> None:
        """Start a part of the fleet: the coordinator of the named host, the broker, or the agents."""
        if name == BROKER:
            mosquitto = find_mosquitto()
            assert mosquitto is not None, "no Mosquitto to start: apt-get install mosquitto"
            self._start(name, [mosquitto, "-c", str(self.admin / "mosquitto.conf")])
            process = self.processes[name].popen
            wait_until_accepting(self.broker, PORT, START_S, lambda: process.poll() is None)
        elif name == AGENTS:
            module = "tools.bench.three_hosts.agents"
            self._start(name, [sys.executable, "-m", module, str(self.folder / "devices")])
        else:
            config = str(self.home(name) / "cloud.toml")
            self._start(name, [*_AGAIN, sys.executable, "-m", "sedge_cloud", "-c", config, "serve"])

    def _start(self, name: str, words: list[str]) -> None:
        environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]])}
        self.processes[name] = self.network.start(name, words, self.log(name), environment)

    def start_all(self) -> None:
        """Start every part of the fleet."""
        for name in (BROKER, *self.hosts, AGENTS):
            self.start(name)

    def kill(self, name: str) -> None:
        """Kill a part with SIGKILL."""
        process = self.processes.pop(name)
        process.kill()
        self.cpu_s += process.cpu_s if name in self.hosts else 0.0

    def stop(self) -> None:
        """Kill every running process."""
        for name in list(self.processes):
            self.kill(name)

    def close(self) -> None:
        """Kill every running process, and unmount the devices' disks, which are in memory."""
        self.stop()
        subprocess.run(["umount", self.folder / "devices"], check=True)

    def log(self, name: str) -> Path:
        """Return the path of a part's log, which also has the output of earlier starts."""
        return self.folder / f"{name}.log"
