"""The client's counterpart: opens the client's frames, serves blobs, and waits for what an act expects.

It is a state machine without I/O, like the coordinator: it is given frames and the time, and returns
effects.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import numpy as np

from sedge_protocol.errors import RemoteError
from sedge_protocol.layout import Theta
from sedge_protocol.wire import topics
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.effects import Send
from sedge_protocol.wire.frame import (
    HEADER,
    MAC_OFFSET,
    NO_TRANSFER,
    VERSIONS,
    Frame,
    Kind,
    seal,
)
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import Cancel, Get, Hello, Message, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import Manifest, describe, from_bitmap

# Chunks are small, so that even an ordinary model has many.
CHUNK_BYTES = 4096


@dataclass(frozen=True)
class Finding:
    """A rule in WIRE.md or in one of its parts, whether the client kept it, and the act that checked it."""

    rule: str
    good: bool
    text: str
    act: str = field(default="", compare=False)


class Broken(Exception):
    """A rule is broken, so the rest of the act would be pointless."""

    def __init__(self, rule: str, text: str) -> None:
        self.rule, self.text = rule, text
        super().__init__(f"{rule}: {text}")


@dataclass(frozen=True)
class Heard:
    """A frame from the client. ``message`` is None for a chunk."""

    frame: Frame
    message: Message | None


@dataclass(frozen=True)
class Wait:
    """A wait, for at most ``seconds``, until the client sends a frame that ``wanted`` accepts."""

    wanted: Callable[[Heard], bool]
    seconds: float


@dataclass(frozen=True)
class Cut:
    """Tells the shell to break the client's connection."""


Step: TypeAlias = Send | Wait | Cut
Act: TypeAlias = Generator[Step, Heard | None, None]


@dataclass(frozen=True)
class StartModel:
    """A bundle, and the model (n,) that training starts from."""

    bundle: Bundle
    theta: Theta

    def salted(self, salt: int) -> "StartModel":
        """Return this model with another name and start vector, so that no device has it yet."""
        manifest = msgspec.structs.replace(self.bundle.manifest, name=f"conformance {salt}")
        noise = np.random.default_rng(salt).normal(0, 1e-3, self.theta.size).astype(np.float32)
        return StartModel(Bundle(manifest, self.bundle.files), self.theta + noise)


@dataclass
class Shelf:
    """The blobs to serve, the requests for them, and the chunks to damage once."""

    blobs: dict[bytes, tuple[Manifest, bytes]] = field(
        default_factory=dict[bytes, tuple[Manifest, bytes]]
    )
    asked: list[tuple[bytes, frozenset[int]]] = field(
        default_factory=list[tuple[bytes, frozenset[int]]]
    )
    astray: set[tuple[bytes, int]] = field(default_factory=set[tuple[bytes, int]])

    def put(self, blob: bytes) -> Manifest:
        """Serve a blob from now on. Returns its manifest."""
        manifest = describe(blob, CHUNK_BYTES)
        self.blobs[manifest.transfer] = manifest, blob
        return manifest

    def asked_for(self, manifest: Manifest) -> list[frozenset[int]]:
        """Return the chunks that each GET of a blob asked for, oldest first."""
        return [chunks for transfer, chunks in self.asked if transfer == manifest.transfer]


