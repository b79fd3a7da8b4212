"""One agent under a virtual clock: real frames of a coordinator for it, and what came back.

``Harness`` speaks to an ``Agent`` as the coordinator does, sealed with the coordinator's keys. ``tell``
hands over one message and gives the effects; ``pump`` and ``settle`` also carry the effects out, and answer
as a coordinator that stores everything.
"""

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from os import urandom
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import pytest
from tests.fleet import changed, manifest_of

from sedge_edge.agent import Agent, AgentEffect, Identity, StartJob
from sedge_edge.jobs.job import Job
from sedge_edge.rounds.effects import FetchedChunk, FetchSpan, SpanEnd
from sedge_edge.rounds.frozen_data import read_bundle
from sedge_edge.rounds.keyring import KeptKeys, Keyring
from sedge_edge.rounds.places import Permits
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.rounds.taken_settings import OwnSettings
from sedge_edge.rounds.waiting import Closed
from sedge_edge.training.examples import Examples
from sedge_edge.training.job import CODECS, JobStopped, WorkerContext, run_job
from sedge_edge.training.trainer import Predictor, Trained, Trainer, TrainingState, TrainRequest
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, decode, encode, top_k
from sedge_protocol.errors import LinkError, LocalError, SedgeError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.signing import verifiers
from sedge_protocol.host.web import Span
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.bundle import Bundle, Program
from sedge_protocol.wire.effects import Note, Send, Subscribe, Unsubscribe
from sedge_protocol.wire.frame import VERSIONS, Frame, Kind, open_frame, seal
from sedge_protocol.wire.frozen import FrozenData
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import (
    TRAIN,
    Committed,
    Decline,
    Get,
    Have,
    Hello,
    Message,
    Offer,
    Order,
    Task,
    Welcome,
    decode_body,
)
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.settings import LimitsConfig, Settings
from sedge_protocol.wire.topics import blob as blob_topic
from sedge_protocol.wire.topics import down, up
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import Manifest, describe, from_bitmap, to_bitmap
from sedge_protocol.wire.update import Metrics, Report, decode_update
from sedge_protocol.wire.work import Step, Work

FLEET, DEVICE = "test", "pi-1"
SECRET = b"k" * 32
KEYS = DeviceKeys.of(SECRET)
UP, DOWN = up(FLEET, DEVICE), down(FLEET, DEVICE)
MAX_PACKET = 400_000
RESEND_S = 60.0  # as the coordinator does
# One step, to where the gradient points.
ONE_STEP = Training(learning_rate=1.0, last_batch="drop")

LAYOUT = Layout.of(
    [
        ("body.weight", (40, 64), Role.PARAMETER),
        ("norm.mean", (4,), Role.STATISTIC),
        ("head.bias", (4,), Role.PARAMETER),
    ]
)
N = LAYOUT.size

E = TypeVar("E")


class DriftTrainer:
    """A trainer without a runtime: adds noise that follows from the seed, to every tensor."""

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        """theta (n,) and its drift, as far as theta goes; the gradient is the opposite.

        A second model goes twice as far; its mix goes an eighth up, if it may.
        """
        theta, second = request.theta, request.second
        way = drift(request.seed)[: theta.size]
        if second is not None:
            mix = min(1.0, second.mix + 0.125) if second.adaptive else second.mix
            second = replace(second, theta=second.theta + 2 * way, mix=mix)
        return Trained(theta + way, 0.5, 1, -way if request.gradient else None, second=second)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """The same for every theta but those whose last element is above 2: half the loss."""
        return Metrics(0.5 if theta[-1] > 2 else 1.0, 0.5, len(examples.targets))

    def predictor(self, theta: Theta) -> Predictor:
        raise AssertionError("a prediction")


def drift(seed: int) -> Theta:
    """What ``DriftTrainer`` adds, (n,)."""
    return np.random.default_rng(seed).normal(0, 0.01, N).astype(np.float32)


