"""Worker processes on a Ray cluster: one per CPU or, with GPUs, the same number on each GPU.

    this host     puts the data, the bundle, blobs and global models into Ray's store, once
    each host     gets the files that its tasks name, once, and maps them; workers have no files themselves
    the answer    brings the vectors that the jobs keep; they become files of this host (virtual/disk.py)

If a host is lost, Ray repeats its tasks on another host. A job's results depend only on its order and
on its device's kept state, so it does not matter where or how often it runs, provided that all hosts
train alike. To ensure this, each worker compares its trainer, versions and model code with those of
this process.
"""

import math
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from sedge_cloud.compute import connected_ray
from sedge_edge.jobs.global_model import named_blobs
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_emulate.data.shares import Shares
from sedge_emulate.model import code_hash
from sedge_emulate.workers import worker
from sedge_emulate.workers.job_disk import Carried, JobBlobs, JobVectors
from sedge_emulate.workers.setup import VERSIONS, WorkerSetup
from sedge_emulate.workers.worker import Answers, Request, Worker
from sedge_protocol.errors import ConfigError, LinkError
from sedge_protocol.wire.bundle import Bundle, load

KEY = "--ray"
# How many recently used files stay in Ray's store: the round's models, and models that stragglers need.
PLACED = 16


@dataclass(frozen=True)
class Placed:
    """The objects in Ray's store that set up each worker. ``versions`` describes the emulator's process."""

    setup: WorkerSetup
    shares: Shares
    bundle: Bundle
    versions: dict[str, str]


class ClusterWorkers:
    """Workers on the Ray cluster at ``address``; "local" starts ``count`` workers on this host instead.

    Raises ``ConfigError`` for a cluster that cannot be used, or whose hosts train differently.
    """

    def __init__(self, setup: WorkerSetup, address: str, count: int) -> None:
        self._ray = ray = connected_ray(address, KEY, count)
        self._lock = Lock()
        self._refs: dict[bytes, Any] = {}
        self._pending: set[Future[Any]] = set()
        processors, gpus = (int(ray.cluster_resources().get(kind, 0)) for kind in ("CPU", "GPU"))
        self.count, each = processors, {}
        if gpus and setup.trainer.device != "cpu":
            share = max(1, processors // gpus)
            self.count, each = share * gpus, {"num_gpus": math.floor(1e4 / share) / 1e4}
            setup = replace(setup, processes=share)
        # By default, Ray ends a worker after a task on a GPU; max_calls=0 keeps it alive. Ray must not
        # hide GPUs either, because each worker chooses its own.
        environment = {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}}
        self._task = ray.remote(
            num_cpus=1, max_calls=0, scheduling_strategy="SPREAD", runtime_env=environment, **each
        )(_in_worker)
        bundle, _ = load(setup.bundle)
        # Other hosts do not have this host's cache folder, so they check their trainers themselves.
        alone = replace(setup, cache=None)
        placed = Placed(alone, Shares.open(setup.data), bundle, versions_of(setup))
        self._placed, self._trainer = ray.put(placed), ""
        try:
            self._trainer = self.submit(worker.describe).result()[0]
        except BaseException:
            self.close()
            raise

    def submit(self, function: Callable[..., Any], *arguments: object) -> Future[Any]:
        """Call a function from the module ``worker`` in one of the workers."""
        return self._begun(function, arguments, (), (), lambda result, _: result)

    def perform(self, requests: Sequence[Request]) -> Future[Answers]:
        """Run a group's jobs in one of the workers.

        Writes the vectors that the jobs make to this host's disk.
        """
        home = requests[0].home
        paths = {name: path for request in requests for name, path in _files_of(request)}
        with self._lock:
            refs = {name: self._put(name, path) for name, path in paths.items() if path.exists()}
        arguments = ([replace(request, home=Path()) for request in requests],)
        return self._begun(
            worker.perform, arguments, tuple(refs), tuple(refs.values()), partial(_keep, home)
        )

    def close(self) -> None:
        """Disconnect from the cluster and cancel the work that it is doing for this process."""
        self._ray.shutdown()
        for future in list(self._pending):
            future.cancel()

    def _begun(
        self,
        function: Callable[..., Any],
        arguments: tuple[object, ...],
        names: tuple[bytes, ...],
        refs: tuple[Any, ...],
        received: Callable[[Any, dict[bytes, Any]], Any],
    ) -> Future[Any]:
        future: Future[Any] = Future()
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)

        def take(done: Future[tuple[Any, dict[bytes, Any]]]) -> None:
            try:
                future.set_result(received(*done.result()))
            except self._ray.exceptions.RayTaskError as exc:
                exc.cause.__cause__ = exc  # keeps the worker's traceback
                future.set_exception(exc.cause)
            except self._ray.exceptions.RayError as exc:
                said = str(exc).strip().partition("\n")[0]
                future.set_exception(LinkError(f"Ray: {type(exc).__name__}: {said}"))
            except BaseException as exc:  # raised when the result is read
                future.set_exception(exc)

        task = self._task.remote([self._placed], self._trainer, function, arguments, names, *refs)
        task.future().add_done_callback(take)
        return future

    def _put(self, name: bytes, path: Path) -> Any:
        """Put a file into Ray's store, unless it is already there. Returns Ray's reference to it.

        The store keeps only the most recently used files.
        """
        ref = self._refs.pop(name, None) or self._ray.put(np.fromfile(path, np.uint8))
        self._refs[name] = ref
        if len(self._refs) > PLACED:
            del self._refs[next(iter(self._refs))]
        return ref


