"""Leaves a fleet for good: notifies the coordinator, then deletes the device's state."""

import secrets
import shutil
import time
from pathlib import Path

from sedge_edge.config import EdgeConfig, load_config
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_protocol import VERSION
from sedge_protocol.errors import ConfigError, LinkError, RemoteError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.loop import lock_folder
from sedge_protocol.host.probe import ask
from sedge_protocol.wire import topics
from sedge_protocol.wire.frame import VERSIONS, next_incarnation
from sedge_protocol.wire.messages import Hello, Refusal, decode_body
from sedge_protocol.wire.peer import Peer

ANSWER_S = 30.0


def member(path: Path) -> EdgeConfig:
    """Return the configuration of a device that can leave.

    Raises ``ConfigError`` if the configuration is invalid, and ``StorageError`` if the device has no
    secret.
    """
    try:
        return load_config(path)
    except ConfigError as exc:
        read = exc.__cause__
        if exc.key != "secret_file" or read is None:
            raise
        if not isinstance(read.__cause__, FileNotFoundError):
            raise
        text = "this device has already left its fleet, or never had a secret"
        raise StorageError(f"{exc.found} does not exist: {text}") from exc


def leave(config: EdgeConfig, folder: Path, timeout_s: float = ANSWER_S) -> str:
    """Leave the fleet. Returns "" or the reason why the coordinator could not be notified.

    The contents of the device's state ``folder`` are deleted in either case. Raises ``StorageError`` while
    an agent uses the folder, or if the disk fails.
    """
    with lock_folder(folder):
        why = ""
        try:
            _tell(config, folder, timeout_s)
        except LinkError as exc:
            why = str(exc)
        with translated("delete", folder):
            for path in folder.iterdir():
                if path.name != "lock":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    return why


def _tell(config: EdgeConfig, folder: Path, timeout_s: float) -> None:
    """Repeat a hello that says the device is leaving, until the coordinator refuses the device.

    Raises ``LinkError`` if it never does.
    """
    keys, topic = config.keys(), topics.down(config.fleet, config.device)
    start = next_incarnation(_starts(folder), int(time.time()))
    peer = Peer(topics.up(config.fleet, config.device), keys.up, keys.down, start, 0)
    hello = peer.message(Hello(secrets.token_bytes(16), VERSION, versions=VERSIONS, leaves=True))

    def refuses(payload: bytes) -> bool:
        try:
            frame = peer.peek(payload, topic)
            message = decode_body(frame.kind, frame.body)
        except RemoteError:
            return False
        return isinstance(message, Refusal) and message.reason == "revoked"

    ask(config.broker_settings(), topic, (hello.topic, hello.payload), refuses, timeout_s)


def _starts(folder: Path) -> int:
    """Return the device's start count, or 0 if its state, which will be deleted, cannot be read."""
    try:
        state = Journal(folder / "journal", AgentState, SCHEMA).load()
    except StorageError:
        return 0
    return 0 if state is None else state.incarnation
