"""The handshake of each connection: repeats the hello until the coordinator welcomes the device.

A last will is sealed when a connection begins, and a goodbye when it ends. Both contain the nonce of the
hello, which identifies the session.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec
import numpy as np

from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.frame import HEADER, MAX_PACKET_BYTES, start_time
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.messages import DOCTOR, Goodbye, Hello, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.reasons import without_numbers, without_paths
from sedge_protocol.wire.reconnect import HELLOS_A_SECOND
from sedge_protocol.wire.transfer import SILENCE_S, backoff

# Warn after this many unanswered hellos, which takes about 20 seconds. A running coordinator answers much
# sooner.
WARN_AFTER_HELLOS = 6
# The minimum time between two warnings of a kind that anyone who may publish on our topic can trigger, so
# that nobody can fill the log.
WARN_EVERY_S = 3600.0
# The nonce of a welcome that is not an answer, but asks one device to say hello.
NO_NONCE = bytes(16)
# A hint asks a whole shard of devices for hellos. Anyone can forge a hint, because it has no MAC, so only
# this many are answered at once, and then one per minute.
HINTS, HINT_EVERY_S = 3, 60.0


@dataclass(frozen=True)
class Identity:
    """The device's identity, and the hello that describes the device."""

    device: str
    fleet: str
    keys: DeviceKeys
    hello: Hello