def versions_of(setup: WorkerSetup) -> dict[str, str]:
    """Return the versions and hashes, by name, that a job's results depend on in this process."""
    packages = {package: version(package) for package in VERSIONS}
    backend = code_hash(setup.trainer.backend, setup.model.base)
    code = {"model.factory": setup.model.code, "trainer.backend": backend}
    return {**packages, "machine": platform.machine(), **code}


def _files_of(request: Request) -> Iterator[tuple[bytes, Path]]:
    """Yield the name and path of each file that a job may read; the path may not exist on this host."""
    order, blobs = request.job.order, JobBlobs(request.home)
    for manifest in named_blobs(order):
        yield manifest.sha256, blobs.path(manifest.sha256)
    facts = bundle_facts(order.bundle.sha256, blobs)
    if facts is not None and facts.frozen is not None:
        yield facts.frozen.blob.sha256, blobs.path(facts.frozen.blob.sha256)
    vectors = JobVectors(request.home, b"", {})
    bases = {step.base_hash for step in order.steps}
    for name in sorted({order.model_hash, *bases, *request.job.kept.names()}):
        if vectors.has(name):
            yield name, vectors.path(name)


def _keep(home: Path, answers: Answers, written: dict[bytes, Any]) -> Answers:
    """Write the vectors made by a group's jobs to this host's disk. Returns ``answers``."""
    for name, (is_shared, data) in written.items():
        JobVectors(home, name, {}).lay(name, memoryview(data), is_shared)
    return answers


# The Workers of a worker process by the index of the GPU that they use, or 0 without a GPU.
_workers: dict[int, Worker] = {}


def _in_worker(
    placed: list[Any],
    trainer: str,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    names: tuple[bytes, ...],
    *files: Any,
) -> tuple[Any, dict[bytes, Any]]:
    """Call a function from ``worker`` in this process, with these files.

    Returns the function's result and the vectors that its jobs made.
    """
    worker.use(_worker_here(placed[0], trainer))
    carried = Carried(dict(zip(names, files, strict=True)))
    if function is worker.perform:
        arguments = ([replace(request, carried=carried) for request in arguments[0]],)
    return function(*arguments), carried.written


def _worker_here(placed: Any, trainer: str) -> Worker:
    import ray
    import torch

    card = int((ray.get_gpu_ids() or [0])[0])
    if ray.get_gpu_ids():
        torch.cuda.set_device(card)
    if card not in _workers:
        given: Placed = ray.get(placed)
        _require_same(given)
        made = Worker(given.setup, given.shares, given.bundle)
        if trainer and made.trainer(given.bundle).name != trainer:
            found = f"{made.trainer(given.bundle).name} on {platform.node()}"
            raise ConfigError("trainer", found, f"{trainer}, as on other hosts")
        _workers[card] = made
    return _workers[card]


def _require_same(given: Placed) -> None:
    """Raise ``ConfigError`` if this host might not compute the same results as the emulation's own host."""
    for name, found in versions_of(given.setup).items():
        if found != given.versions[name]:
            expected = f"{given.versions[name]}, as on the emulation's own host"
            raise ConfigError(name, f"{found} on {platform.node()}", expected)
