"""Measures how three frameworks recover if the server is killed in the middle of a round and restarted.

    python -m tools.bench killed [flower nvflare sedge]

Three clients run eight rounds of federated averaging, each of which takes two seconds of training. In the
middle of the third round, SIGKILL ends the server's process group, which does not include Flower's
ServerApp; two seconds later the same command restarts it on the same disk. Flower's SuperLink has a
database (``--database``); NVFlare runs its own ``poc``, whose start script supervises the server; Sedge is
one ``serve`` on SQLite. The report has the run's state after a minute and a half, the rounds closed by
then, and the seconds from the restart to the next closed round.

Flower and NVFlare are installed in separate environments in runs/; neither installs torch. Everything runs
in network namespaces, which needs root. The last line is JSON.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from tools.bench.frameworks import Framework, versions
from tools.bench.parts.environments import Unavailable, install
from tools.bench.three_hosts.fleet import AGENTS, BROKER, HOSTS, Fleet, make_bundle
from tools.bench.three_hosts.network import Network, isolated, missing
from tools.bench.three_hosts.watch import wait_for

from sedge_cloud.store.opening import open_store

HERE = Path(__file__).parent
ROUNDS, KILLED_IN = 8, 3
AWAY_S, WATCHED_S, PATIENCE_S = 2.0, 90.0, 300.0
FRAMEWORKS = {
    "flower": Framework("flower_app.py", (("flwr",),), ("flwr",)),
    "nvflare": Framework("nvflare_client.py", (("nvflare",),), ("nvflare",)),
}
PYPROJECT = f"""\
[project]
name = "killed"
version = "1.0.0"
description = "A server that is killed"
license = "Apache-2.0"
dependencies = []
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "killed.app:server"
clientapp = "killed.app:client"
[tool.flwr.app.config]
rounds = {ROUNDS}
"""
FLWR = """\
[superlink]
default = "local"
[superlink.local]
address = "127.0.0.1:8000"
insecure = true
"""
JOB = f"""\
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
recipe = NumpyFedAvgRecipe(
    name="killed", model=[0.0] * 1000, min_clients=3, num_rounds={ROUNDS}, train_script="nvflare_client.py",
)
recipe.export("job")
"""
ADMIN = """\
import os, sys
from nvflare.fuel.flare_api.flare_api import new_secure_session
session = new_secure_session("admin@nvidia.com", sys.argv[1])
if sys.argv[2] == "submit":
    print(session.submit_job(sys.argv[3]), flush=True)
else:
    print(*(job["status"] for job in session.list_jobs()), flush=True)
os._exit(0)  # a session's threads would go on
"""


@dataclass(frozen=True)
class Row:
    """A framework's result: run state, closed rounds, and seconds until the next round closed."""

    name: str
    version: str
    state: str
    closed: int
    seconds: float | None


class Processes:
    """Processes started from one folder, each in its own process group."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self._environment = {**os.environ, **environment}
        self._groups: dict[str, int] = {}

    def start(self, name: str, words: Sequence[str | Path], folder: Path | None = None) -> None:
        """Start a process. Its output is appended to its log."""
        with self.log(name).open("ab") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self._environment,
                cwd=folder or self.folder, process_group=0,
            )  # fmt: skip
        self._groups[name] = process.pid

    def kill(self, name: str) -> None:
        """Kill the whole process group with SIGKILL."""
        os.killpg(self._groups.pop(name), signal.SIGKILL)

    def ask(self, words: Sequence[str | Path]) -> str:
        """Return a command's output, including standard error."""
        done = subprocess.run(
            words, env=self._environment, cwd=self.folder, stdout=subprocess.PIPE, text=True,
            stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False,
        )  # fmt: skip
        return done.stdout

    def close(self) -> None:
        """Kill the processes that are still running."""
        for name in list(self._groups):
            self.kill(name)

    def log(self, name: str) -> Path:
        """Return the path of a process's log."""
        return self.folder / f"{name}.log"


def watched(
    closed: Callable[[], int], kill: Callable[[], None], start: Callable[[], None]
) -> float | None:
    """Kill the server in the middle of a round, and restart it.

    Returns the seconds from the restart until another round has closed, or None if none has.
    """
    wait_for(lambda: closed() >= KILLED_IN - 1, PATIENCE_S, "rounds close")
    time.sleep(1.0)
    before = closed()
    kill()
    time.sleep(AWAY_S)
    start()
    since, seconds = time.monotonic(), None
    while time.monotonic() < since + WATCHED_S and closed() < ROUNDS:
        time.sleep(0.2)
        if seconds is None and closed() > before:
            seconds = round(time.monotonic() - since, 1)
    return seconds


