"""Runs one strategy over a real broker: the real coordinator and the real agents, in real time.

They all share one event loop in one process; training runs in worker processes. Real devices may join: each
is enrolled, and its edge.toml and secret are written to ``out/join``. Resuming needs no special code: the
agents and the coordinator continue with what is on their disks, as they do after any crash.
"""

import re
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec

from sedge_cloud.admin.enrolment import add_device
from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import BrokerConfig, CloudConfig, RunConfig
from sedge_cloud.coordinator import Coordinator
from sedge_cloud.events import Event, RunEnded
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.service import Service, on_the_wall
from sedge_cloud.store.opening import open_folder
from sedge_cloud.store.records import Summary
from sedge_edge.runtime import Runtime
from sedge_emulate.broker.device import Site, bring_up, enrol
from sedge_emulate.data.shares import Shares
from sedge_emulate.emulation import StrategyRun, budget_of, slug
from sedge_emulate.watch import Totals, Watch
from sedge_emulate.workers.pool import WorkerPool
from sedge_protocol.errors import ConfigError, LinkError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.loop import Loop
from sedge_protocol.host.mqtt import BrokerSettings, MqttLink

# The devices and the coordinator are on one host or close to each other, so all requests for the same blob
# arrive within a second.
GATHER_S = 1.0
RUN = "run"
# The run fails if nothing has happened for this long after a round's deadline.
SILENT_S = 120.0
# Matches the address of an emulation's own broker in a device's edge.toml. That broker's port changes at
# every start unless one is requested.
_OURS = re.compile(r'^url = "mqtt://127\.0\.0\.1:(\d{1,5})"$', re.MULTILINE)


