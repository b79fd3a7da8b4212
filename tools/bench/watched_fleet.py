"""Watches a real fleet in every place that must report problems (seen.py).

page      the text of the status page
metrics   /metrics, where the count for the code must exceed that of the other problems with it
run show  the output of ``sedge-cloud run show``
log       the lines in the service's log that the journal classifies as warnings or errors
"""

import html
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tools.bench.parts.real_fleet import ENVIRONMENT, RealFleet, free_port, wait_until

PLACES = ("page", "metrics", "run show", "log")
# Seconds between checks, which is also the resolution. More frequent requests would slow down the page.
LOOK_S = 1.0
# A place that has not reported a fault after this many seconds is assumed never to report it.
PATIENCE_S = 60.0
RUN = """\
strategy = "fedavg"
num_rounds = 100000
min_available_devices = {available}
quorum = {quorum}
grace_s = {grace_s}
[training]
learning_rate = 0.1
"""
FUNCTIONS = """\
def fit(parameters, examples, settings):
    {body}

def evaluate(parameters, examples):
    return 1.0, len(examples.targets), {{"accuracy": 0.5}}
"""
DISK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Problem:
    """An expected report: the fault in words, and the problem's code, subject and a part of its reason."""

    fault: str
    code: str
    subject: str
    words: str


@dataclass(frozen=True)
class Sighting:
    """A fault, and the seconds until each place reported it. Places that cannot report it are left out."""

    fault: str
    code: str
    seconds: dict[str, float]


class Watched(RealFleet):
    """A fleet with a status page and a coordinator that formats its log for the journal."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.sightings: list[Sighting] = []
        self._http = free_port()
        self._mounted: list[Path] = []
        with (folder / "cloud.toml").open("a") as config:
            config.write(f'\n[http]\nlisten = "127.0.0.1:{self._http}"\n')

    def start_cloud(self) -> None:
        """Start the coordinator, and make it believe that its standard error goes to the journal."""
        log = self.folder / "cloud.log"
        log.touch()
        found = log.stat()
        environment = {**ENVIRONMENT, "JOURNAL_STREAM": f"{found.st_dev}:{found.st_ino}"}
        config = str(self.folder / "cloud.toml")
        words = [sys.executable, "-m", "sedge_cloud", "-c", config, "serve"]
        self.start("cloud", words, environment)

    def own_disk(self, folder: Path) -> None:
        """Mount a small file system on a folder."""
        folder.mkdir(mode=0o700, exist_ok=True)
        options = f"size={DISK_BYTES},mode=700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], check=True)
        self._mounted.append(folder)

    def close(self) -> None:
        """Kill every process and unmount the file systems."""
        super().close()
        for folder in self._mounted:
            subprocess.run(["umount", folder], check=True)

    def going(
        self, bundle: Path, devices: int, available: int, quorum: float, grace: float
    ) -> None:
        """Wait until the devices are online, start a run, and wait until it closes a round."""
        wait_until(lambda: self._online() == devices, 60, "the devices say hello")
        text = RUN.format(available=available, quorum=quorum, grace_s=grace)
        self.start_run(bundle, text)
        wait_until(lambda: self.closed() > 0, 60, "a round closes")

    def closed(self) -> int:
        """Return how many rounds have closed."""
        found = json.loads(self._ask("/api/runs/run") or "{}")
        return int(found.get("closed_rounds", 0))

    def function(self, device: str, body: str) -> None:
        """Give a device a training function with this body."""
        home = self.folder / device
        (home / "own_client.py").write_text(FUNCTIONS.format(body=body))
        with (home / "edge.toml").open("a") as config:
            config.write('\n[backend]\nname = "own_client:fit"\n')

    def signalled(self, device: str, number: signal.Signals) -> None:
        """Send a signal to a device's agent."""
        os.killpg(self.processes[device].pid, number)

    def sees(self, broken: Callable[[], object], *problems: Problem) -> None:
        """Call ``broken``, which breaks something, and wait until every place reports these problems."""
        written = len(self.log("cloud"))
        since = time.monotonic()
        broken()

        def seconds(place: str, it: Problem) -> float:
            looks: dict[str, Callable[[], bool]] = {
                "page": lambda: names(self._page(), it),
                "metrics": lambda: self._count(it.code) > self._others(it),
                "run show": lambda: names(self.cloud("run", "show", "run"), it),
                "log": lambda: names(warnings(self.log("cloud")[written:]), it),
            }
            while not looks[place]():
                spent = time.monotonic() - since
                assert spent < PATIENCE_S, f"{place} does not name {it.fault}: {it.words}"
                time.sleep(LOOK_S)
            return round(time.monotonic() - since, 2)

        with ThreadPoolExecutor(len(problems) * len(PLACES)) as pool:
            found = {
                it: {place: pool.submit(seconds, place, it) for place in PLACES} for it in problems
            }
        for it, times in found.items():
            self.sightings.append(
                Sighting(it.fault, it.code, {place: t.result() for place, t in times.items()})
            )

    def heals(self, code: str) -> None:
        """Wait until there is no problem with this code."""
        try:
            wait_until(lambda: self._count(code) == 0, PATIENCE_S, f"{code} heals")
        except AssertionError as exc:
            raise AssertionError(f"{exc}; the page says {self._ask('/api/problems')}") from exc

    def has(self, code: str) -> None:
        """Wait until there is a problem with this code."""
        wait_until(lambda: self._count(code) > 0, PATIENCE_S, f"{code} appears")

    def _online(self) -> int:
        found = json.loads(self._ask("/api/devices") or "[]")
        return sum(1 for device in found if device["state"] == "online")

    def _page(self) -> str:
        """Return the text of the status page, with one element per line."""
        text = re.sub(r"<style>.*?</style>|</?(a|strong)\b[^>]*>", "", self._ask("/"), flags=re.S)
        return html.unescape(re.sub(r"<[^>]*>", "\n", text))

    def _count(self, code: str) -> float:
        """Return how many problems with this code /metrics counts."""
        found = re.search(rf'sedge_problems{{code="{code}"}} (\S+)', self._ask("/metrics"))
        return float(found[1]) if found else 0.0

    def _others(self, it: Problem) -> int:
        """Return how many other subjects have a problem with the same code."""
        found = json.loads(self._ask("/api/problems") or "[]")
        return sum(1 for p in found if p["code"] == it.code and p["subject"] != it.subject)

    def _ask(self, path: str) -> str:
        """Request a path from the status page's server. Returns the body, or "" if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self._http, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.read().decode() if answer.status == 200 else ""
        except OSError:
            return ""
        finally:
            connection.close()


def names(text: str, it: Problem) -> bool:
    """Return True if a line contains the problem's subject and reason."""
    return any(it.subject in line and it.words in line for line in text.splitlines())


def warnings(log: str) -> str:
    """Return the lines that the journal classifies as warnings or errors."""
    return "\n".join(line for line in log.splitlines() if line.startswith(("<3>", "<4>")))
