"""Asks the coordinator, on the doctor's behalf, whether it would accept this device.

The request is a hello with a start count that no agent has. It uses a separate session with its own client
id, so it changes neither the coordinator's state nor a running agent.
"""

import secrets
import struct
import time

from sedge_edge.config import EdgeConfig
from sedge_protocol import VERSION
from sedge_protocol.errors import LinkError, RemoteError, StorageError
from sedge_protocol.host.probe import NoAnswer, ask, measure
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import (
    ASKING,
    LEAST_PACKET_BYTES,
    MAX_BODY_BYTES,
    MAX_PACKET_BYTES,
    VERSIONS,
    Kind,
    packet_bytes,
)
from sedge_protocol.wire.messages import DOCTOR, Hello, Refusal, Welcome, decode_body
from sedge_protocol.wire.peer import Peer

ANSWER_S = 10.0
# A coordinator's start count is the time on its clock when it started, or slightly more. If the device's
# clock is behind that count by more than this, the clock is wrong.
BEHIND_S = 3600.0
# An upper bound, in bytes, on the padding's length field plus the excess of a welcome over the hello.
AROUND_PADDING = 64
THERE = "`sedge-cloud doctor` on the coordinator's machine says which"


def ask_coordinator(config: EdgeConfig) -> str:
    """Return a line about the coordinator's answer to this device.

    Raises ``LinkError`` and ``StorageError``, which say what is wrong, where, and how to fix it.
    """
    topic = topics.down(config.fleet, config.device)
    keys, nonce = config.keys(), DOCTOR + secrets.token_bytes(16 - len(DOCTOR))
    peer = Peer(topics.up(config.fleet, config.device), keys.up, keys.down, ASKING, ASKING)
    said: list[tuple[str, int]] = []

    def answers(payload: bytes) -> bool:
        try:
            frame = peer.peek(payload, topic)
            message = decode_body(frame.kind, frame.body)
        except RemoteError:
            return False
        if isinstance(message, Refusal) and message.reason == "revoked":
            text = (
                f"{config.device} is revoked: run `sedge-cloud device reissue {config.device}` on"
            )
            raise StorageError(
                f"{text} the coordinator, then copy the new secret to {config.secret_file}"
            )
        if not isinstance(message, Welcome) or message.nonce != nonce:
            return False
        said.append((message.version, frame.incarnation))
        return True

    question = peer.message(Hello(nonce, VERSION, versions=VERSIONS))
    try:
        ask(config.broker_settings(), topic, (question.topic, question.payload), answers, ANSWER_S)
    except NoAnswer:
        text = f"fleet {config.fleet}: no coordinator answers {config.device}: `sedge-cloud serve` is not"
        raise LinkError(f"{text} running, or secret_file is not the device's; {THERE}") from None
    except LinkError as exc:
        raise LinkError(_explained(str(exc), config)) from exc
    version, started = said[0]
    if time.time() < started - BEHIND_S:
        here, there = (time.strftime("%F %R", time.gmtime(at)) for at in (time.time(), started))
        text = f"this clock says {here} UTC, but the coordinator's said {there} when it started"
        raise StorageError(f"{text}: timedatectl set-ntp true")
    return f"coordinator {version} of fleet {config.fleet} hears {config.device}"


def largest_message(config: EdgeConfig) -> str:
    """Measure the largest message that reaches the coordinator and comes back. Returns a line about it.

    A welcome repeats the padding of the doctor's hello. Raises ``LinkError`` if the largest message is too
    small for any run, or if nothing comes back.
    """
    topic = topics.down(config.fleet, config.device)
    keys, session = config.keys(), secrets.token_bytes(4)
    peer = Peer(topics.up(config.fleet, config.device), keys.up, keys.down, ASKING, ASKING)

    def make(number: int, packet: int) -> tuple[str, bytes]:
        nonce = DOCTOR + session + struct.pack("<I", number)
        bare = peer.message(Hello(nonce, VERSION, versions=VERSIONS, padding=bytes(1)))
        # A welcome is as long as this hello, but the name of its topic is two characters longer.
        padding = min(
            packet - packet_bytes(topic, bare.payload), MAX_BODY_BYTES - len(bare.payload)
        )
        filler = bytes(max(0, padding - AROUND_PADDING))
        hello = peer.message(Hello(nonce, VERSION, versions=VERSIONS, padding=filler))
        return hello.topic, hello.payload

    def number(payload: bytes) -> int | None:
        try:
            message = decode_body(Kind.WELCOME, peer.peek(payload, topic).body)
        except RemoteError:
            return None
        if not isinstance(message, Welcome) or not message.nonce.startswith(DOCTOR + session):
            return None
        found: int = struct.unpack("<I", message.nonce[-4:])[0]
        return found

    try:
        limit = measure(config.broker_settings(), topic, make, number, ANSWER_S)
    except NoAnswer as exc:
        raise LinkError(f"not measured: {exc}") from None
    if limit < LEAST_PACKET_BYTES:
        text = (
            f"only messages of up to {limit} bytes come back, expected {LEAST_PACKET_BYTES} or more"
        )
        raise LinkError(
            f"{text}: raise message_size_limit or max_packet_size (Mosquitto), or the equivalent"
        )
    larger = "" if limit == MAX_PACKET_BYTES else "; larger ones are lost"
    return f"up to {limit} bytes reach the coordinator and come back{larger}"


def _explained(reason: str, config: EdgeConfig) -> str:
    """Explain a broker's refusal and how to fix it."""
    if "refused a message" in reason:
        text = (
            f"the broker accepts {config.device}, but not in fleet {config.fleet!r}: set `fleet` in"
        )
        return f"{text} edge.toml to the coordinator's fleet; `sedge-cloud doctor` there shows it"
    if "refused" in reason and "Not authorized" in reason:
        text = f"{reason}: revoked, another secret (did the state folder hold a newer one?), or a "
        text += "password file that the broker has not reloaded"
        return f"{text}; {THERE}"
    if "not yet valid" in reason:
        return f"{reason}: the clock is wrong (it says {time.ctime()}): timedatectl set-ntp true"
    return reason