class Handshake:
    """Sends a hello on each connection, and repeats it until there is an answer."""

    def __init__(
        self,
        hello: Hello,
        peer: Peer,
        rng: np.random.Generator,
        runs: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        self.ever_welcomed = False  # whether any hello has been welcomed since the agent started
        self.fleet_devices = 0  # from the last welcome; 0 if unknown
        self._hello = hello
        self._peer = peer
        self._rng = rng
        self._runs = runs  # returns the runs whose models the device keeps
        self._nonce = bytes(16)
        self._due: float | None = None
        self._attempt = 0
        self._warn_at = 0.0
        self._may_warn = True  # about another process under our name; at most once per connection
        self._hinted_at: list[float] = []  # times at which recent hints were or will be answered

    @property
    def nonce(self) -> bytes:
        """The nonce of this connection's hello."""
        return self._nonce

    @property
    def welcomed(self) -> bool:
        """Whether this connection's hello has been answered with a welcome."""
        return self._due is None

    def will(self) -> tuple[str, bytes]:
        """Begin a session. Returns the topic and the payload of its goodbye.

        The broker publishes the goodbye if the connection is lost.
        """
        self._nonce = self._peer.awaited = self._rng.bytes(16)
        return self._peer.send_topic, self._peer.seal(Goodbye(self._nonce))

    def goodbye(self) -> Send:
        """Return the same goodbye, for leaving on purpose."""
        return self._peer.message(Goodbye(self._nonce))

    def connected(self, now: float, max_packet_bytes: int) -> None:
        """Handle a new connection to a broker that announces this packet size: say hello."""
        limit = max_packet_bytes if max_packet_bytes < MAX_PACKET_BYTES else 0
        self._hello = msgspec.structs.replace(self._hello, max_packet=limit)
        self.begin(now)

    def begin(self, now: float) -> None:
        """Make a hello due at ``now``, on a new connection or after the coordinator has restarted.

        A restarted coordinator knows no devices.
        """
        self._due, self._attempt, self._may_warn = now, 0, True

    def hinted(self, now: float) -> None:
        """Handle a hint, with which the coordinator asks all devices of a shard for a hello.

        The hello becomes due after a random delay, or later still if too many hints have been answered
        recently.
        """
        if self._due is not None:  # a hello is already due
            return
        spread = self._rng.uniform(0, max(1, self.fleet_devices) / HELLOS_A_SECOND)
        rested = self._hinted_at[0] + HINTS * HINT_EVERY_S if len(self._hinted_at) == HINTS else now
        at = max(now + spread, rested)
        self._hinted_at = [*self._hinted_at, at][-HINTS:]
        self.begin(at)

    def follows(self, settings: bytes, now: float | None = None) -> None:
        """Set the name of the settings in force. If ``now`` is given, announce it in another hello."""
        self._hello = msgspec.structs.replace(self._hello, settings=settings)
        if now is not None:
            self.begin(now)

    def waits(self, why: str, now: float) -> list[Effect]:
        """Set the reason why the device is not accepting work, or "" if it is accepting work.

        If the reason has changed in more than its numbers, announce it in a new hello.
        """
        why = without_paths(why)[:1000]
        if without_numbers(why) == without_numbers(self._hello.waits):
            return []
        self._hello = msgspec.structs.replace(self._hello, waits=why)
        self.begin(now)
        return [Note(logging.INFO, f"waiting: {why}" if why else "continuing")]

    def has_examples(self, num_train: int, num_test: int, now: float) -> list[Effect]:
        """Set how many examples the device has now. If that has changed, announce it in another hello."""
        hello = msgspec.structs.replace(self._hello, num_train=num_train, num_test=num_test)
        if hello == self._hello:
            return []
        self._hello = hello
        self.begin(now)
        return [Note(logging.INFO, f"{num_train} training and {num_test} test examples now")]

    def certified(self, certificate: bytes, now: float) -> None:
        """Set the name of the certificate that the device now has, and announce it in another hello."""
        self._hello = msgspec.structs.replace(self._hello, certificate=certificate)
        self.begin(now)

    def timer(self) -> float | None:
        """Return the time at which ``poll`` is next due."""
        return self._due

    def poll(self, now: float) -> list[Effect]:
        """Send the hello if it is due. After many unanswered hellos, warn once."""
        if self._due is None or now < self._due:
            return []
        self._due = now + SILENCE_S + backoff(self._attempt, self._rng)
        self._attempt += 1
        effects: list[Effect] = [
            self._peer.message(
                msgspec.structs.replace(
                    self._hello,
                    nonce=self._nonce,
                    versions=self._peer.versions,
                    holds=tuple(self._runs()),
                )
            )
        ]
        if self._attempt == WARN_AFTER_HELLOS:
            spoken = ", ".join(map(str, self._peer.versions))
            text = (
                f"no coordinator answers on {self._peer.send_topic}: is one running that speaks protocol "
                f"version {spoken}"
            )
            if not self.ever_welcomed:
                text += (
                    ", and does the broker know this connection as this device, by its user name or "
                    "certificate"
                )
            effects.append(Note(logging.WARNING, f"{text}?"))
        return effects

    def welcome(self, message: Welcome, now: float) -> list[Effect]:
        """Handle a welcome, which answers our hello or announces that the coordinator has started.

        A welcome with a different nonce is a late answer to our last connection, or is meant for a second
        process under our name. It is not answered by a hello, because two such processes would then
        alternate forever.
        """
        self.fleet_devices = message.devices
        if message.nonce == NO_NONCE:
            self.begin(now)
            return []
        if message.nonce != self._nonce:
            if message.nonce.startswith(DOCTOR) or not self._may_warn or not self.welcomed:
                return []
            self._may_warn = False
            text = (
                "the coordinator welcomes another process under this device's name: is a copy of its "
                "state in use elsewhere? Only one of them can take part"
            )
            return [Note(logging.WARNING, text)]
        first, self._due, self.ever_welcomed = self._due is not None, None, True
        self._peer.awaited = None
        text = f"welcomed by coordinator {message.version}"
        return [Note(logging.INFO, text)] if first else []

    def replayed(self, payload: bytes, now: float) -> list[Effect]:
        """Handle a sealed frame that the replay window refused.

        Warns if it may come from a coordinator that is waiting for an answer.
        """
        newest, incarnation = self._peer.window.incarnation, HEADER.unpack_from(payload)[5]
        # A frame repeated within one start comes from the broker and is harmless.
        if incarnation >= newest or now < self._warn_at:
            return []
        self._warn_at = now + WARN_EVERY_S
        text = (
            f"ignored the coordinator: its start at {start_time(incarnation)} by its clock is before "
            f"the one at {start_time(newest)} that was heard earlier. If its state was wiped, restart "
            "this agent; if not, somebody is replaying old frames"
        )
        return [Note(logging.WARNING, text)]