class BrokerFleet:
    """A fleet connected to the broker at ``url``, which takes part in a single run."""

    def __init__(
        self, strategy_run: StrategyRun, bundle: Path, shares: Shares, pool: WorkerPool, url: str
    ) -> None:
        self.name = slug(strategy_run.title)
        self.store = open_folder(strategy_run.folder / "cloud")
        self._run = strategy_run.config
        self._narrower = strategy_run.narrower
        self._bundle = bundle
        self._shares = shares
        self._pool = pool
        self._url = url
        self._folder = strategy_run.folder
        self._attack, self._hello = strategy_run.attack, strategy_run.hello
        self._runtimes: list[Runtime] = []
        self._central: dict[int, tuple[float, float]] = {}
        self._service: Service | None = None
        self._began_s = time.monotonic()
        self._opened = False
        self._invited = False

    def clock(self) -> float:
        """Return the seconds since the fleet was created."""
        return time.monotonic() - self._began_s

    def totals(self) -> Totals:
        """Return the bytes that each emulated device and the coordinator have sent and received so far.

        They are counted at the sockets.
        """
        return Totals(
            {self._shares.name(n): _moved(r.link) for n, r in enumerate(self._runtimes)},
            _moved(self._service.link) if self._service else (0, 0),
        )

    def seen(self, number: int) -> dict[str, object]:
        """Return the fields of device ``number``'s ``DeviceResult`` that only the fleet knows.

        Bytes per device are not counted here.
        """
        return {"central": self._central.get(number)}

    def invite(self, device: str, folder: Path) -> None:
        """Enrol a real device unless it is enrolled already, and write its files to ``folder``.

        Other files in ``folder`` are kept. Raises ``StorageError``.
        """
        self._invited = True
        # ``folder`` may hold the device's data already, so the new files are first written to a folder next
        # to it. If this process is killed before it has moved all of them, the next start moves the
        # remaining ones.
        made = folder.with_name(f"{folder.name}.new")
        if all(row.device != device for row in self.store.devices()):
            shutil.rmtree(made, ignore_errors=True)
            broker = BrokerConfig(url=self._url)
            add_device(self.store, CloudConfig(fleet=self.name, broker=broker), device, made)
        with translated("write the files of a device into", folder):
            if made.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
                for path in made.iterdir():
                    path.replace(folder / path.name)
                made.rmdir()
            _point(folder / "edge.toml", self._url)

    def play(self, watch: Watch) -> None:
        """Play the run from the devices' first hello to its end.

        Raises ``LinkError`` if nothing has happened for too long or a worker process has died, and
        ``ConfigError`` if the run was started with different settings.
        """
        if not self.store.runs():
            budget = budget_of(self._run, len(self._shares) + self.store.enrolled())
            start_run(self.store, RUN, self._bundle, self._run, self._narrower, budget=budget)
        begun = self.store.runs()[0]
        _require_same(msgspec.msgpack.decode(begun.config, type=RunConfig), self._run)
        for row in self.store.rounds(RUN):
            if row.summary:
                watch.remember(msgspec.msgpack.decode(row.summary, type=Summary))
        if begun.status != RUNNING:  # the run ended before its result was written
            watch.observe(RunEnded(RUN, begun.status))
            return
        secrets = enrol(self.store, self._shares)
        with ExitStack() as stack:
            loop = stack.enter_context(closing(Loop()))
            site = Site(
                self.name,
                self._folder,
                self._url,
                self._pool,
                loop.wake,
                self._attack,
                self._hello,
                self._central,
            )
            self._runtimes = [
                bring_up(number, self._shares, secret, site, self._run.seed)
                for number, secret in enumerate(secrets)
            ]
            now = int(time.time())
            core = Coordinator(self.name, self.store, GATHER_S, now, wall=on_the_wall)
            settings = BrokerSettings(self._url, f"coordinator-{self.name}")
            self._service = Service(core, settings, self._observer(watch))
            stack.callback(self._service.close)
            for runtime in self._runtimes:
                stack.callback(runtime.close)
            self._service.ready()
            loop.run([self._service, *self._runtimes], lambda: self._over(watch))

    def close(self) -> None:
        """Close the coordinator's store."""
        self.store.close()

    def _observer(self, watch: Watch) -> Callable[[Event], None]:
        def observe(event: Event) -> None:
            self._opened = True
            watch.observe(event)

        return observe

    def _over(self, watch: Watch) -> bool:
        """Return True if the run has ended. Raises ``LinkError`` if a worker died or the fleet is silent.

        A real device may take any amount of time to join, so silence before the first round is not an
        error.
        """
        if self._pool.failure is not None:
            raise self._pool.failure
        silent_s = self.clock() - watch.last_event_s
        joining = self._invited and not self._opened
        if silent_s > self._run.deadline_s + SILENT_S and not joining:
            raise LinkError(
                f"the fleet has been silent for {silent_s:.0f} s; see the log (--verbose)"
            )
        return watch.ended


def _moved(link: MqttLink) -> tuple[int, int]:
    counters = link.measure()
    return counters.bytes_sent, counters.bytes_received


def invited_port(join: Path, devices: Sequence[str]) -> int | None:
    """Return the port of the emulation's own broker in these devices' edge.toml, or None if none has it.

    Raises ``StorageError`` for a file that cannot be read.
    """
    for device in devices:
        path = join / device / "edge.toml"
        with translated("read", path):
            match = _OURS.search(path.read_text("utf-8")) if path.exists() else None
        if match is not None:
            return int(match[1])
    return None


def _point(path: Path, url: str) -> None:
    """If edge.toml names a broker that an emulation started, replace its address with ``url``.

    Raises ``OSError``.
    """
    text = path.read_text("utf-8") if path.exists() else ""
    pointed = _OURS.sub(f'url = "{url}"', text, count=1)
    if pointed != text:
        path.write_text(pointed, "utf-8")


def _require_same(begun: RunConfig, wanted: RunConfig) -> None:
    """Raise ``ConfigError`` if settings have changed: a coordinator would continue with the old ones."""
    old, new = msgspec.to_builtins(begun), msgspec.to_builtins(wanted)
    changed = sorted(key for key in new if new[key] != old[key])
    if changed:
        expected = "the settings that the run began with: over a broker they cannot change"
        raise ConfigError("--resume", ", ".join(changed), expected)
