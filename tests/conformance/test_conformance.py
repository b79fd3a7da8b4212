"""``sedge-conformance`` against our own agent, and against agents that break a rule on purpose."""

from collections.abc import Callable, Iterable
from copy import copy
from os import urandom
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import numpy as np
import pytest
import torch
from tests.fleet import always

from sedge_conformance.acts import play
from sedge_conformance.stage import Act, Cut, Finding, Stage, StartModel, Step
from sedge_edge.agent import Agent, AgentEffect, Identity, StartJob
from sedge_edge.jobs import global_model
from sedge_edge.jobs.job import Outcome
from sedge_edge.rounds.effects import FetchedChunk, FetchSpan
from sedge_edge.rounds.keyring import KeptKeys, Keyring
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.runtime import OpenBundles
from sedge_edge.training import preparation, start_vector
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import CODECS, WorkerContext, run_job
from sedge_export import export
from sedge_export.models import mlp
from sedge_protocol.errors import SedgeError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.wire import messages, work
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Hello, Order
from sedge_protocol.wire.peer import Peer

SECRET = b"c" * 32
KEYS = DeviceKeys.of(SECRET)
# What the core profile asks of a client, and no more.
HELLO = Hello(bytes(16), "test", ("onnxruntime",), codecs=("renew",), num_train=37, num_test=8)
PROGRAMS = OpenBundles("auto", threads=1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    torch.manual_seed(0)
    export(
        mlp(64, 32, 10), torch.randn(8, 64), batch_size=8, name="m", num_classes=10, folder=folder
    )
    return folder


def examples(count: int) -> Examples:
    rng = np.random.default_rng(count)
    return Examples(rng.normal(size=(count, 64)).astype(np.float32), rng.integers(0, 10, count))


class Client:
    """An agent with its disk, under a virtual clock."""

    def __init__(self, folder: Path) -> None:
        blobs, journal = BlobFolder(folder), Journal(folder / "journal", AgentState, SCHEMA)
        identity = Identity("pi-1", "test", KEYS, HELLO)
        self.agent = Agent(
            identity, blobs, journal, np.random.default_rng(0), 1, permits=lambda url: True,
            keyring=Keyring(SECRET, "test", "pi-1", Journal(folder / "keys", KeptKeys, 1), urandom),
        )  # fmt: skip
        self._place = WorkerContext(
            blobs, self.agent.vectors, examples(37), examples(8),
            lambda sha256: PROGRAMS.open(blobs, sha256), lambda: False, lambda: 0.0,
        )  # fmt: skip
        self._work: list[StartJob] = []

    def connect(self, now: float) -> list[Send]:
        self.agent.will()
        return self.sent(self.agent.connected(now, max_packet_bytes=400_000))

    def sent(self, effects: Iterable[AgentEffect]) -> list[Send]:
        """The frames among effects; work is for later, as in a worker's thread."""
        effects = list(effects)
        for span in [effect for effect in effects if isinstance(effect, FetchSpan)]:
            wrong = bytes(span.manifest.span(span.first)[1])  # of a server that is there, and lies
            effects += self.agent.fetched(FetchedChunk(span.number, span.first, wrong), 0.0)
        self._work += [effect for effect in effects if isinstance(effect, StartJob)]
        return [effect for effect in effects if isinstance(effect, Send)]

    def work(self, now: float) -> list[Send]:
        if not self._work:
            return []
        job = self._work.pop(0).job
        try:
            return self.sent(self.agent.finished(run_job(job, self._place), now))
        except SedgeError as exc:
            return self.sent(self.agent.failed(exc, now))


def findings(client: Client, bundle: Path, incarnation: int = 1) -> list[Finding]:
    """Play all acts; the client works whenever nothing else is under way."""
    stage = Stage("test", "pi-1", KEYS, incarnation, play(StartModel(*load(bundle))))
    now, ends = 0.0, 20_000.0
    down: list[Step] = stage.begin(now)
    up = client.connect(now)
    while not stage.done and now < ends:
        if up:
            first = up.pop(0)
            down += stage.receive(first.topic, first.payload, now)
        elif down:
            step = down.pop(0)
            if isinstance(step, Cut):
                client.agent.disconnected()
                up = client.connect(now)
            else:
                sent = cast(Send, step)
                up += client.sent(client.agent.receive(sent.topic, sent.payload, now))
        elif worked := client.work(now):
            up += worked
        else:
            due = [at for at in (client.agent.timer(), stage.timer()) if at is not None]
            now = max(now, min(due, default=ends))
            up += client.sent(client.agent.poll(now))
            down += stage.poll(now)
    assert stage.done
    return stage.findings


def test_our_own_agent_keeps_every_rule(tmp_path: Path, bundle: Path) -> None:
    client = Client(tmp_path)
    found = findings(client, bundle)
    # Mended and tried again, a client still has what an earlier play left on it.
    again = findings(client, bundle, incarnation=100)
    assert [finding for finding in (*found, *again) if not finding.good] == []
    rules = "3.3 3.5 3.6 5.17 7.2 8.1 8.2 8.3 9.3 B4 E14 T1 T3 T4"
    assert set(rules.split()) <= {finding.rule for finding in found}


def only_listens(stage: Stage) -> Act:
    """No act."""
    yield from ()


def test_what_the_broker_does_to_frames_is_not_the_clients_fault() -> None:
    """Frames that are lost, late and doubled are the link's; two with one number are the client's."""
    stage = Stage("test", "pi-1", KEYS, 1, only_listens)
    first, second = (Peer(stage.topic, KEYS.up, KEYS.down, 5, 0) for _ in range(2))
    sent = [first.seal(HELLO) for _ in range(100)]
    for frame in (sent[4], sent[90], sent[90], sent[80], sent[20]):
        stage.receive(stage.topic, frame, 0.0)
    assert stage.findings == []
    stage.receive(stage.topic, Peer(stage.topic, KEYS.up, KEYS.down, 4, 0).seal(HELLO), 0.0)
    assert stage.findings == []
    other = [second.seal(messages.Decline("r", 1, "x")) for _ in range(91)][90]
    stage.receive(stage.topic, other, 0.0)
    assert [(finding.rule, finding.good) for finding in stage.findings] == [("3.6", False)]


Fault = Callable[[Agent, pytest.MonkeyPatch], None]


def other(owner: Callable[[Agent], object], name: str, value: object) -> Fault:
    """Something of an agent, or of a module, is another."""
    return lambda agent, patch: patch.setattr(owner(agent), name, value)


def drops_what_it_cannot_read(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    decline = agent._declines.message

    def only_read(order: object, error: SedgeError) -> Effect:
        return decline(order, error) if isinstance(order, Order) else Note(0, "")

    patch.setattr(agent._declines, "message", only_read)


class Anything:
    """Equal to every digest."""

    def __eq__(self, other: object) -> bool:
        return True

    def digest(self) -> "Anything":
        return self


def keeps_the_last_trainings_version(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    finish = agent._store.finish

    def stay(order: Order, outcome: Outcome, steps: tuple[work.Step, ...] = ()) -> None:
        if order.task == messages.EVALUATE:
            run = agent.state.runs[order.run]
            order, steps = msgspec.structs.replace(order, model_hash=run.base), run.steps
        finish(order, outcome, steps)

    patch.setattr(agent._store, "finish", stay)


def waits_for_its_place(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(agent._fetches.places, "failed", always([]))
    patch.setattr(agent._fetches.places, "timer", always(None))


def works_every_order(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    def take(order: Order) -> list[AgentEffect]:
        agent._store.accept(order)
        return []

    patch.setattr(agent._admission, "order", take)


def forgets_its_pair(agent: Agent, patch: pytest.MonkeyPatch) -> None:
    keyring = agent._keyring
    assert keyring is not None

    def answer(point: bytes, version: str) -> messages.Join:
        return Keyring.answer(copy(keyring), point, version)

    patch.setattr(keyring, "answer", answer)


BLIND = SimpleNamespace(sha256=always(Anything()))
FAULTS: dict[str, tuple[Fault, set[str]]] = {
    "believes the model": (other(always(global_model), "_hash", always(Anything())), {"8.2"}),
    "believes the patch": (other(always(start_vector), "hashlib", BLIND), {"5.9"}),
    "announces too little": (other(lambda a: a._admission, "_announced", {*CODECS}), {"5.7"}),
    "keeps the last training's version": (keeps_the_last_trainings_version, {"9.1"}),
    "works every order": (works_every_order, {"5.7"}),
    "forgets its pair": (forgets_its_pair, {"E14"}),
    "waits for its place": (waits_for_its_place, {"X20"}),
    "believes replays": (other(lambda a: a.peer.window, "accept", always(True)), {"3.6"}),
    # It also offers where an order is played back.
    "never forgets": (
        other(lambda a: a._store, "remove_update", always(None)),
        {"3.6", "5.7", "7.2"},
    ),
    "drops what it cannot read": (drops_what_it_cannot_read, {"3.5"}),
    "leaves the patch out": (other(always(start_vector), "_patch", always(None)), {"5.9", "T1"}),
    "keeps nothing": (other(always(preparation), "tensor_slices", always(())), {"T1", "T3"}),
    "hurries": (other(lambda a: a._outbox, "busy", always(None)), {"5.23"}),
    "sleeps on": (other(lambda a: a._outbox, "woken", always(None)), {"7.2"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_client_is_shown_its_rule(
    tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    client, (fault, rules) = Client(tmp_path), FAULTS[name]
    fault(client.agent, monkeypatch)
    broken = {finding.rule for finding in findings(client, bundle) if not finding.good}
    assert broken == rules