def theta_of(seed: int) -> Theta:
    return np.random.default_rng([1, seed]).normal(0, 0.1, N).astype(np.float32)


def hash_of(theta: Theta) -> bytes:
    """What names a version (n,)."""
    return hashlib.sha256(theta.astype("<f4").tobytes()).digest()


def make_bundle(
    seed: int = 0, layout: Layout = LAYOUT, program: bytes = b"", frozen: FrozenData | None = None
) -> bytes:
    """A packed bundle of some 20 kB; its programs are noise that ``DriftTrainer`` never looks at."""
    program = program or np.random.default_rng(seed).bytes(20_000)
    sha256 = hashlib.sha256(program).hexdigest()
    listed = [
        Program("gradient", "onnxruntime", "gradient.onnx", sha256),
        *(Program(name, "asking", "gradient.onnx", sha256) for name in ("gradient", "evaluate")),
    ]
    manifest = manifest_of(layout, *listed, frozen=frozen)
    return bundles.pack(Bundle(manifest, {"gradient.onnx": program}))


def examples(count: int = 10, width: int = 3, labels: int = 4) -> Examples:
    """Random rows of the bundle's input shape."""
    rng = np.random.default_rng(5)
    inputs = rng.normal(size=(count, width)).astype(np.float32)
    return Examples(inputs, rng.integers(0, labels, count).astype(np.int64))


def coded(theta: Theta, compression: Compression = Compression.ZSTD) -> bytes:
    """A global model as its blob."""
    return encode(SparseVector(theta.size, None, theta), ValueCoding.FP32, compression)


def report_of(number: int, task: Task = TRAIN) -> Report:
    """A round in which the metric rises from a quarter to a half."""
    return Report(
        run="first", round=number, task=task, layout_hash=bytes(32), model_hash=bytes(32),
        num_examples=20, before=Metrics(1.0, 0.25, 5), after=Metrics(0.5, 0.5, 5), train_loss=0.4,
        steps=10, seconds=1.0,
    )  # fmt: skip


