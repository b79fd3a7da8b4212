"""A fleet that plays in one process after another, each of which kills itself at one of its commits.

    python -m tests.cloud.store.lives FOLDER PLACE

PLACE is the store as JSON: [store] and [blobs] of cloud.toml. A life that reaches the end of the run is the
last one; how many were killed is printed. They are forked, before anything has connected to a server: the
imports take longer than a life.
"""

import os
import signal
import sys
from pathlib import Path

import msgspec
from tests.cloud.helper import RUN, Cloud, random_theta, update

from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.store.connection import Database
from sedge_cloud.store.opening import open_parts
from sedge_cloud.store.settings import BlobsConfig, StoreConfig
from sedge_protocol.wire.messages import Order

Place = tuple[StoreConfig, BlobsConfig]


def lived(folder: Path, place: Place, life: int) -> Cloud:
    """A coordinator on the folder's store, and devices in their next life."""
    store = open_parts(folder / "state", *place, durable=False)
    return Cloud.of(store, folder, "ab", incarnation=life)


def play(cloud: Cloud) -> None:
    """Answer every order until the run has ended; an update is the same in every life."""
    cloud.begin()
    cloud.hello()
    sent: set[tuple[str, int]] = set()
    while cloud.run_row().status == RUNNING:
        for seed, name in enumerate("ab"):
            for order in cloud.messages(name, Order)[-1:]:
                if (name, order.round) not in sent:
                    theta = random_theta(100 * order.round + seed)
                    cloud.upload(name, update(order, theta))
                    sent.add((name, order.round))
        cloud.poll(1.0)


def ends(cloud: Cloud) -> tuple[str, bytes, list[list[str]]]:
    """How the run ended: its status, its model's hash, and whose updates each round counted."""
    devices = [[device.device for device in summary.devices] for summary in cloud.summaries()]
    return cloud.run_row().status, cloud.state().model_hash, devices


def die_at(database: Database, number: int, after: bool) -> None:
    """Kill this process at its store's n-th commit: before it, or when it is durable and nobody knows."""
    left, commit = number, database._db.commit

    def counted() -> None:
        nonlocal left
        left -= 1
        if left == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        commit()
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(database._db, "commit", counted)  # noqa: B010


def live(folder: str, place: str, life: int) -> None:
    """One life, which ends at its n-th commit, where n is its number, or with the run."""
    cloud = lived(Path(folder), msgspec.json.decode(place, type=Place), life)
    die_at(cloud.store, life, after=life % 2 == 1)
    play(cloud)
    assert cloud.run_row().run == RUN
    cloud.store.close()


def main(folder: str, place: str) -> None:
    for life in range(2, 60):
        child = os.fork()
        if child == 0:
            live(folder, place, life)
            return
        _, status = os.waitpid(child, 0)
        if status == 0:
            print(life - 2)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL, status


if __name__ == "__main__":
    main(*sys.argv[1:])
