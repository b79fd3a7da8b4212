"""The agent's own effects, in addition to those that it shares with the coordinator."""

from dataclasses import dataclass
from typing import TypeAlias

from sedge_edge.jobs.job import Job
from sedge_protocol.wire.effects import Effect
from sedge_protocol.wire.transfer import Manifest


@dataclass(frozen=True)
class StartJob:
    """Run this job in the worker thread, then call ``finished``, ``failed`` or ``interrupted``."""

    job: Job


@dataclass(frozen=True)
class FetchSpan:
    """Request the chunks of a blob from ``first`` to ``end`` - 1. Pass each to ``fetched``.

    At the end, also pass a ``SpanEnd`` to ``fetched``. Apart from stopped requests, there is only one at a
    time. Answers repeat the ``number`` of their request.
    """

    number: int
    url: str
    manifest: Manifest
    first: int
    end: int


@dataclass(frozen=True)
class StopSpan:
    """Stop requesting the span with this number.

    Anything that still arrives for the span will be ignored.
    """

    number: int


@dataclass(frozen=True)
class FetchedChunk:
    """A chunk of a span, which has not been checked yet."""

    number: int
    index: int
    data: bytes


@dataclass(frozen=True)
class SpanEnd:
    """The end of a span: it is complete, or has failed with this error."""

    number: int
    error: str = ""


@dataclass(frozen=True)
class KeepCertificate:
    """Use this certificate (DER) for the broker, from the next connection on."""

    der: bytes


SpanEffect: TypeAlias = FetchSpan | StopSpan
AgentEffect: TypeAlias = Effect | StartJob | SpanEffect | KeepCertificate
