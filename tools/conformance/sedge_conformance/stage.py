"""A client's counterpart: opens its frames, serves its blobs, and waits for what an act expects.

A state machine without I/O, driven like the coordinator: frames and the time in, effects out.
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

# Small chunks, so that even an ordinary model has many.
CHUNK_BYTES = 4096


@dataclass(frozen=True)
class Finding:
    """A rule of WIRE.md or of its pages, and whether the client keeps it, as the first act showed."""

    rule: str
    good: bool
    text: str
    act: str = field(default="", compare=False)


class Broken(Exception):
    """A rule is broken, and the rest of the act would show nothing."""

    def __init__(self, rule: str, text: str) -> None:
        self.rule, self.text = rule, text
        super().__init__(f"{rule}: {text}")


@dataclass(frozen=True)
class Heard:
    """A frame of the client with its message; a chunk has none."""

    frame: Frame
    message: Message | None


@dataclass(frozen=True)
class Wait:
    """Wait until the client sends something that ``wanted`` accepts, or for this many seconds."""

    wanted: Callable[[Heard], bool]
    seconds: float


@dataclass(frozen=True)
class Cut:
    """Break the client's connection."""


Step: TypeAlias = Send | Wait | Cut
Act: TypeAlias = Generator[Step, Heard | None, None]


@dataclass(frozen=True)
class Model:
    """A bundle and the vector (n,) that its training begins with."""

    bundle: Bundle
    theta: Theta

    def salted(self, salt: int) -> "Model":
        """The same model under another name and from another start, so that no device has it."""
        manifest = msgspec.structs.replace(self.bundle.manifest, name=f"conformance {salt}")
        noise = np.random.default_rng(salt).normal(0, 1e-3, self.theta.size).astype(np.float32)
        return Model(Bundle(manifest, self.bundle.files), self.theta + noise)


@dataclass
class Shelf:
    """The blobs that are served, the requests for them, and the chunks that go astray once."""

    blobs: dict[bytes, tuple[Manifest, bytes]] = field(
        default_factory=dict[bytes, tuple[Manifest, bytes]]
    )
    asked: list[tuple[bytes, frozenset[int]]] = field(
        default_factory=list[tuple[bytes, frozenset[int]]]
    )
    astray: set[tuple[bytes, int]] = field(default_factory=set[tuple[bytes, int]])

    def put(self, blob: bytes) -> Manifest:
        """Serve a blob from now on."""
        manifest = describe(blob, CHUNK_BYTES)
        self.blobs[manifest.transfer] = manifest, blob
        return manifest

    def asked_for(self, manifest: Manifest) -> list[frozenset[int]]:
        """The requests for a blob, oldest first."""
        return [chunks for transfer, chunks in self.asked if transfer == manifest.transfer]


class Stage:
    """The coordinator's side of one client, ``device``; ``play`` gives the acts."""

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
        self._heard: dict[tuple[int, int], bytes] = {}  # MACs by start count and number
        self.peer = self._new_peer()
        self._act = play(self)
        self._wait: Wait | None = None
        self._until = 0.0

    def restart(self) -> None:
        """Start over as a restarted coordinator."""
        self.incarnation += 1
        self.peer = self._new_peer()

    def begin(self, now: float) -> list[Step]:
        """The link is up: play until the client is waited for."""
        return list(self._resume(None, now))

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return None if self._wait is None else self._until

    def poll(self, now: float) -> list[Step]:
        """Stop waiting when it is time."""
        if self._wait is None or now < self._until:
            return []
        return list(self._resume(None, now))

    def receive(self, topic: str, payload: bytes, now: float) -> list[Step]:
        """Handle a frame of the client: judge it, serve it, and pass it to the act if that waits for it."""
        if topic != self.topic or self.done:
            return []
        try:
            opened = self.peer.open(payload, topic)
        except RemoteError as exc:
            self.check("3.3", False, f"a frame that is refused: {exc}")
            return []
        if opened is None:
            # A broker may lose, repeat and delay frames, but no client seals two with the same number.
            if self._heard.get(_number(payload), _mac(payload)) != _mac(payload):
                self.check("3.6", False, "a frame whose number was used before")
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
        """A control frame for the client."""
        return self.peer.message(message, transfer)

    def hint(self) -> Send:
        """Call all of the client's shard."""
        return Send(self._hint, b"")

    def raw(self, payload: bytes) -> Send:
        """Any bytes on the client's own topic."""
        return Send(self._down, payload)

    def say_raw(self, kind: int, body: bytes, version: int = VERSIONS[-1]) -> Send:
        """A control frame of any kind and version, with any body and a valid MAC."""
        head = bytearray(self.peer.seal(Cancel("any", 0, ""))[:MAC_OFFSET])
        head[2], head[3] = version, kind
        struct.pack_into("<I", head, 36, len(body))
        sealed = self._down.encode() + head + body
        mac = hmac.digest(self._keys.down, sealed, hashlib.sha256)[:16]
        return Send(self._down, bytes(head) + mac + body)

    def check(self, rule: str, good: bool, text: str) -> None:
        """Record whether a rule is kept, and continue."""
        self.findings.append(Finding(rule, good, text, self.act))

    def expect(
        self, rule: str, text: str, wanted: Callable[[Heard], bool], seconds: float
    ) -> Generator[Step, Heard | None, Heard]:
        """Return what the client must send within this many seconds. Raises ``Broken``."""
        heard = yield Wait(wanted, seconds)
        if heard is None:
            raise Broken(rule, f"{text}: nothing within {seconds:g} s")
        self.check(rule, True, text)
        return heard

    def quiet(
        self, rule: str, text: str, unwanted: Callable[[Heard], bool], seconds: float
    ) -> Generator[Step, Heard | None, None]:
        """Report a broken rule if the client sends this within this many seconds."""
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
            self.check("8.1", False, f"GET of transfer {transfer.hex()}, which no order names")
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
                data = bytes(len(data))  # a chunk that was damaged on its way is as good as lost
            topic = topics.blob(self.fleet, transfer)
            frame = Frame(Kind.CHUNK, data, self.incarnation, 0, transfer, index)
            yield Send(topic, seal(frame, topic, None))

    def _resume(self, heard: Heard | None, now: float) -> Iterator[Step]:
        """Play on to the next wait, or to the end."""
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
    """A frame's MAC."""
    return payload[MAC_OFFSET : HEADER.size]


def _number(payload: bytes) -> tuple[int, int]:
    """A frame's start count and number."""
    return HEADER.unpack_from(payload)[5:7]


def kind_of(*kinds: type[Message]) -> Callable[[Heard], bool]:
    """Takes messages of these types."""
    return lambda heard: isinstance(heard.message, kinds)