class Stage:
    """The coordinator's side of the connection to one client, ``device``.

    ``play`` is the script of the acts.
    """

    def __init__(
        self,
        fleet: str,
        device: str,
        keys: DeviceKeys,
        incarnation: int,
        play: Callable[["Stage"], Act],
    ) -> None:
        self.findings: list[Finding] = []
        self.act = ""
        self.shelf = Shelf()
        self.done = False
        self.hello: Hello | None = None
        self.fleet, self.device = fleet, device
        self.topic, self._down = topics.up(fleet, device), topics.down(fleet, device)
        self._hint = topics.hint(fleet, topics.shard_of(device))
        self._keys = keys
        self.incarnation = incarnation
        self._heard: dict[tuple[int, int], bytes] = {}  # MACs by start count and sequence number
        self.peer = self._new_peer()
        self._act = play(self)
        self._wait: Wait | None = None
        self._until = 0.0

    def restart(self) -> None:
        """Continue as a coordinator that has restarted."""
        self.incarnation += 1
        self.peer = self._new_peer()

    def begin(self, now: float) -> list[Step]:
        """Start the script now that the link is up, and run it until it first waits for the client."""
        return list(self._resume(None, now))

    def timer(self) -> float | None:
        """Return when to call ``poll`` next."""
        return None if self._wait is None else self._until

    def poll(self, now: float) -> list[Step]:
        """Continue the script if its current wait has timed out. Returns the script's next steps."""
        if self._wait is None or now < self._until:
            return []
        return list(self._resume(None, now))

    def receive(self, topic: str, payload: bytes, now: float) -> list[Step]:
        """Check and answer a frame from the client, and continue the act if it waits for this frame."""
        if topic != self.topic or self.done:
            return []
        try:
            opened = self.peer.open(payload, topic)
        except RemoteError as exc:
            self.check("3.3", False, f"invalid frame: {exc}")
            return []
        if opened is None:
            # A broker may lose, repeat and delay frames, but a client must not use a sequence number twice.
            if self._heard.get(_number(payload), _mac(payload)) != _mac(payload):
                self.check("3.6", False, "a frame repeats an earlier frame's number")
            return []
        heard = Heard(*opened)
        if heard.frame.kind is not Kind.CHUNK:
            self._heard[_number(payload)] = _mac(payload)
        found: list[Step] = []
        if isinstance(heard.message, Hello):
            self.hello = heard.message
            found.append(self.say(Welcome(heard.message.nonce, "conformance", VERSIONS)))
        elif isinstance(heard.message, Get):
            found += self._serve(heard.frame.transfer, heard.message)
        if self._wait is not None and self._wait.wanted(heard):
            found += self._resume(heard, now)
        return found

    def say(self, message: Message, transfer: bytes = NO_TRANSFER) -> Send:
        """Return the effect that sends a control frame to the client."""
        return self.peer.message(message, transfer)

    def hint(self) -> Send:
        """Return the effect that sends a hint, which asks all devices in the client's shard for HELLO."""
        return Send(self._hint, b"")

    def raw(self, payload: bytes) -> Send:
        """Return the effect that sends arbitrary bytes on the client's topic."""
        return Send(self._down, payload)

    def say_raw(self, kind: int, body: bytes, version: int = VERSIONS[-1]) -> Send:
        """Return the effect that sends a control frame of any kind, version and body with a valid MAC."""
        head = bytearray(self.peer.seal(Cancel("any", 0, ""))[:MAC_OFFSET])
        head[2], head[3] = version, kind
        struct.pack_into("<I", head, 36, len(body))
        sealed = self._down.encode() + head + body
        mac = hmac.digest(self._keys.down, sealed, hashlib.sha256)[:16]
        return Send(self._down, bytes(head) + mac + body)

    def check(self, rule: str, good: bool, text: str) -> None:
        """Record whether the client kept a rule. The act continues either way."""
        self.findings.append(Finding(rule, good, text, self.act))

    def expect(
        self, rule: str, text: str, wanted: Callable[[Heard], bool], seconds: float
    ) -> Generator[Step, Heard | None, Heard]:
        """Return the frame that the client must send within this many seconds.

        Raises ``Broken`` if it does not.
        """
        heard = yield Wait(wanted, seconds)
        if heard is None:
            raise Broken(rule, f"{text}: nothing within {seconds:g} s")
        self.check(rule, True, text)
        return heard

    def quiet(
        self, rule: str, text: str, unwanted: Callable[[Heard], bool], seconds: float
    ) -> Generator[Step, Heard | None, None]:
        """Record whether the client keeps a rule by sending nothing ``unwanted`` for this many seconds."""
        heard = yield Wait(unwanted, seconds)
        found = (
            ""
            if heard is None
            else f", found {heard.frame.kind.name} {getattr(heard.message, 'run', '')}"
        )
        self.check(rule, heard is None, f"{text}{found}")

    def _new_peer(self) -> Peer:
        down, up = self._keys.down, self._keys.up
        latest = max((incarnation for incarnation, _ in self._heard), default=0)
        return Peer(self._down, down, up, self.incarnation, latest)

    def _serve(self, transfer: bytes, get: Get) -> Iterator[Step]:
        held = self.shelf.blobs.get(transfer)
        if held is None:
            self.check("8.1", False, f"GET of transfer {transfer.hex()}, which is in no order")
            return
        manifest, blob = held
        try:
            wanted = from_bitmap(get.missing, manifest.count)
        except RemoteError as exc:
            self.check("8.3", False, f"GET: {exc}")
            return
        self.shelf.asked.append((transfer, frozenset(wanted)))
        for index in sorted(wanted):
            offset, length = manifest.span(index)
            data = blob[offset : offset + length]
            if (transfer, index) in self.shelf.astray:
                self.shelf.astray.discard((transfer, index))
                data = bytes(len(data))  # the client must treat a damaged chunk as lost
            topic = topics.blob(self.fleet, transfer)
            frame = Frame(Kind.CHUNK, data, self.incarnation, 0, transfer, index)
            yield Send(topic, seal(frame, topic, None))

    def _resume(self, heard: Heard | None, now: float) -> Iterator[Step]:
        """Run the script until it waits again or ends."""
        self._wait = None
        try:
            step = self._act.send(heard)
            while not isinstance(step, Wait):
                yield step
                step = next(self._act)
        except StopIteration:
            self.done = True
            return
        self._wait, self._until = step, now + step.seconds


def _mac(payload: bytes) -> bytes:
    """Return a frame's MAC."""
    return payload[MAC_OFFSET : HEADER.size]


def _number(payload: bytes) -> tuple[int, int]:
    """Return a frame's start count and sequence number."""
    return HEADER.unpack_from(payload)[5:7]


def kind_of(*kinds: type[Message]) -> Callable[[Heard], bool]:
    """Return a predicate that accepts messages of these types."""
    return lambda heard: isinstance(heard.message, kinds)
