"""An emulated device over a real broker: the real agent, with its own folder on disk.

Only training is shared: the host's worker processes train for all devices.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from sedge_cloud.store.database import Store
from sedge_edge.agent import Identity
from sedge_edge.jobs.job import Job, Outcome
from sedge_edge.runtime import Runtime, open_agent
from sedge_emulate.attack import NOBODY, Attack
from sedge_emulate.data.shares import Shares
from sedge_emulate.hello import PROGRAMS
from sedge_emulate.workers.pool import WorkerPool
from sedge_emulate.workers.worker import Finished, Request
from sedge_protocol.errors import LinkError
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.wire.keys import SECRET_BYTES, DeviceKeys
from sedge_protocol.wire.messages import Hello


@dataclass(frozen=True)
class Site:
    """What the devices of one run share.

    ``attack`` determines which devices are hostile, and ``hello`` is what every device announces.
    ``central`` maps a device's number to its metric on the central test set, before and after the last
    evaluation's training.
    """

    fleet: str
    folder: Path
    url: str
    pool: WorkerPool
    wake: Callable[[], None]
    attack: Attack = NOBODY
    hello: Hello = PROGRAMS
    central: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])


def enrol(store: Store, shares: Shares) -> list[bytes]:
    """Enrol all missing devices with new secrets. Returns the secrets of all devices in order."""
    enrolled = {row.device: row.secret for row in store.devices()}
    secrets: list[bytes] = []
    for number in range(len(shares)):
        device = shares.name(number)
        if device not in enrolled:
            enrolled[device] = os.urandom(SECRET_BYTES)
            store.add_device(device, enrolled[device])
        secrets.append(enrolled[device])
    return secrets


def bring_up(number: int, shares: Shares, secret: bytes, site: Site, seed: int) -> Runtime:
    """Start an enrolled device."""
    device = shares.name(number)
    hello = msgspec.structs.replace(
        site.hello,
        num_train=site.attack.config.claimed(number, shares.num_train(number)),
        num_test=shares.num_test(number),
    )
    identity = Identity(device, site.fleet, DeviceKeys.of(secret), hello)
    folder = site.folder / device
    agent = open_agent(identity, folder, np.random.default_rng([seed, number]), int(time.time()))
    # Fleets of several runs may share a broker. The fleet's name in the client id keeps their sessions
    # apart.
    settings = BrokerSettings(site.url, f"{site.fleet}-{device}")

    def work(job: Job) -> Future[Outcome]:
        request = Request(number, job, folder, attack=site.attack.of(number))
        done = site.pool.submit(request, shares.num_train(number))
        return _outcome(done, partial(site.central.__setitem__, number))

    return Runtime(agent, settings, work, site.wake, lambda: None)


def _outcome(
    finished: "Future[Finished]", note: Callable[[tuple[float, float]], None]
) -> "Future[Outcome]":
    """Return a future for the outcome alone. The update's bytes are in the device's own folder.

    The metric on the central test set is passed to ``note``, because an agent does not know that test set.
    """
    outcome: Future[Outcome] = Future()

    def settle(done: "Future[Finished]") -> None:
        # The pool has been closed or has lost a worker. That is not the device's fault, so the device must
        # not report an error to its coordinator. The fleet watches the pool itself.
        if done.cancelled() or isinstance(done.exception(), LinkError):
            return
        if not outcome.set_running_or_notify_cancel():  # the device has been closed
            return
        error = done.exception()
        if error is not None:
            outcome.set_exception(error)
        else:
            result = done.result()
            if result.central is not None:
                note(result.central)
            outcome.set_result(result.outcome)

    finished.add_done_callback(settle)
    return outcome
