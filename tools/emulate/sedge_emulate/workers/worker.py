"""A worker process: runs jobs for the devices, several at once if the trainer supports that.

A job runs the agent's own code (``sedge_edge.training.job`` and ``local_training``). Only the requests
to the trainer are batched across a group of jobs (``lockstep.py``). All of this runs in the worker
process; its counterpart in the process that started it is ``pool.py``.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np

from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.jobs.storage import FolderVectors, Vectors, WholeBlobs
from sedge_edge.rounds.frozen_data import read_bundle
from sedge_edge.training.examples import Examples, fitting, rows_of
from sedge_edge.training.job import complete, update_base
from sedge_edge.training.local_training import LocalResult
from sedge_edge.training.preparation import JobContext, Prepared, prepare
from sedge_edge.training.trainer import TrainingDiverged
from sedge_emulate.attack import Attack, Knowledge, claiming, falsified
from sedge_emulate.data.shares import Shares
from sedge_emulate.training.memory import peak_bytes
from sedge_emulate.training.tasks import FleetTrainer, TaskFailed
from sedge_emulate.workers.job_disk import (
    Carried,
    CarriedBlobs,
    CarriedVectors,
    JobBlobs,
    JobVectors,
)
from sedge_emulate.workers.lockstep import LocalRun, train_together
from sedge_emulate.workers.setup import WorkerSetup, trainer_for
from sedge_protocol.errors import LocalError, SedgeError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle, load
from sedge_protocol.wire.messages import EVALUATE, TRAIN


@dataclass(frozen=True)
class Request:
    """One device's job. ``home`` is the device's folder or, with a ``key``, the disk of the whole host.

    On another host, the job's files are ``carried`` instead. ``seconds`` is the virtual duration to
    report; None reports the real duration. ``attack`` falsifies a hostile device's update.
    """

    device: int
    job: Job
    home: Path
    key: bytes | None = None
    seconds: float | None = None
    attack: Attack | None = None
    carried: Carried | None = None


@dataclass(frozen=True)
class Finished:
    """A job's outcome, and the bytes of its update.

    For an evaluation, ``central`` is the metric on the central test set before and after local
    training.
    """

    outcome: Outcome
    update: bytes
    central: tuple[float, float] | None = None


@dataclass(frozen=True)
class Failed:
    """A job's error: the name of its class, and its text."""

    kind: str
    text: str


@dataclass(frozen=True)
class Answers:
    """The results of a group's jobs, in order.

    ``train_s`` is the time that the group spent in training and evaluation. ``peak_rss`` is the peak
    memory of the process ``pid``, in bytes.
    """

    answers: list[Finished | Failed]
    train_s: float
    pid: int
    peak_rss: int