class Harness:
    """One agent, what the coordinator keeps for it, and what it has said."""

    compression = Compression.ZSTD

    def __init__(self, folder: Path, chunk_bytes: int = 4096, gated: bool = False) -> None:
        self.folder = folder
        self.chunk_bytes = chunk_bytes
        self.now = 100.0
        self.keys = KEYS
        self.peer = Peer(DOWN, KEYS.down, KEYS.up, incarnation=7, peer_incarnation=0)
        self.served: dict[bytes, bytes] = {}  # transfer id -> blob
        self.manifests: dict[bytes, Manifest] = {}
        self.offers: dict[bytes, Offer] = {}  # by transfer id, as the next
        self.parts: dict[bytes, dict[int, bytes]] = {}
        self.updates: dict[tuple[str, int], bytes] = {}
        self.declines: list[Decline] = []
        self.notes: list[str] = []
        self.topics: set[str] = set()
        self.chunks_sent = 0
        self.max_packet = MAX_PACKET
        self.oversize = 0
        self.order_at_hand: Order | None = None
        self.train = self.test = examples()
        self.trainer: Trainer = DriftTrainer()
        self.bundle = self.serve(make_bundle())
        self.gated, self.closed = gated, ""
        self.spares_link = False
        self.limits: LimitsConfig | None = None
        self.settings = b""  # in each welcome
        self.hello: Hello | None = None
        self.applied = list[Settings]()
        self.permits: Permits | None = None
        self.pinned: tuple[str, ...] = ()  # public keys, as [trust] names them
        self.spans: list[FetchSpan] = []
        self.memory_mb = 0
        self.codecs: tuple[str, ...] = CODECS
        self.agent = self.start()

    # What the coordinator has.

    def serve(self, blob: bytes, manifest: Manifest | None = None) -> Manifest:
        """Make a blob available, in chunks as ``manifest`` says where there is one."""
        manifest = manifest or describe(blob, self.chunk_bytes)
        self.served[manifest.transfer] = blob
        self.manifests[manifest.transfer] = manifest
        return manifest

    def order(self, number: int = 1, theta: Theta | None = None, **changes: Any) -> Order:
        """An order to train from theta (n,), by default the round's own."""
        model = theta_of(number) if theta is None else theta
        order = Order(
            run="run",
            round=number,
            task="train",
            bundle=self.bundle,
            model=self.serve(coded(model, self.compression)),
            model_hash=hash_of(model),
            work=Work(training=ONE_STEP),
            seed=number,
        )
        return changed(order, **changes)

    def version(self, number: int) -> dict[str, Any]:
        """The bundle of an order, in even rounds another version of the first one."""
        if number % 2:
            return {"bundle": self.bundle}
        return {"bundle": self.serve(make_bundle(7)), "origin": self.bundle.sha256}

    def step(self, base: Theta, seed: int) -> tuple[Step, Theta]:
        """A step from base (n,), and the version (n,) it leads to."""
        packed = encode(top_k(drift(seed), N // 10), ValueCoding.BF16, self.compression)
        after = base.copy()
        decode(packed, N).add_to(after)
        return Step(hash_of(base), self.serve(packed)), after

    def chain(self, number: int, length: int) -> list[Order]:
        """Orders from ``number`` on, each a step ahead of the last; the first has none."""
        theta, steps = theta_of(number), tuple[Step, ...]()
        found = [self.order(number, theta)]
        for i in range(1, length):
            step, theta = self.step(theta, 1000 + number + i)
            steps = (*steps, step)
            found.append(self.order(number + i, theta, steps=steps))
        return found

    def patched(self, number: int, patch: bytes) -> Order:
        """An order with an inline patch."""
        return self.order(number, patch=patch, patch_hash=hashlib.sha256(patch).digest())

    # The device.

    def gate(self) -> Closed:
        return Closed(self.closed, self.spares_link and bool(self.closed))

    def start(self, incarnation: int = 1) -> Agent:
        """Bring the device to life from what is on its disk, and connect it to nothing yet."""
        hello = Hello(
            bytes(16), "test", ("onnxruntime",), ("zstd",), self.codecs, num_train=10, num_test=10,
            memory_mb=self.memory_mb,
        )  # fmt: skip
        identity = Identity(DEVICE, FLEET, KEYS, hello)
        self.topics.clear()
        rng = np.random.default_rng(3)
        disk = self.blobs(), self.journal()
        agent = Agent(
            identity,
            *disk,
            rng,
            incarnation,
            gate=self.gate if self.gated else None,
            settings=None
            if self.limits is None
            else OwnSettings(Settings(limits=self.limits), self.applied.append),
            permits=self.permits,
            pinned=verifiers(self.pinned),
            keyring=Keyring(
                SECRET, FLEET, DEVICE, Journal(self.folder / "keys", KeptKeys, 1), urandom
            ),
        )
        agent.will()
        return agent

    def blobs(self) -> BlobFolder:
        return BlobFolder(self.folder, min_free_bytes=0)

    def journal(self) -> Journal[AgentState]:
        return Journal(self.folder / "journal", AgentState, SCHEMA)

    def on_disk(self) -> AgentState:
        """What the device would know after a power cut."""
        return self.journal().load() or AgentState()

    def blob_files(self) -> set[str]:
        """The names of everything in the blob folder, parts included."""
        return {path.name for path in self.folder.glob("blobs/*")} | {
            path.name for path in self.folder.glob("parts/*")
        }

    def stock(self) -> BlobFolder:
        """The device's blob folder, with everything that the coordinator serves in it."""
        blobs = self.blobs()
        for blob in self.served.values():
            blobs.write(blob)
        return blobs

    def damage(self, sha256: bytes) -> None:
        """Flip a bit of a blob on its disk."""
        path = self.folder / "blobs" / sha256.hex()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    @contextmanager
    def refusing(self, call: str, least: int = 0, but: bytes = b"") -> Generator[None]:
        """Its disk refuses ``commit``, even at its last step, or a call of a blob folder.

        Of blobs only those of ``least`` bytes, ``but`` for one with this hash.
        """
        write, commit = BlobFolder.write, Journal[AgentState].commit

        def written(folder: BlobFolder, data: bytes) -> bytes:
            if len(data) < least or hashlib.sha256(data).digest() == but:
                return write(folder, data)
            raise StorageError(FULL)

        def committed(journal: Journal[AgentState], value: AgentState) -> None:
            commit(journal, value)
            raise StorageError(FULL)

        where, name, instead = {
            "write": (BlobFolder, call, written),
            "commit": (Journal, call, storage_error),
            "last step of a commit": (Journal, "commit", committed),
        }.get(call, (BlobFolder, call, storage_error))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(where, name, instead)
            yield

    def connect(self, max_packet: int = MAX_PACKET) -> list[AgentEffect]:
        """The link comes up, and the hello is welcomed."""
        self.max_packet = max_packet
        effects = self.agent.connected(self.now, max_packet)
        hellos = [m for _, m in self.opened(effects) if isinstance(m, Hello)]
        assert len(hellos) == 1
        self.listen(effects)
        return [
            *effects,
            *self.tell(Welcome(hellos[0].nonce, "0", VERSIONS, settings=self.settings)),
        ]

    @property
    def counters(self) -> Counter[str]:
        """How often what happened that a frame is dropped for; -1 where it isn't counted."""
        return self.agent.peer.counters

    def must_stop(self, now: float) -> bool:
        """Whether the job that runs has used up what the device trains in a day."""
        return self.agent.budget.must_stop(now)

    def reboot(self) -> list[AgentEffect]:
        """The device loses power and comes back, connected."""
        self.agent = self.start()
        return self.connect()

    def place(self) -> WorkerContext:
        """Where jobs are done."""
        return WorkerContext(
            self.agent.blobs,
            self.agent.vectors,
            self.train,
            self.test,
            lambda sha256: (read_bundle(self.agent.blobs, sha256, self.memory_mb), self.trainer),
            lambda: False,
            lambda: 0.0,
        )

    # Frames by hand.

    def tell(self, message: Message, transfer: bytes = bytes(16)) -> list[AgentEffect]:
        """One control frame from the coordinator."""
        return self.agent.receive(DOWN, self.peer.seal(message, transfer), self.now)

    def chunk(self, manifest: Manifest, index: int, data: bytes | None = None) -> list[AgentEffect]:
        """One chunk on the fleet's topic, right or wrong."""
        offset, length = manifest.span(index)
        body = self.served[manifest.transfer][offset : offset + length] if data is None else data
        topic = blob_topic(FLEET, manifest.transfer)
        frame = Frame(Kind.CHUNK, body, 7, 0, manifest.transfer, index)
        return self.agent.receive(topic, seal(frame, topic, None), self.now)

    def feed(self, *wanted: Manifest) -> list[AgentEffect]:
        """Every chunk of these blobs."""
        return [e for m in wanted for i in range(m.count) for e in self.chunk(m, i)]

    def begin(self, order: Order) -> Job:
        """The job that begins with an order and every chunk of its blobs."""
        self.tell(order)
        (start,) = only(self.feed(order.bundle, order.model), StartJob)
        return start.job

    def opened(self, effects: Sequence[object]) -> list[tuple[Frame, Message | None]]:
        """The frames among effects, as the coordinator reads them."""
        found: list[tuple[Frame, Message | None]] = []
        for send in only(effects, Send):
            frame = open_frame(send.payload, send.topic, self.keys.up)
            is_chunk = frame.kind is Kind.CHUNK
            found.append((frame, None if is_chunk else decode_body(frame.kind, frame.body)))
        return found

    def messages(self, effects: Sequence[object]) -> list[Message]:
        """The control messages among effects."""
        return [message for _, message in self.opened(effects) if message is not None]

    def waits(self, effects: Sequence[object]) -> list[str]:
        """Why no work is done, as each hello among effects says."""
        return [hello.waits for hello in only(self.messages(effects), Hello)]

    def listen(self, effects: Iterable[object]) -> None:
        """Take note of subscriptions and of the log."""
        for effect in effects:
            if isinstance(effect, Subscribe):
                self.topics.add(effect.topic)
            elif isinstance(effect, Unsubscribe):
                self.topics.discard(effect.topic)
            elif isinstance(effect, Note):
                self.notes.append(effect.text)

    # The whole round.

    def give(self, order: Order) -> None:
        """Hand an order over and carry out everything that follows at once."""
        self.order_at_hand = order
        self.pump(self.tell(order))

    def complete(self, number: int, **changes: Any) -> Order:
        """Give the order of a round, which must end in an update."""
        order = self.order(number, **changes)
        self.give(order)
        assert ("run", number) in self.updates, self.notes
        return order

    def pump(self, effects: Iterable[AgentEffect]) -> None:
        """Carry effects out, and those that follow, as link, worker and coordinator do."""
        queue = deque([*effects, *self.agent.poll(self.now)])
        while queue:
            effect = queue.popleft()
            self.listen([effect])
            if isinstance(effect, StartJob):
                queue += self.work(effect.job)
            if isinstance(effect, FetchSpan):
                queue += self.download(effect)
            for frame, message in self.opened([effect] if self.fits(effect) else []):
                queue += self.answer(frame, message)
            if not queue:  # as the runtime does after every step
                queue += self.agent.poll(self.now)

    def fits(self, effect: object) -> bool:
        """Whether the link would take a frame, as ``MqttLink.send`` judges it."""
        if (
            isinstance(effect, Send)
            and len(effect.payload) + len(effect.topic) + 64 > self.max_packet
        ):
            self.oversize += 1
            return False
        return True

    def known(self) -> AgentState:
        """What the device knows, or, where no test can see that, what its disk has."""
        return self.agent.state

    def work(self, job: Job, steps: int = -1) -> list[AgentEffect]:
        """What the worker thread does; stopped after so many steps, unless there are fewer than none."""
        left = count(steps, -1)
        try:
            outcome = run_job(job, replace(self.place(), stopped=lambda: next(left) == 0))
        except JobStopped as exc:
            return self.agent.interrupted(exc.checkpoint)
        except LocalError:  # a bug: the runtime lets the process end
            raise
        except SedgeError as exc:
            return self.agent.failed(exc, self.now)
        return self.agent.finished(outcome, self.now)

    def download(self, wanted: FetchSpan) -> list[AgentEffect]:
        """What the thread that asks web servers does."""
        self.spans.append(wanted)
        span = Span(wanted.url, wanted.manifest, wanted.first, wanted.end)
        effects: list[AgentEffect] = []
        end = SpanEnd(wanted.number)
        try:
            for index, data in span.chunks():
                effects += self.agent.fetched(FetchedChunk(wanted.number, index, data), self.now)
        except LinkError as exc:
            end = SpanEnd(wanted.number, str(exc))
        return [*effects, *self.agent.fetched(end, self.now)]

    def answer(self, frame: Frame, message: Message | None) -> list[AgentEffect]:
        """What the coordinator does."""
        match message:
            case Hello():
                self.hello = message
                welcome = self.tell(Welcome(message.nonce, "0", VERSIONS, settings=self.settings))
                order = self.order_at_hand
                return welcome if order is None else [*welcome, *self.tell(order)]
            case Get():
                return self.send_chunks(frame.transfer, message)
            case Offer():
                held = {0: message.data} if message.data else {}
                self.parts.setdefault(frame.transfer, {}).update(held)
                self.offers[frame.transfer] = message
                return self.take(message, message.number)
            case Decline():
                self.declines.append(message)
                self.order_at_hand = None
            case None:
                return self.take_chunk(frame)
            case _:
                pass
        return []

    def send_chunks(self, transfer: bytes, get: Get) -> list[AgentEffect]:
        """Chunks of what there is, for whoever listens."""
        manifest = self.manifests.get(transfer)
        if manifest is None or blob_topic(FLEET, transfer) not in self.topics:
            return []
        indices = sorted(from_bitmap(get.missing, manifest.count))
        self.chunks_sent += len(indices)
        return [effect for index in indices for effect in self.chunk(manifest, index)]

    def take_chunk(self, frame: Frame) -> list[AgentEffect]:
        """A chunk of an update."""
        offer = self.offers[frame.transfer]
        offer.manifest.check(frame.index, frame.body)
        self.parts[frame.transfer][frame.index] = frame.body
        return self.take(offer, 0)

    def take(self, offer: Offer, answered: int) -> list[AgentEffect]:
        """Store an update that is whole, and say so; ask for the rest of one that is not."""
        manifest, run, number = offer.manifest, offer.run, offer.round
        parts = self.parts[manifest.transfer]
        whole = b"".join(data for _, data in sorted(parts.items()))
        if hashlib.sha256(whole).digest() != manifest.sha256:
            return self.tell(Have(answered, to_bitmap(parts, manifest.count), 4), manifest.transfer)
        self.updates[run, number] = whole
        order = self.order_at_hand
        if order is not None and (order.run, order.round) == (run, number):
            self.order_at_hand = None
        return self.tell(Committed(run, number, manifest.sha256))

    def settle(self, seconds: float = 3600.0) -> None:
        """Let time pass until the agent has nothing left to do; ask again every ``RESEND_S``."""
        end, ask_at = self.now + seconds, self.now + RESEND_S
        self.pump([])
        while not self.agent.idle or self.order_at_hand is not None:
            due = [] if self.order_at_hand is None else [ask_at]
            due += [at] if (at := self.agent.timer()) is not None else []
            assert due, "the agent has work, and waits for nothing"
            assert min(due) < end, f"not done after {seconds} virtual seconds"
            self.now = max(self.now + 0.001, min(due))
            if self.order_at_hand is not None and self.now >= ask_at:
                ask_at = self.now + RESEND_S
                self.pump(self.tell(self.order_at_hand))
            self.pump([])

    def results(self) -> dict[tuple[str, int], tuple[Report, bytes]]:
        """The stored updates, but for the time that they took."""
        found = {key: decode_update(update) for key, update in self.updates.items()}
        return {
            key: (msgspec.structs.replace(report, seconds=0, step_s=None), bytes(payload))
            for key, (report, payload) in found.items()
        }

    def delta(self, number: int = 1, run: str = "run") -> Theta:
        """The decoded delta (n,) of a stored update."""
        _, payload = decode_update(self.updates[run, number])
        return decode(payload, N).dense()

    def report(self, number: int = 1, run: str = "run") -> Report:
        """The report of a stored update."""
        return decode_update(self.updates[run, number])[0]

    def own(self, run: str = "run") -> Theta:
        """The device's own model (n,), as its disk has it."""
        model = self.on_disk().runs[run].kept.model
        assert model is not None
        return self.stored(model)

    def residual(self, run: str = "run") -> Theta | None:
        """What the device still owes (n,), as its disk has it."""
        residual = self.on_disk().runs[run].kept.residual
        return None if residual is None else self.stored(residual)

    def stored(self, sha256: bytes) -> Theta:
        """A vector on the device's disk."""
        return np.frombuffer(self.blobs().read(sha256), "<f4").astype(np.float32)


MakeDevice = Callable[..., Harness]


def only(effects: Iterable[object], kind: type[E]) -> list[E]:
    """The effects of one kind."""
    return [effect for effect in effects if isinstance(effect, kind)]


FULL = "No space left on device (test)"


def storage_error(*args: object, **kwargs: object) -> object:
    """In place of any method that may find the disk full."""
    raise StorageError(FULL)
