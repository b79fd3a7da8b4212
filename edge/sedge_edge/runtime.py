"""Connects the agent's core to the outside: link, worker thread, clock and log."""

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Lock

import numpy as np

from sedge_edge.agent import Agent, AgentEffect, Identity, StartJob
from sedge_edge.backends import NO_CODE, UserCode, open_trainer
from sedge_edge.certificate import OwnCertificate
from sedge_edge.diary import Diary
from sedge_edge.gates import Gates
from sedge_edge.http_downloads import NO_DOWNLOADS, HttpDownloads
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.jobs.storage import WholeBlobs
from sedge_edge.own_files import DeviceBlobs
from sedge_edge.rounds.effects import FetchSpan, KeepCertificate, StopSpan
from sedge_edge.rounds.frozen_data import read_bundle
from sedge_edge.rounds.keyring import Keyring
from sedge_edge.rounds.places import Permits
from sedge_edge.rounds.retention import KeepConfig, Retention
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.rounds.taken_settings import OwnSettings
from sedge_edge.rounds.waiting import Gate
from sedge_edge.sensors import Sensors
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import JobStopped, WorkerContext, run_job
from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import LocalError, SedgeError
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.memory_limit import memory_mb, release_memory
from sedge_protocol.host.mqtt import (
    BrokerSettings,
    Connected,
    Disconnected,
    MqttLink,
    Received,
    TooLarge,
)
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.effects import Note, Send, Subscribe
from sedge_protocol.wire.reconnect import is_unknown_account
from sedge_protocol.wire.settings import Settings
from sedge_protocol.wire.signing_keys import SigningKeys
from sedge_protocol.wire.topics import down, hint, shard_of


@dataclass
class OpenBundles:
    """Keeps the bundles opened most recently, keyed by hash. Devices in one process may share them.

    The results of trials of the bundles' programs are stored in ``state_dir``.
    """

    backend: str
    threads: int
    code: UserCode = NO_CODE
    state_dir: Path | None = None
    capacity: int = 2
    _open: dict[bytes, tuple[Bundle, Trainer]] = field(
        default_factory=dict[bytes, tuple[Bundle, Trainer]]
    )
    _lock: Lock = field(default_factory=Lock)

    def open(self, blobs: WholeBlobs, sha256: bytes) -> tuple[Bundle, Trainer]:
        """Return a bundle from the blobs, and a trainer for it."""
        with self._lock:
            if sha256 not in self._open:
                others = [bundle for bundle, _ in self._open.values()]
                bundle = read_bundle(blobs, sha256, memory_mb(), others)
                while len(self._open) >= self.capacity:
                    del self._open[next(iter(self._open))]
                trainer = open_trainer(
                    bundle, self.backend, self.threads, self.code, self.state_dir
                )
                self._open[sha256] = (bundle, trainer)
            return self._open[sha256]