class Worker:
    """The trainers and caches of one process. On another host, ``shares`` and ``bundle`` must be given."""

    def __init__(
        self, setup: WorkerSetup, shares: Shares | None = None, bundle: Bundle | None = None
    ) -> None:
        self.setup = setup
        self._shares = shares or Shares.open(setup.data)
        self._whole = bundle
        self._central = self._shares.central_examples()
        self._bundles: dict[bytes, Bundle] = {}
        self._trainers: dict[bytes, FleetTrainer] = {}
        self._versions: dict[bytes, Theta] = {}
        self._examples: dict[int, tuple[Examples, Examples]] = {}
        self.notes: list[str] = []

    def perform(self, requests: Sequence[Request]) -> Answers:
        """Run the jobs of a group together. Returns their results, in order."""
        answers: dict[int, Finished | Failed] = {}
        ready: list[_Ready] = []
        for place, request in enumerate(requests):
            try:
                ready.append(self._ready(place, request))
            except SedgeError as exc:
                answers[place] = _failed(exc)
        began = time.perf_counter()
        results = self._train(ready)
        train_s = time.perf_counter() - began
        for one, (result, central) in zip(ready, results, strict=True):
            seconds = one.request.seconds
            try:
                if isinstance(result, TrainingDiverged):
                    raise result.error if isinstance(result, TaskFailed) else result
                took = train_s / len(ready) if seconds is None else seconds
                outcome = self._completed(one, result, took)
                if isinstance(one.there.blobs, BlobFolder):
                    one.there.blobs.settle()  # the agent would not flush this blob
                update = one.there.blobs.read(outcome.update)
                answers[one.place] = Finished(outcome, update, central)
            except SedgeError as exc:
                answers[one.place] = _failed(exc)
        peak = peak_bytes()
        in_order = [answers[place] for place in range(len(requests))]
        return Answers(in_order, train_s, os.getpid(), peak)

    def _ready(self, place: int, request: Request) -> "_Ready":
        train, test = self._examples_of(request.device)
        blobs, vectors = self._disk(request)
        bundle = self._bundle(blobs, request.job.order.bundle.sha256)
        # A virtual device makes no predictions, so it keeps its own model only for its next order.
        work = request.job.order.work
        personal = work.own_model is not None and not work.own_model.mixes
        earlier = work.keep or work.scoring or work.blend or work.loss
        needed = request.key is None or personal or bool(earlier)
        there = JobContext(blobs, vectors, train, test, keeps_model=needed)
        job = request.job if request.key is None else _within_reach(request.job, blobs)
        return _Ready(place, request, prepare(job, there, bundle.manifest), there)

    def _examples_of(self, device: int) -> tuple[Examples, Examples]:
        """Return a device's train and test examples.

        For a GPU, the examples are cached here, because their copies on the GPU are freed along with
        them.
        """
        if self.setup.trainer.device == "cpu":
            return self._shares.examples(device)
        if device not in self._examples:
            self._examples[device] = self._shares.examples(device)
        return self._examples[device]

    def _disk(self, request: Request) -> tuple[WholeBlobs, Vectors]:
        if request.key is None:
            blobs = BlobFolder(request.home)
            return blobs, FolderVectors(blobs)
        if request.carried is not None:
            given = request.carried
            return CarriedBlobs(given), CarriedVectors(given, request.key, self._versions)
        return JobBlobs(request.home), JobVectors(request.home, request.key, self._versions)

    def judge(self, theta: Theta) -> float | None:
        """Return a full-width model's metric on the central test set, or None if its loss is not finite."""
        if self._central is None:
            raise LocalError("worker: no central test set")
        (found,) = self.trainer(self.whole()).evaluate([(theta, self._central)])
        return None if isinstance(found, TrainingDiverged) else found.metric

    def whole(self) -> Bundle:
        """Return the bundle of the model with all its channels."""
        return self._whole or load(self.setup.bundle)[0]

    def _train(self, ready: list["_Ready"]) -> list["_Trained"]:
        """Train the jobs, those with the same bundle together.

        Returns the results in the order of the jobs.
        """
        results: dict[int, _Trained] = {}
        for bundle in dict.fromkeys(one.bundle for one in ready):
            group = [one for one in ready if one.bundle == bundle]
            runs = [
                LocalRun(
                    o.prepared.local_training,
                    o.prepared.train,
                    o.prepared.test,
                    o.prepared.held_out,
                    self._central if o.prepared.job.order.task == EVALUATE else None,
                )
                for o in group
            ]
            ended = train_together(runs, self.trainer(self._bundles[bundle]))
            for one, run, result in zip(group, runs, ended, strict=True):
                results[one.place] = result, _before_and_after(run.on_central)
        return [results[one.place] for one in ready]

    def _completed(self, one: "_Ready", learned: LocalResult, took: float) -> Outcome:
        """Complete a job as the agent would; on a hostile device, falsify the training result first."""
        attack = one.request.attack
        if attack is None:
            return complete(one.prepared, learned, took, one.there)
        if one.prepared.job.order.task == TRAIN:
            learned = falsified(learned, self._knowledge(one, attack, learned))
        outcome = complete(one.prepared, learned, took, one.there)
        if attack.config.claim:
            outcome = claiming(outcome, one.there.blobs, attack.config.claim)
        return outcome

    def _knowledge(self, one: "_Ready", attack: Attack, learned: LocalResult) -> Knowledge:
        """Train on other devices' examples and on falsified ones, to get what a hostile device knows."""
        prepared, number, manifest = one.prepared, one.request.device, one.prepared.manifest
        lessons = attack.lessons(number, self._examples_of, manifest.num_classes)
        row, held = rows_of(prepared.test, np.arange(1)), prepared.held_out  # no test is requested
        shares = [fitting(train, manifest) for train in lessons]
        runs = [LocalRun(prepared.local_training, share, row, held) for share in shares]
        results = [learned, *train_together(runs, self.trainer(self._bundles[one.bundle]))]
        thetas = [r.trained.theta for r in results if isinstance(r, LocalResult)]
        if len(thetas) == len(results):
            return attack.knowledge(number, update_base(prepared, learned), thetas)
        raise TrainingDiverged("an attack's own training diverged")

    def _bundle(self, blobs: WholeBlobs, sha256: bytes) -> Bundle:
        if sha256 not in self._bundles:
            others = self._bundles.values()
            self._bundles[sha256] = read_bundle(blobs, sha256, others=others)
        return self._bundles[sha256]

    def trainer(self, bundle: Bundle) -> FleetTrainer:
        """Return the trainer for a bundle's model, which is opened on first use."""
        frozen = bundle.manifest.frozen
        key = bundle.manifest.layout.hash + (b"" if frozen is None else frozen.blob.sha256)
        if key not in self._trainers:
            sample = self._shares.inputs[: bundle.manifest.batch_size].copy()
            self._trainers[key] = trainer_for(self.setup, bundle, sample, self.notes.append)
        return self._trainers[key]


