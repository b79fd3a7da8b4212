"""The agent's requests to its shell, in addition to those that both sides have."""

from dataclasses import dataclass
from typing import TypeAlias

from sedge_edge.jobs.job import Job
from sedge_protocol.wire.effects import Effect
from sedge_protocol.wire.transfer import Manifest


@dataclass(frozen=True)
class StartJob:
    """Do this job in the worker thread, then call ``finished``, ``failed`` or ``interrupted``."""

    job: Job


@dataclass(frozen=True)
class FetchSpan:
    """GET the chunks from ``first`` to ``end`` - 1 of a blob; pass each chunk, and the end, to ``fetched``.

    Only one span is fetched at a time, unless the previous one was stopped. Answers repeat its ``number``.
    """

    number: int
    url: str
    manifest: Manifest
    first: int
    end: int


@dataclass(frozen=True)
class StopSpan:
    """Stop requesting the span with this number; anything that still arrives for it is ignored."""

    number: int


@dataclass(frozen=True)
class FetchedChunk:
    """A chunk of a span, not checked yet."""

    number: int
    index: int
    data: bytes


@dataclass(frozen=True)
class SpanEnd:
    """A span has ended: it is complete, or failed for this reason."""

    number: int
    error: str = ""


@dataclass(frozen=True)
class KeepCertificate:
    """Show the broker this certificate (DER) from the next connection on."""

    der: bytes


SpanEffect: TypeAlias = FetchSpan | StopSpan
AgentEffect: TypeAlias = Effect | StartJob | SpanEffect | KeepCertificate