class Runtime:
    """One device in the event loop (``Station``).

    ``work`` starts a job. Only one job runs at a time. When it is done, ``wake`` is called, from any
    thread. ``stop`` is called once, at the end, and tells the current job to stop. ``examples`` returns the
    training and test examples of the last job, if they may change. ``downloads`` handles downloads over
    HTTP. ``diary`` records events for people. ``certificate`` is the device's certificate, if the
    coordinator renews it.
    """

    def __init__(
        self,
        agent: Agent,
        settings: BrokerSettings,
        work: Callable[[Job], Future[Outcome]],
        wake: Callable[[], None],
        stop: Callable[[], None],
        examples: Callable[[], tuple[Examples, Examples]] | None = None,
        downloads: HttpDownloads = NO_DOWNLOADS,
        diary: Diary | None = None,
        certificate: OwnCertificate | None = None,
    ) -> None:
        identity = agent.identity
        self.agent = agent
        fleet, device = identity.fleet, identity.device
        listened = (down(fleet, device), hint(fleet, shard_of(device)))
        self.link = MqttLink(settings, listened, agent.will)
        self.link.reconnect.is_new = not agent.state.coordinator_incarnation
        self._work = work
        self._wake = wake
        self._stop = stop
        self._examples = examples
        self._downloads = downloads
        self._diary = diary or Diary()
        self._certificate = certificate
        self._job: Future[Outcome] | None = None
        self._closing = False
        self._log = logging.getLogger(f"sedge.edge.{identity.device}")

    def fileno(self) -> int | None:
        """Return the file descriptor of the link's socket."""
        return self.link.fileno()

    def wants_write(self) -> bool:
        """Return True if the link has bytes to write."""
        return self.link.wants_write()

    def timer(self) -> float:
        """Return the time at which ``step`` is next due."""
        if (self._job is not None and self._job.done()) or self._downloads.waiting:
            return 0.0
        due = self.agent.timer()
        return self.link.timer() if due is None else min(due, self.link.timer())

    def step(self) -> None:
        """Handle the link's events, and do what is due."""
        for event in self.link.step():
            now = time.monotonic()
            match event:
                case Connected():
                    self._log.info("connected to %s", self.link.settings.url)
                    self._diary.link(True, self.link.settings.url)
                    self._do(self.agent.connected(now, event.max_packet_bytes))
                case Disconnected():
                    event.log(self._log)
                    self._diary.link(False, event.reason)
                    self.agent.disconnected()
                    if is_unknown_account(event.reason):
                        self._try_other_password()
                case Received():
                    self._diary.bytes(down=len(event.payload))
                    self._do(self.agent.receive(event.topic, event.payload, now))
                    self.link.reconnect.devices = self.agent.handshake.fleet_devices
                    self.link.reconnect.is_new &= not self.agent.welcomed
                case TooLarge():
                    self._log.error("%s", event)
        for part in self._downloads.taken():
            self._do(self.agent.fetched(part, time.monotonic()))
        if self._job is not None and self._job.done():
            self._finish(self._job)
        self._do(self.agent.poll(time.monotonic()))

    def _try_other_password(self) -> None:
        """Switch to the other secret, current or next, because the broker may know only that one."""
        password = self.agent.other_password()
        if password is not None:
            self.link.settings = replace(self.link.settings, password=password)

    def close(self) -> None:
        """Stop the current job, say goodbye and close the link.

        If the job is already done, keep its outcome.
        """
        self._stop()
        self._closing = True
        self._downloads.stop()
        job = self._job
        # A job that has not begun can be cancelled, because its order is still on disk.
        if job is not None and job.cancel():
            self._do(self.agent.interrupted())
        elif job is not None and _expected(job.exception()):
            self._finish(job)
        self._do(self.agent.goodbye())
        self.link.close()
        self._diary.close()

    def _finish(self, job: Future[Outcome]) -> None:
        self._job = None
        error = job.exception()
        now = time.monotonic()
        self.agent.budget.passed(now)  # count the training time
        if self._examples is not None:
            train, test = self._examples()
            self._do(self.agent.has_examples(len(train.targets), len(test.targets), now))
        if error is None:
            self._log.info("%s", self._diary.done(job.result().report))
            self._do(self.agent.finished(job.result(), now))
        elif isinstance(error, JobStopped):
            self._log.info("%s", error)
            self._do(self.agent.interrupted(error.checkpoint))
        elif isinstance(error, SedgeError) and _expected(error):
            self._do(self.agent.failed(error, now))
        else:  # our own bug: crash, so that the service manager reports it, rather than loop silently
            raise error

    def _do(self, effects: list[AgentEffect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._diary.bytes(up=len(effect.payload))
                    self.link.send(effect.topic, effect.payload)
                case Subscribe():
                    self.link.subscribe(effect.topic)
                case Note():
                    self._log.log(effect.level, "%s", effect.text)
                    if effect.level >= logging.ERROR:
                        self._diary.error(effect.text)
                case StartJob() if self._closing:  # nothing is lost: the order is still on disk
                    self._do(self.agent.interrupted())
                case StartJob():
                    self._job = self._work(effect.job)
                    self._job.add_done_callback(lambda _: self._wake())
                case FetchSpan():
                    self._downloads.start(effect, self._wake)
                case KeepCertificate():
                    self._keep(effect.der)
                case StopSpan():
                    self._downloads.stop()
                case _:
                    self.link.unsubscribe(effect.topic)

    def _keep(self, der: bytes) -> None:
        """Store a newer certificate, which the next connection will use."""
        if self._certificate is None:
            return
        try:
            self._certificate.replace(der)
        except SedgeError as exc:
            self._log.error("%s", exc)
            return
        self.link.settings = replace(self.link.settings, client_pem=self._certificate.pem)
        self.agent.handshake.certified(self._certificate.name, time.monotonic())
        self._log.info("the coordinator has renewed the certificate for the broker")


def open_agent(
    identity: Identity,
    folder: Path,
    rng: np.random.Generator,
    clock_s: int,
    gate: Gate | None = None,
    keep: KeepConfig | None = None,
    permits: Permits | None = None,
    files: Mapping[bytes, Path] | None = None,
    pinned: SigningKeys | None = None,
    keyring: Keyring | None = None,
    settings: tuple[Settings, Gates] | None = None,
) -> Agent:
    """Open the agent whose blobs and journal are in ``folder``. Its start count is at least ``clock_s``.

    ``keep`` says how much to keep of ended runs, and ``permits`` says which URLs may be requested.
    ``files`` contains the files of blobs that the device already has, keyed by SHA-256. If there are
    ``pinned`` keys, every order needs a policy signed by one of them. Without ``keyring`` the device keeps
    its current keys. ``settings`` consists of the device's own settings and its gates. The settings limit
    the device's work, and the coordinator may tighten them. The gates follow the settings in force. Without
    ``settings`` there are no limits.
    """
    share = 1.0 if settings is None else settings[0].limits.disk_share
    journal = Journal(folder / "journal", AgentState, SCHEMA)
    blobs = DeviceBlobs(folder, share, files)
    retention = Retention(keep or KeepConfig(), blobs.sizes)

    def apply(now: Settings) -> None:
        blobs.share = now.limits.disk_share
        logging.getLogger().setLevel(now.log_level.upper())
        if settings is not None:
            settings[1].follow(now.gates)

    return Agent(
        identity, blobs, journal, rng, clock_s, gate=gate, retention=retention,
        permits=permits, pinned=pinned, keyring=keyring,
        settings=None if settings is None else OwnSettings(settings[0], apply),
    )  # fmt: skip


def local_context(
    agent: Agent,
    examples: tuple[Examples, Examples],
    programs: OpenBundles,
    stopped: Callable[[], bool] = lambda: False,
    watts: float | None = None,
) -> WorkerContext:
    """Return the environment of an agent's jobs in this process: disk, examples, programs."""
    return WorkerContext(
        agent.blobs,
        agent.vectors,
        *examples,
        lambda sha256: programs.open(agent.blobs, sha256),
        stopped,
        time.monotonic,
        temperature_c=Sensors().temperature_c,
        watts=watts,
    )


def pooled_runtime(
    agent: Agent,
    settings: BrokerSettings,
    examples: Callable[[], tuple[Examples, Examples]],
    programs: OpenBundles,
    pool: Executor,
    wake: Callable[[], None],
    gate: Gate | None = None,
    watts: float | None = None,
    downloads: HttpDownloads = NO_DOWNLOADS,
    diary: Diary | None = None,
    certificate: OwnCertificate | None = None,
) -> Runtime:
    """Return a device that runs its own jobs, on its own data, in a thread of ``pool``.

    Each job calls ``examples`` to get its training and test examples. A job stops when the runtime or
    ``gate`` closes. Pass the same gate to ``agent``.
    """
    stopping = Event()

    def stopped() -> bool:
        closed = gate is not None and bool(gate())
        return closed or stopping.is_set() or agent.budget.must_stop(time.monotonic())

    last = examples()

    def run(job: Job) -> Outcome:
        nonlocal last
        last = examples()
        try:
            return run_job(job, local_context(agent, last, programs, stopped, watts))
        finally:  # the device may be idle for hours from now on
            release_memory()

    def work(job: Job) -> Future[Outcome]:
        return pool.submit(run, job)

    return Runtime(
        agent, settings, work, wake, stopping.set, lambda: last, downloads, diary, certificate
    )


def _expected(error: BaseException | None) -> bool:
    """Return True if there was no error, or only one that does not point to a bug in this program."""
    return error is None or (isinstance(error, SedgeError) and not isinstance(error, LocalError))
