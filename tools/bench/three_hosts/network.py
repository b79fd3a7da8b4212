"""Simulates hosts as network namespaces on one bridge: each has its own name, address and processes.

``isolated`` runs the current program again in new namespaces. Whatever ends that program also ends its
processes, mounts, bridge and hosts. None of them is visible outside. It needs root.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

NET = "10.77.0"
DRIVER = f"{NET}.1"
INSIDE = "SEDGE_THREE_HOSTS"
_UNSHARE = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--net", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child",
)  # fmt: skip
# Processes on a host see only the host's name and one another, as on a separate machine.
_ALONE = ("unshare", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child")
_NAMED = ("sh", "-c", 'hostname "$0" && exec "$@"')


def missing() -> str | None:
    """Return a line that says what this machine lacks, or None if hosts can be simulated."""
    if os.getuid() != 0:
        return "the three hosts are network namespaces: run this as root"
    lacking = [name for name in ("ip", "unshare", "setpriv", "mount") if shutil.which(name) is None]
    if lacking:
        return f"missing commands {', '.join(lacking)}: apt-get install iproute2 util-linux"
    probed = subprocess.run([*_UNSHARE, "ip", "link", "add", "probe", "type", "bridge"],
                            capture_output=True, text=True, check=False)  # fmt: skip
    if probed.returncode != 0:
        return f"cannot create a network namespace with a bridge: {probed.stderr.strip().splitlines()[-1]}"
    return None


def isolated(module: str, arguments: Sequence[str]) -> int | None:
    """Run this program in new namespaces.

    Returns its exit status, or None if the current process is already in them.
    """
    if os.environ.get(INSIDE) == "1":
        return None
    command = [*_UNSHARE, sys.executable, "-m", module, *arguments]
    with subprocess.Popen(command, env={**os.environ, INSIDE: "1"}) as inside:
        try:
            return inside.wait()
        except KeyboardInterrupt:
            inside.kill()
            return 130


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@dataclass
class Process:
    """A process on a host, with all its descendants, in its own process group."""

    popen: subprocess.Popen[bytes]
    cpu_s: float = 0.0

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process and its descendants."""
        os.killpg(self.popen.pid, number)

    def end(self) -> None:
        """Terminate the program itself with SIGTERM. The commands that wrap it end with it."""
        os.kill(_below(self.popen.pid)[-1], signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and its descendants, and set ``cpu_s`` to the CPU seconds they used."""
        self.send(signal.SIGKILL)
        self.ended()

    def ended(self) -> int:
        """Wait until the process has ended, and set ``cpu_s``. Returns its exit status."""
        _, status, used = os.wait4(self.popen.pid, 0)
        self.popen.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = used.ru_utime + used.ru_stime
        return self.popen.returncode

    def used_s(self) -> float:
        """Return the CPU seconds used so far by the program and by the commands that wrap it."""
        ticks = os.sysconf("SC_CLK_TCK")
        return sum(_times(pid)[1] for pid in _below(self.popen.pid)) / ticks


def _times(pid: int) -> tuple[int, int]:
    """Return the id of a process's parent and the clock ticks used, or (0, 0) if the process has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return int(fields[1]), int(fields[11]) + int(fields[12])


def _below(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants, each after its parent."""
    parents = {
        int(p.name): _times(int(p.name))[0] for p in Path("/proc").iterdir() if p.name.isdigit()
    }
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


@dataclass
class Network:
    """The bridge and its hosts. This process is also on the bridge, with the address ``DRIVER``."""

    addresses: dict[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        Path("/run/netns").mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run/netns"], check=True)
        _ip("link", "set", "lo", "up")
        _ip("link", "add", "bridge", "type", "bridge")
        _ip("addr", "add", f"{DRIVER}/24", "dev", "bridge")
        _ip("link", "set", "bridge", "up")

    def add(self, host: str) -> str:
        """Add a host. Returns its address."""
        address = f"{NET}.{10 + len(self.addresses)}"
        _ip("netns", "add", host)
        _ip("link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", host)
        _ip("link", "set", host, "master", "bridge", "up")
        _ip("-n", host, "addr", "add", f"{address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            _ip("-n", host, "link", "set", device, "up")
        self.addresses[host] = address
        return address

    def cut(self, host: str) -> None:
        """Drop all packets to and from a host, without any error, until ``heal``."""
        _ip("link", "set", host, "down")

    def heal(self, host: str) -> None:
        """Undo ``cut``, so that packets pass again."""
        _ip("link", "set", host, "up")

    def sent_to(self, host: str, other: str) -> int:
        """Return how many bytes a host has sent to another on currently open connections."""
        words = [*self.within(host), "ss", "-tinH", "dst", self.addresses[other]]
        found = subprocess.run(words, check=True, capture_output=True, text=True).stdout
        return sum(map(int, re.findall(r"bytes_sent:(\d+)", found)))

    def within(self, host: str) -> tuple[str, ...]:
        """Return the words to put before a command to run it on this host."""
        return ("ip", "netns", "exec", host)

    def start(
        self, host: str, words: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> Process:
        """Start a program on a host, and append its output to ``log``."""
        command = [*self.within(host), *_ALONE, *_NAMED, host, *words]
        with log.open("ab") as output:
            return Process(
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                    env=dict(environment), process_group=0,
                )
            )  # fmt: skip