# A job's result, and its metrics on the central test set before and after training, if any.
_Trained: TypeAlias = tuple[LocalResult | TrainingDiverged, tuple[float, float] | None]


@dataclass(frozen=True)
class _Ready:
    """A prepared job, and its index in the group."""

    place: int
    request: Request
    prepared: Prepared
    there: JobContext

    @property
    def bundle(self) -> bytes:
        return self.prepared.job.order.bundle.sha256


def _before_and_after(metrics: Sequence[float]) -> tuple[float, float] | None:
    """Return the metrics before and after training; None if there was no training.

    A third evaluation, if any, covers the critical elements only.
    """
    return (metrics[0], metrics[1]) if len(metrics) > 1 else None


def _within_reach(job: Job, blobs: WholeBlobs) -> Job:
    """Return a copy of the job that starts after the last step whose delta is not on this host.

    If the job's device does not have the version that a step builds on, it has fetched the whole model
    instead of the delta. This host may have that version all the same, because another device holds it.
    """
    steps = job.order.steps
    missing = [place for place, step in enumerate(steps) if not blobs.has(step.blob.sha256)]
    if not missing:
        return job
    return replace(job, order=msgspec.structs.replace(job.order, steps=steps[missing[-1] + 1 :]))


def _failed(error: SedgeError) -> Failed:
    if isinstance(error, LocalError):  # a bug in Sedge, which no coordinator should see
        raise error
    return Failed(type(error).__name__, str(error))


_worker: Worker | None = None


def start(setup: WorkerSetup) -> None:
    """Set this process up as a worker on this host."""
    use(Worker(setup))


def use(worker: Worker) -> None:
    """Make the functions below use ``worker``."""
    global _worker
    _worker = worker


def describe() -> tuple[str, int, list[str]]:
    """Return the trainer's name, how many devices it trains at once, and notes on how it was chosen."""
    trainer = _this().trainer(_this().whole())
    return trainer.name, trainer.width, _this().notes


def judge(theta: Theta) -> float | None:
    """Return a full-width model's metric on the central test set, computed in this process."""
    return _this().judge(theta)


def perform(requests: Sequence[Request]) -> Answers:
    """Run the jobs of a group in this process."""
    return _this().perform(requests)


def _this() -> Worker:
    if _worker is None:
        raise LocalError("worker: used before it was started")
    return _worker
