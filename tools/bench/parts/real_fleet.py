"""Runs and kills real processes: Mosquitto, ``sedge-cloud serve`` and ``sedge-edge run``."""

import getpass
import io
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from threading import Lock

import msgspec
import numpy as np

from sedge_cloud.__main__ import main
from sedge_cloud.admin.service_files import ServicePaths, write_service_files
from sedge_cloud.admin.templates import MOSQUITTO_CONF, PID_FILE
from sedge_cloud.admin.trial import RELOAD
from sedge_cloud.broker.child import find_mosquitto
from sedge_cloud.broker.ports import LOOPBACK, wait_until_accepting
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import Summary
from sedge_emulate.data.datasets import Dataset, digits
from sedge_protocol.errors import LinkError
from sedge_protocol.wire.messages import Hello

_PRINTING = Lock()
# One thread per process, because several processes share two cores.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# A script that runs ``sedge-edge`` as if the machine had ``pages`` pages of memory.
OTHER_MACHINE = """\
import os, sys
real = os.sysconf
os.sysconf = lambda name: {pages} if name == "SC_PHYS_PAGES" else real(name)
from sedge_edge.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
# A script that runs ``sedge-edge`` as if the distribution sedge-executorch were installed.
WITH_EXECUTORCH = """\
import os, sys
sys.path.insert(0, {folder!r})
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
from sedge_edge.__main__ import main
sys.exit(main(sys.argv[1:]))
"""
# A script that runs ``sedge-edge`` as if only the standard library's compression were available.
ZLIB_ALONE = """\
import sys
from sedge_edge import __main__ as agent
from sedge_protocol.codec import Compression, compression
compression.zstd = None
agent.Compression = (Compression.ZLIB,)
sys.exit(agent.main(sys.argv[1:]))
"""


class RealFleet:
    """A fleet of real processes in a folder, set up by the product's own commands.

    ``close`` kills every process. If ``certificates`` is true, the fleet uses the files that ``init
    --service --tls --client-certificates`` writes, all in one folder, and the coordinator makes the broker
    reload its files.
    """

    def __init__(self, folder: Path, *, certificates: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"{'mqtts' if certificates else 'mqtt'}://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        if certificates:
            self._write_service_files()
        else:
            here("init", str(folder), "--fleet", "test", "--url", self.url)
        self.start_broker()

    def _write_service_files(self) -> None:
        me, conf = getpass.getuser(), self.folder / "conf.d"
        conf.mkdir()
        places = ServicePaths(self.folder, me, me)
        places.etc, places.state, places.broker = (self.folder / n for n in ("", "state", "broker"))
        places.drop_in, places.units = conf / "00-sedge.conf", self.folder / "units"
        write_service_files("test", self.url, ["127.0.0.1"], places, client_certificates=True)
        pid = self.folder / PID_FILE
        main = f"user {me}\npid_file {pid}\ninclude_dir {conf}\n"
        (self.folder / MOSQUITTO_CONF).write_text(main)
        self.reload_by(self.folder / "cloud.toml")

    def reload_by(self, config: Path) -> None:
        """Change cloud.toml so that commands reload the broker themselves, as under ``sedge-cloud up``."""
        lines = [line for line in config.read_text().splitlines() if not line.startswith("reload")]
        command = json.dumps(RELOAD.format(pid=shlex.quote(str(self.folder / PID_FILE))))
        lines.insert(lines.index("[broker]") + 1, f"reload = {command}")
        config.write_text("\n".join([*lines, ""]))

    def cloud(self, *words: str) -> str:
        """Run a ``sedge-cloud`` command, and return its output. Fails the test if the command fails."""
        words = "-c", str(self.folder / "cloud.toml"), *words
        if "device" in words:  # no such command imports user modules, which would stay imported
            return here(*words)
        return command("sedge_cloud", *words, folder=self.folder)

    def start_broker(self, *more: int) -> None:
        """Start Mosquitto with the configuration from ``sedge-cloud init``, and wait for its ports."""
        conf, log = self.folder / "mosquitto.conf", self.folder / "broker.log"
        self.processes["broker"] = start_mosquitto(conf, log, self.port, *more)

    def start_cloud(self) -> None:
        """Start the coordinator."""
        config = str(self.folder / "cloud.toml")
        self.start("cloud", [sys.executable, "-m", "sedge_cloud", "-c", config, "serve"])

    def add_device(
        self,
        device: str,
        seed: int,
        url: str | None = None,
        examples: int = 200,
        dataset: Dataset | None = None,
    ) -> None:
        """Enrol a device, give it a share of a data set (by default 8x8 digits), and reload the broker."""
        home = self.folder / device
        self.cloud("device", "add", device, "--out", str(home))
        self.processes["broker"].send_signal(signal.SIGHUP)
        dataset = dataset or digits()
        rows = np.random.default_rng(seed).choice(len(dataset.targets), examples, replace=False)
        np.savez(home / "train.npz", x=dataset.inputs[rows], y=dataset.targets[rows])
        if url is not None:
            text = (home / "edge.toml").read_text()
            (home / "edge.toml").write_text(text.replace(self.url, url))

    def start_agent(self, device: str, memory_mb: int = 0, script: str = "") -> None:
        """Start a device's agent, as if the machine had ``memory_mb`` of memory (0: its actual memory).

        ``script`` replaces ``sedge-edge``.
        """
        config = str(self.folder / device / "edge.toml")
        program = ["-c", script] if script else ["-m", "sedge_edge"]
        if memory_mb:
            pages = -(-memory_mb * 10**6 // os.sysconf("SC_PAGE_SIZE"))
            program = ["-c", OTHER_MACHINE.format(pages=pages)]
        self.start(device, [sys.executable, *program, "-c", config, "run"])

    def start_run(
        self, bundle: Path, text: str, run: str = "run", narrower: Sequence[Path] = ()
    ) -> None:
        """Start a run with ``text`` as its run file.

        ``narrower`` are versions of the bundle with fewer channels.
        """
        run_file = self.folder / "run.toml"
        run_file.write_text(text)
        bundles = [word for folder in (bundle, *narrower) for word in ("--bundle", str(folder))]
        self.cloud("run", "start", run, *bundles, "--run-file", str(run_file))

    def kill(self, name: str) -> None:
        """Kill a process and its descendants with SIGKILL."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> int:
        """Stop a process with SIGTERM. Returns its exit status."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGTERM)
        return process.wait(timeout=20)

    def log(self, name: str) -> str:
        """Return the output of a process so far, including that of its earlier starts."""
        return (self.folder / f"{name}.log").read_text()

    def rounds(self) -> list[Summary]:
        """Return the summaries of the run's closed rounds."""
        store = open_folder(self.folder / "state")
        try:
            rows = store.rounds("run")
            return [msgspec.msgpack.decode(r.summary, type=Summary) for r in rows if r.summary]
        finally:
            store.close()

    def hellos(self) -> list[Hello]:
        """Return the last HELLO of each device that has sent one."""
        store = open_folder(self.folder / "state")
        try:
            found = [row.hello for row in store.devices() if row.hello is not None]
        finally:
            store.close()
        return [msgspec.msgpack.decode(hello, type=Hello) for hello in found]

    def finished(self) -> bool:
        """Return True if the run has ended."""
        store = open_folder(self.folder / "state")
        try:
            return store.runs()[0].status == "finished"
        finally:
            store.close()

    def close(self) -> None:
        """Kill everything that is still running."""
        for name in list(self.processes):
            self.kill(name)

    def start(
        self, name: str, words: Sequence[str], environment: Mapping[str, str] = ENVIRONMENT
    ) -> None:
        """Start a process in its own process group."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                words, stdout=log, stderr=log, env=environment, cwd=self.folder, process_group=0
            )


def here(*words: str) -> str:
    """Run a ``sedge-cloud`` command in this process, which saves half a second of imports.

    Returns its output, including standard error. Fails the test if the command fails.
    """
    said = io.StringIO()
    with _PRINTING, redirect_stdout(said), redirect_stderr(said):
        status = main(list(words))
    assert status == 0, said.getvalue()
    return said.getvalue()


def command(
    module: str, *words: str, status: int = 0, folder: Path | None = None, timeout_s: float = 300
) -> str:
    """Run ``python -m module words`` in ``folder``, and return its output, including standard error.

    Fails the test if the exit status is not ``status``.
    """
    done = subprocess.run(
        [sys.executable, "-m", module, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=ENVIRONMENT,
        cwd=folder,
        timeout=timeout_s,
        check=False,
    )
    output = done.stdout.decode()
    assert done.returncode == status, output
    return output


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until a condition holds. Fails the test if it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def free_port() -> int:
    """Return a free port that the system does not hand out again for a minute (30 s on macOS).

    A connection that the server's side closed first leaves the port in TIME-WAIT. Programs that ask for any
    port then get another one, but a server that asks for this port with SO_REUSEADDR gets it.
    """
    with socket.create_server((LOOPBACK, 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            server.accept()[0].close()
            client.recv(1)
        port: int = server.getsockname()[1]
        return port


def start_mosquitto(conf: Path, log: Path, *ports: int) -> subprocess.Popen[bytes]:
    """Start Mosquitto in its own process group, and wait until it accepts connections on these ports.

    If Mosquitto fails, the test fails with its log.
    """
    mosquitto = find_mosquitto()
    assert mosquitto is not None, "these tests need Mosquitto: apt-get install mosquitto"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [mosquitto, "-c", conf], stdout=output, stderr=output, process_group=0, cwd=log.parent
        )
    try:
        for port in ports:
            wait_until_accepting(LOOPBACK, port, 30, lambda: process.poll() is None)
    except LinkError as exc:
        process.kill()
        process.wait()
        raise AssertionError(f"{exc}\n{log.read_text()}") from exc
    return process
