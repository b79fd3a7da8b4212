"""Makes the state folder of a coordinator as the code at hand leaves it, for later versions to migrate.

    python -m tests.cloud.store.before.make_folder OUT.tar.xz

schema-3.tar.xz is from commit 92edab15, schema-4.tar.xz from 606142c9, schema-8.tar.xz from d0848283 with
what ``asked`` adds, schema-9.tar.xz from the commit after 9586ebbc,
schema-10.tar.xz from the one after d86cbb6e. Three runs: ``first`` has finished,
``broken`` has failed for a reason that no round's summary has, and ``second`` is in its second round: a and
b have answered, c has declined, d owes its update, which lies beside the state as ``update``.
``model_hash`` is the hash of the global model that the round ends in.
"""

import json
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from tests.cloud.facts.seen import Seen
from tests.cloud.helper import Cloud, fetch_model, report_for
from tests.cloud.stores import open_store

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import RunConfig
from sedge_cloud.rounds.lifecycle import FAILED, FINISHED
from sedge_cloud.store.database import Store
from sedge_cloud.store.rollouts import RolloutRow
from sedge_cloud.store.rows import JoinRow, TokenRow
from sedge_cloud.strategies.fedavg import FedAvg
from sedge_cloud.strategy import Assignment, ClientModel, Context
from sedge_protocol.codec import SparseVector, encode
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Decline, Order
from sedge_protocol.wire.update import encode_update

SMALL = Layout.of([("body.weight", (10, 25), Role.PARAMETER), ("head.bias", (50,), Role.PARAMETER)])
FIRST = RunConfig(strategy="fedavg", num_rounds=2, evaluate=False)
SECOND = RunConfig(strategy="fedobp", options={"quantile": 0.9}, num_rounds=5, min_updates=2)


class Broken(FedAvg, frozen=True):
    """Plans the order that is asked for before the start, and no other."""

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Raises ``StrategyError`` once a round is to be planned in earnest."""
        if WORKS:
            return super().plan(context, client)
        raise StrategyError("no start for this device")


WORKS = [True]


def answer(seen: Seen, names: Sequence[str]) -> None:
    """These devices fetch the model of their last orders and send an update, each its own."""
    cloud = seen.cloud
    fetch_model(cloud, *names)
    for name in names:
        cloud.offer(name, update_of(name, cloud.order(name)))
    cloud.poll(1.0)
    seen.record()


def update_of(name: str, order: Order) -> bytes:
    """The update of a device for its order: the same bytes whenever it is asked."""
    rng = np.random.default_rng([ord(name), order.round])
    delta = rng.normal(0, 0.1, SMALL.size).astype(np.float32)
    payload = encode(SparseVector(SMALL.size, None, delta))
    return encode_update(report_for(order, SMALL), payload)


def begin(cloud: Cloud, name: str, config: RunConfig) -> None:
    """Start a run as the command line does, from another process."""
    with closing(open_store(cloud.folder / "state")) as other:
        start_run(other, name, cloud.bundle, config)


def play(folder: Path) -> Seen:
    theta = np.random.default_rng(1).normal(0, 0.1, SMALL.size).astype(np.float32)
    seen = Seen(folder, None, ("a", "b", "c", "d", "never"), SMALL, theta)
    cloud = seen.cloud
    begin(cloud, "first", FIRST)
    cloud.load()
    cloud.hello("a", "b", "c", "d")
    for _ in range(2):
        answer(seen, "abcd")
    broken = msgspec.structs.replace(FIRST, strategy=f"{__name__}:Broken")
    begin(cloud, "broken", broken)
    WORKS.clear()
    cloud.load()
    cloud.poll(1.0)
    seen.record()
    begin(cloud, "second", SECOND)
    cloud.load()
    cloud.poll(1.0)
    answer(seen, "abcd")
    answer(seen, "ab")
    cloud.say("c", Decline("second", 2, "DiskFull", "no room for 2 MB"))
    seen.record()
    assert [row.status for row in cloud.store.runs()] == [FINISHED, FAILED, "running"]
    return seen


TOKEN = TokenRow("t-1", b"t" * 32, "", msgspec.msgpack.encode({"site": "lab"}), 9, False, 1.0, 9e9)
JOIN = JoinRow(b"p" * 65, "t-1", "new", b"n" * 32, "pending", 2.0)
# Literally, as they were stored: later versions have further fields.
PLAN = {
    "phases": (0.1, 1.0), "hold_s": 0.0, "abort_at": 0.05, "worse_by": 0.1, "min_devices": 10,
    "where": "site=lab",
}  # fmt: skip
PROGRESS = {
    "since": 3.0, "first_round": 2, "phase": 0, "bounds": (7,), "sizes": (1,), "failed": ("a",),
}  # fmt: skip
ROLLOUT = RolloutRow(
    "second", 1, b"b" * 32, "aborted", msgspec.msgpack.encode(PLAN), msgspec.msgpack.encode(PROGRESS),
    3.0, "a failed",
)  # fmt: skip


def asked(store: Store) -> None:
    """What an operator has asked for, in the tables that schemas 5 to 8 have added."""
    store.tag(["a", "b"], {"site": "lab", "rack": "7"})
    store.pause(["never"], 4.0)
    store.add_token(TOKEN)
    store.ask_to_join(JOIN, 2.0)
    store.ask_to_renew(["b"], 5.0)
    store.add_rollout(ROLLOUT)


def close_round(cloud: Cloud, update: bytes) -> str:
    """d sends its update, and the open round closes; the hash of the global model, in hex."""
    cloud.offer("d", update)
    cloud.poll(1.0)
    row = cloud.store.round("second", 3)
    assert row is not None and row.open
    return row.model_hash.hex()


def main(out: Path) -> None:
    """Play, pack the state, and note what it must lead to."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        seen = play(folder)
        asked(seen.cloud.store)
        kept = folder / "kept"
        shutil.copytree(seen.state, kept / "state", ignore=shutil.ignore_patterns("*-wal", "*-shm"))
        (kept / "state" / "sedge.sqlite").unlink()
        with closing(open_store(kept / "state")) as copy:
            seen.cloud.store.copy_rows_to(copy)
        update = update_of("d", seen.cloud.order("d"))
        (kept / "update").write_bytes(update)
        found = {"model_hash": close_round(seen.cloud, update)}
        (kept / "expected.json").write_text(json.dumps(found))
        seen.cloud.store.close()
        with tarfile.open(out, "w:xz") as tar:
            for path in sorted(kept.rglob("*")):
                tar.add(path, path.relative_to(kept), recursive=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
