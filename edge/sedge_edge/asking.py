"""Asks to join a fleet on a token's topic, until the request is answered (spec/enrolment.md, E8 to E13)."""

import time
from collections.abc import Callable
from functools import cached_property
from hmac import compare_digest

from sedge_edge import VERSION
from sedge_protocol.errors import ConfigError, LinkError, RemoteError
from sedge_protocol.host.enrolment import Token
from sedge_protocol.host.mqtt import BrokerSettings, Connected, Disconnected, MqttLink, Received
from sedge_protocol.host.tls import certificate_in, client_pem
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import EARLIEST_CLOCK_S, Frame, Kind, open_frame, seal
from sedge_protocol.wire.joining import Agreement, key_name, private_key, public_key
from sedge_protocol.wire.keys import DeviceKeys, parse_secret
from sedge_protocol.wire.messages import Join, Joined, decode_body, encode_body
from sedge_protocol.wire.reconnect import is_unknown_account

# The first and the longest wait before the request is repeated, in seconds. The wait doubles each time.
FIRST_S, LAST_S = 1.0, 30.0
# The user is informed if no answer at all has arrived for this many seconds.
SILENT_S = 10.0
_STEP_S = 0.02
_NEW = "`sedge-cloud device token add` on the coordinator creates a new one"


class JoinRefused(LinkError):
    """The coordinator or the broker has refused. Repeating the same request would not help."""


class Asking:
    """Creates and checks the messages of a device that joins with a token.

    ``name`` is the id to request. ``seed`` is the 32 bytes from which the device's key is generated.
    """

    def __init__(self, token: Token, name: str, seed: bytes) -> None:
        self.token, self.name = token, name
        self._private = private_key(seed)
        self._keys = DeviceKeys.of(parse_secret(token.key, "token"))

    @cached_property
    def point(self) -> bytes:
        """The device's public key."""
        return public_key(self._private)

    @cached_property
    def _agreement(self) -> Agreement:
        """The keys shared with the coordinator.

        Raises ``ConfigError`` if the token's public key is invalid.
        """
        fleet, token = self.token.fleet, self.token.token
        try:
            return Agreement.of(self._private, self.token.public(), self.point, fleet, token)
        except RemoteError as exc:
            raise ConfigError("token", str(exc), "the whole line, unchanged") from exc

    @property
    def secret(self) -> bytes:
        """The device's secret, which is valid once the device is accepted."""
        return self._agreement.secret

    @property
    def down(self) -> str:
        """The topic on which answers arrive."""
        return topics.down(self.token.fleet, self.token.token)

    def settings(self, ca_file: str | None) -> BrokerSettings:
        """Return the settings for connecting with the token's own account at the broker."""
        name, pem = self.token.token, self.token.certificate
        own = None
        if pem is not None:
            secret = parse_secret(self.token.key, "token")
            own = client_pem(secret, certificate_in(pem, "token", "its certificate"))
        password = self._keys.password
        return BrokerSettings(self.token.url, name, name, password, ca_file, client_pem=own)

    def question(self) -> tuple[str, bytes]:
        """Return the topic and the bytes of a JOIN."""
        up = topics.up(self.token.fleet, self.token.token)
        asks = Join(self.point, self.name, self._agreement.asks(self.name), VERSION)
        return up, seal(Frame(Kind.JOIN, encode_body(asks), 1, 1), up, self._keys.up)

    def answer(self, payload: bytes) -> Joined | None:
        """Decode a genuine answer to this device. Returns None for anything else."""
        try:
            frame = open_frame(payload, self.down, self._keys.down)
            said = decode_body(frame.kind, frame.body) if frame.kind is Kind.JOINED else None
        except RemoteError:
            return None
        if not isinstance(said, Joined) or said.of != key_name(self.point):
            return None
        proof = self._agreement.answers(said.device)
        if said.state == "accepted" and not compare_digest(said.proof, proof):
            return None  # the sender has the token, but is not the coordinator
        return said


def ask_to_join(
    asking: Asking, ca_file: str | None, timeout_s: float | None, say: Callable[[str], None]
) -> Joined:
    """Repeat the request until the device is accepted.

    ``say`` is called once with each message for the user.

    Raises ``JoinRefused`` if the coordinator or the broker refuses, and ``LinkError`` if the device has
    not been accepted after ``timeout_s`` seconds.
    """
    link, told = MqttLink(asking.settings(ca_file), (asking.down,)), set[str]()
    begun = time.monotonic()
    ask_at, again_s, silent_at = 0.0, FIRST_S, begun + SILENT_S

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            say(text)

    try:
        while timeout_s is None or time.monotonic() < begun + timeout_s:
            for event in link.step():
                match event:
                    case Connected():
                        ask_at, silent_at = 0.0, time.monotonic() + SILENT_S
                    case Disconnected():
                        _explain(event.reason, asking, tell)
                    case Received():
                        said = asking.answer(event.payload)
                        if said is not None and said.state == "accepted":
                            return said
                        if said is not None:
                            silent_at = float("inf")
                            _hear(said, asking, tell)
                    case _:
                        pass
            now = time.monotonic()
            if link.up and now >= ask_at:
                link.send(*asking.question())
                ask_at, again_s = now + again_s, min(LAST_S, 2 * again_s)
            if link.up and now >= silent_at:
                tell("no answer yet: is `sedge-cloud serve` running? Still asking; Ctrl-C stops")
            time.sleep(_STEP_S)
    finally:
        link.close()
    raise LinkError(f"no answer within {timeout_s:.0f} s: enter the same line again to continue")


def _hear(said: Joined, asking: Asking, tell: Callable[[str], None]) -> None:
    """Tell the user that the device is waiting to be accepted.

    Raises ``JoinRefused`` if the device was refused.
    """
    if said.state == "refused":
        raise JoinRefused(f"{asking.name} was refused: {said.detail or _NEW}")
    tell(
        f"{said.device} is waiting to be accepted. On the coordinator: sedge-cloud device accept "
        f"{said.device}. Ctrl-C is safe: enter the same line again to continue"
    )


def _explain(reason: str, asking: Asking, tell: Callable[[str], None]) -> None:
    """Explain a lost connection. Raises ``JoinRefused`` if the broker does not know the token."""
    if is_unknown_account(reason):
        token = asking.token
        text = f"{token.url} does not know the token {token.token}: it has expired, was revoked, or"
        raise JoinRefused(f"{text} belongs to another fleet; {_NEW}")
    if time.time() < EARLIEST_CLOCK_S and "certificate" in reason:
        at = time.strftime("%F", time.gmtime())
        how = "sudo date -s or timedatectl set-ntp true"
        reason = f"{reason}; this device's clock says {at}; if that is wrong: {how}"
    tell(f"{reason}; trying again")
