"""The stages of an incoming update: an upload in progress, a checked update, and the answer."""

import logging
from collections import Counter
from dataclasses import dataclass

from sedge_cloud.events import UpdateReceived
from sedge_cloud.store.rows import ClientModelRow, UpdateRow
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.messages import Message
from sedge_protocol.wire.transfer import Intake, Manifest
from sedge_protocol.wire.update import Report


@dataclass
class IncomingUpload:
    """One upload in progress.

    ``damaged`` is True once the complete update has had a wrong hash although every chunk was right.
    ``data`` is a small update that came in one chunk.
    """

    run: str
    round: int
    intake: Intake
    heard: float
    damaged: bool = False
    data: bytes = b""


@dataclass(frozen=True)
class JudgedUpdate:
    """An update that has been checked but has no receipt yet. If rejected, it has no ``report``.

    ``has_part`` is True if chunks of the update are on disk.
    """

    device: str
    transfer: bytes
    manifest: Manifest
    row: UpdateRow
    client: ClientModelRow | None = None
    small: bytes = b""
    report: Report | None = None
    has_part: bool = False


@dataclass(frozen=True)
class Answer:
    """The reply to an update, and its receipt if that was just written.

    Only an accepted update has a ``report``. ``left`` is the error that occurred if the update's chunks
    could not be removed from the disk; garbage collection will remove them.
    """

    reply: Message | None = None
    row: UpdateRow | None = None
    report: Report | None = None
    left: StorageError | None = None


def reported(answer: Answer, counters: Counter[str]) -> list[UpdateReceived | Note]:
    """Return the effects that report a receipt which was just written."""
    row = answer.row
    if row is None:
        return []
    if answer.report is not None:
        counters["late" if row.late else "updates"] += 1
        given = row.run, row.round, row.device, answer.report, row.size, row.late > 0
        return [UpdateReceived(*given)]
    counters["rejected"] += 1
    text = f"run {row.run}, round {row.round}: rejected the update of {row.device}: "
    return [Note(logging.WARNING, f"{text}{row.rejected}: {row.detail}")]
