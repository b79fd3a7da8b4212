"""Updates on their way in: an upload, what has arrived of it, and the answer that it gets."""

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
class Upload:
    """One upload in progress; ``damaged`` once all its chunks were right and the whole was not.

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
    """An update that is here and judged, and has no receipt yet; one that is rejected has no report.

    ``has_part``: some of it came in chunks that are on the disk.
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
    """The reply, and the receipt if one was just written; ``report`` comes with a good one only.

    ``left`` says why what had arrived in chunks is still on the disk: a collection removes it.
    """

    reply: Message | None = None
    row: UpdateRow | None = None
    report: Report | None = None
    left: StorageError | None = None


def reported(answer: Answer, counters: Counter[str]) -> list[UpdateReceived | Note]:
    """The messages about a receipt that was just written."""
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