def flower(folder: Path, python: Path) -> tuple[str, int, float | None]:
    """Run a SuperLink with a database, three SuperNodes and an app. Returns the fields of a ``Row``."""
    package = folder / "app" / "killed"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    shutil.copy(HERE / "flower_app.py", package / "app.py")
    (folder / "app" / "pyproject.toml").write_text(PYPROJECT)
    (folder / "config.toml").write_text(FLWR)
    programs = python.parent
    environment = {
        "FLWR_HOME": str(folder), "FLWR_TELEMETRY_ENABLED": "0", "PYTHONUNBUFFERED": "1",
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    link: list[str | Path] = [programs / "flower-superlink", "--insecure", "--database", "state.db",
            "--disable-runtime-dependency-installation"]  # fmt: skip
    with closing(Processes(folder, environment)) as them:
        them.start("link", link)
        wait_for(
            lambda: "running on http" in them.log("link").read_text(), PATIENCE_S, "a SuperLink"
        )
        for number in range(3):
            words = ["--insecure", "--superlink", "127.0.0.1:8000", "--port", str(9100 + number)]
            them.start(f"node-{number}", [programs / "flower-supernode", *words])
        nodes = "Activated node_id"
        wait_for(lambda: them.log("link").read_text().count(nodes) == 3, PATIENCE_S, "SuperNodes")
        said = them.ask([programs / "flwr", "run", "app", "local"])
        if "Successfully started" not in said:
            raise Unavailable(said[-200:])

        def closed() -> int:
            found = re.findall(r"trains in round (\d+)", them.log("node-0").read_text())
            return max(map(int, found), default=1) - 1

        seconds = watched(closed, lambda: them.kill("link"), lambda: them.start("link", link))
        said = them.ask([programs / "flwr", "list", "local", "--format", "json"])
        state = re.findall(r'"status(?:-details)?": "([^"]*)"', said)
        return ", ".join(state) or said[-200:], closed(), seconds


def nvflare(folder: Path, python: Path) -> tuple[str, int, float | None]:
    """Run the server and three clients of ``nvflare poc``, and a job. Returns the fields of a ``Row``."""
    (folder / "job.py").write_text(JOB)
    (folder / "admin.py").write_text(ADMIN)
    shutil.copy(HERE / "nvflare_client.py", folder)
    environment = {
        "NVFLARE_POC_WORKSPACE": str(folder / "poc"), "HOME": str(folder),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    with closing(Processes(folder, environment)) as them:
        them.ask([python, "job.py"])
        them.ask([python.parent / "nvflare", "poc", "prepare", "-n", "3"])
        (kits,) = (folder / "poc").glob("*/prod_00")
        admin = str(kits / "admin@nvidia.com")

        def start_server() -> None:
            them.start("server", ["./startup/start.sh"], kits / "server")

        start_server()
        wait_for(lambda: "Server started" in them.log("server").read_text(), PATIENCE_S, "a server")
        for number in (1, 2, 3):
            them.start(f"site-{number}", ["./startup/start.sh"], kits / f"site-{number}")
        joined = "registered"
        wait_for(lambda: them.log("server").read_text().count(joined) >= 3, PATIENCE_S, "clients")
        them.ask([python, "admin.py", admin, "submit", str(folder / "job" / "killed")])

        def closed() -> int:
            found = re.findall(r"Round (\d+) started", them.log("server").read_text())
            return max(map(int, found), default=0)

        seconds = watched(closed, lambda: kill_below(kits / "server"), lambda: None)
        return them.ask([python, "admin.py", admin, "list"]).strip()[-200:], closed(), seconds


def kill_below(folder: Path) -> None:
    """Kill every Python program whose command names the folder, but not the script that supervises it."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode()
        except OSError:
            continue
        if str(folder) in words and "python" in words.partition("\0")[0]:
            os.kill(int(process.name), signal.SIGKILL)


def sedge(folder: Path, network: Network) -> tuple[str, int, float | None]:
    """Run one ``serve`` on SQLite and three agents. Returns the fields of a ``Row``."""
    for host in (HOSTS[0], BROKER, AGENTS):
        network.add(host)
    bundle = make_bundle(folder)
    with closing(Fleet(network, folder, HOSTS[:1], None, 3)) as fleet:
        fleet.start_all()
        fleet.begin_run(bundle, "fedavg", "fedavg", fleet.count)
        with closing(open_store(fleet.config)) as store:

            def closed() -> int:
                row = store.current_round("fedavg")
                return 0 if row is None else row.round - row.open

            host = HOSTS[0]
            seconds = watched(closed, lambda: fleet.kill(host), lambda: fleet.start(host))
            return store.runs()[0].status, closed(), seconds


def main() -> int:
    """Install the frameworks, kill their servers, and print a table and a line of JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", choices=["sedge", *FRAMEWORKS, []])
    parser.add_argument("--venvs", type=Path, default=Path("runs/servers"))
    options = parser.parse_args()
    if (why := missing()) is not None:
        print(f"killed: {why}", file=sys.stderr)
        return 2
    names = options.names or ["sedge", *FRAMEWORKS]
    rows = list[Row]()
    options.venvs.mkdir(parents=True, exist_ok=True)
    if os.environ.get("SEDGE_THREE_HOSTS") != "1":
        for name in set(names) & FRAMEWORKS.keys():
            install(FRAMEWORKS[name].packages, options.venvs / name)
    status = isolated("tools.bench.killed", sys.argv[1:])
    if status is not None:
        return status
    network = Network()
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"sedge-{name}-") as place:
            rows.append(killed(name, Path(place), options.venvs, network))
        print(f"{name:<10}{rows[-1].version:<10}{rows[-1].closed} rounds, then {rows[-1].seconds} s: "
              f"{rows[-1].state}", flush=True)  # fmt: skip
    print(json.dumps({"bench": "killed", "rounds": ROUNDS, "rows": [asdict(row) for row in rows]}))
    return 0


def killed(name: str, folder: Path, venvs: Path, network: Network) -> Row:
    """Return a framework's row. If it cannot be measured, the row says why."""
    version = ""
    try:
        if name not in FRAMEWORKS:
            return Row(name, "", *sedge(folder, network))
        python = venvs.absolute() / name / "bin" / "python"
        version = versions(python, FRAMEWORKS[name])[FRAMEWORKS[name].report[0]]
        play = {"flower": flower, "nvflare": nvflare}[name]
        return Row(name, version, *play(folder, python))
    except (TimeoutError, Unavailable, OSError, subprocess.SubprocessError) as exc:
        return Row(name, version, f"not measured: {exc}", 0, None)


if __name__ == "__main__":
    raise SystemExit(main())
