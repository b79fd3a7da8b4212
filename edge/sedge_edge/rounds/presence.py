"""The hello of each connection: said until the coordinator welcomes it.

A will is sealed when a connection begins and a goodbye when it ends; the nonce of all three says which
session they are of.
"""

import logging

import msgspec
import numpy as np

from sedge_protocol.wire.effects import Effect, Note, Send
from sedge_protocol.wire.messages import Goodbye, Hello, Welcome
from sedge_protocol.wire.peer import Peer
from sedge_protocol.wire.transfer import SILENCE_S, backoff

# So many hellos, within some 20 seconds, are answered by every coordinator that hears them.
UNHEARD = 6
# The nonce of a welcome that answers no hello.
CALL = bytes(16)


class Handshake:
    """Says hello, again after every silence."""

    def __init__(self, hello: Hello, peer: Peer, rng: np.random.Generator) -> None:
        self.greeted = False  # whether a hello of this start has ever been welcomed
        self._hello = hello
        self._peer = peer
        self._rng = rng
        self._nonce = bytes(16)
        self._due: float | None = None
        self._attempt = 0
        self._alone = True

    @property
    def answered(self) -> bool:
        """Whether this connection's hello has been welcomed."""
        return self._due is None

    def will(self) -> tuple[str, bytes]:
        """Topic and payload of the goodbye that the broker is to publish; begins a new session."""
        self._nonce = self._peer.awaited = self._rng.bytes(16)
        return self._peer.send_topic, self._peer.seal(Goodbye(self._nonce))

    def goodbye(self) -> Send:
        """The same, said on purpose."""
        return self._peer.message(Goodbye(self._nonce))

    def begin(self, now: float) -> None:
        """The link is up, or a coordinator has started that knows nobody: say hello."""
        self._due, self._attempt, self._alone = now, 0, True

    def timer(self) -> float | None:
        """When ``poll`` next wants to be called."""
        return self._due

    def poll(self, now: float) -> list[Effect]:
        """The hello, when it is due; and once a word that nobody answers."""
        if self._due is None or now < self._due:
            return []
        self._due = now + SILENCE_S + backoff(self._attempt, self._rng)
        self._attempt += 1
        found: list[Effect] = [
            self._peer.message(msgspec.structs.replace(self._hello, nonce=self._nonce))
        ]
        if self._attempt == UNHEARD:
            text = (
                f"no coordinator answers on {self._peer.send_topic}: is one running, and does the broker "
                "know this connection as this device, by its user name or certificate?"
            )
            found.append(Note(logging.WARNING, text))
        return found

    def welcome(self, message: Welcome, now: float) -> list[Effect]:
        """The coordinator has answered; or it calls, having just started.

        It may also answer another hello of this device: a late answer to the last connection's, or a
        second process or a copy of this one's disk says hello too. To answer that would be a quarrel.
        """
        if message.nonce == CALL:
            self.begin(now)
            return []
        if message.nonce != self._nonce:
            if not self._alone or not self.answered:
                return []
            self._alone = False
            text = (
                "the coordinator welcomes another process under this device's name: does a copy of its "
                "state run elsewhere? Only one can be heard"
            )
            return [Note(logging.WARNING, text)]
        first, self._due, self.greeted = self._due is not None, None, True
        self._peer.awaited = None
        text = f"welcomed by coordinator {message.version}"
        return [Note(logging.INFO, text)] if first else []
