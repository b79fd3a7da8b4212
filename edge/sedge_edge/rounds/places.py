"""Decides which blobs to download from HTTP servers, one at a time, and handles failures.

an order names a URL for a blob     request it there, one span of missing chunks after another
  -> chunks are checked by their digests and kept, like those that come over MQTT
  -> a wrong chunk, an error, silence   fetch the rest over MQTT, and ask no server for another blob
                                        until after a pause, which doubles with each failure
  -> the link becomes metered           fetch the rest over MQTT if the owner wants that (``permits``)
  -> the MQTT link goes down            request nothing until it is back: the device's own network may
                                        be at fault
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np

from sedge_edge.rounds.effects import FetchSpan, SpanEffect, StopSpan
from sedge_edge.rounds.waiting import CHECK_S
from sedge_protocol.wire.effects import Note
from sedge_protocol.wire.transfer import Fetch

# Give up on a server that has not delivered a whole chunk in this time, and fetch the blob over MQTT. At
# typical chunk sizes such a server is slower than 1 kB/s, so that MQTT cannot take longer.
STALL_S = 60.0
PAUSE_FIRST_S, PAUSE_MAX_S = 60.0, 3600.0
# The number of blobs to remember for which a server has failed.
MAX_DROPPED = 64

Permits: TypeAlias = Callable[[str], bool]


class Places:
    """The downloads over HTTP. ``permits`` says whether a URL may be requested now; None permits none.

    ``received`` is the number of bytes received but not yet reported.
    """

    def __init__(
        self, permits: Permits | None, counters: Counter[str], rng: np.random.Generator
    ) -> None:
        self.received = 0
        self._permits, self._counters, self._rng = permits, counters, rng
        self._chosen: dict[bytes, str] = {}  # the URL from which each transfer is downloaded
        self._seen: set[bytes] = set()
        self._dropped: dict[bytes, None] = {}  # SHA-256 of blobs for which a server has failed
        self._span: FetchSpan | None = None
        self._number = 0
        self._stall_at: float | None = None
        self._look_at = 0.0  # when to check the permits again
        self._pause_until, self._failures = 0.0, 0

    def takes(self, transfer: bytes) -> bool:
        """Return True if this blob is downloaded from a web server, and thus not requested over MQTT."""
        return transfer in self._chosen

    @property
    def asked(self) -> FetchSpan | None:
        """The span that is being requested, or None."""
        return self._span

    def sync(
        self,
        active: Mapping[bytes, Fetch],
        urls: Mapping[bytes, str],
        now: float,
        connected: bool,
    ) -> list[SpanEffect]:
        """Choose a source for each download that has begun, and request the next span.

        None of the downloads may be complete. ``connected`` says whether the MQTT link is up.
        """
        self._chosen = {t: urls.get(t, url) for t, url in self._chosen.items() if t in active}
        self._seen &= active.keys()
        self._withdraw(now)
        effects: list[SpanEffect] = []
        span = self._span
        if span is not None and not (connected and span.manifest.transfer in self._chosen):
            effects += self.halt()
        for transfer, fetch in active.items():
            if transfer not in self._seen:
                self._seen.add(transfer)
                url = urls.get(transfer)
                if url is not None and self._may_ask(url, fetch.manifest.sha256, now):
                    self._chosen[transfer] = url
        return [*effects, *self._next(active, now)] if connected else effects

    def _withdraw(self, now: float) -> None:
        """Switch to MQTT for blobs whose URLs are no longer permitted. The link may have become metered."""
        if self._permits is not None and now >= self._look_at:
            self._look_at = now + CHECK_S
            self._chosen = {t: url for t, url in self._chosen.items() if self._permits(url)}

    def _may_ask(self, url: str, sha256: bytes, now: float) -> bool:
        if self._permits is None or now < self._pause_until or sha256 in self._dropped:
            return False
        return self._permits(url)

    def _next(self, active: Mapping[bytes, Fetch], now: float) -> list[SpanEffect]:
        waiting = next((t for t in active if t in self._chosen), None)
        if self._span is not None or waiting is None:
            return []
        fetch = active[waiting]
        first = next(i for i in range(fetch.manifest.count) if i not in fetch.have)
        held = (i for i in range(first, fetch.manifest.count) if i in fetch.have)
        end = next(held, fetch.manifest.count)
        self._number += 1
        self._span = FetchSpan(self._number, self._chosen[waiting], fetch.manifest, first, end)
        self._stall_at = now + STALL_S
        return [self._span]

    def heard(self, size: int, now: float) -> None:
        """Record that a valid chunk has arrived."""
        self.received += size
        self._failures = 0
        self._stall_at = now + STALL_S

    def ended(self) -> None:
        """Record that the requested span has arrived completely."""
        self._span = self._stall_at = None

    def halt(self) -> list[SpanEffect]:
        """Stop the current request, which may be repeated later."""
        span, self._span, self._stall_at = self._span, None, None
        return [] if span is None else [StopSpan(span.number)]

    def failed(self, why: str, now: float) -> list[SpanEffect | Note]:
        """Handle a failure of the server: fetch the blob over MQTT, and use no server for a while."""
        span = self._span
        if span is None:
            return []
        sha256 = span.manifest.sha256
        self._chosen.clear()
        while len(self._dropped) >= MAX_DROPPED:
            del self._dropped[next(iter(self._dropped))]
        self._dropped[sha256] = None
        ceiling = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** min(self._failures, 10))
        self._pause_until = now + float(self._rng.uniform(0.5 * ceiling, ceiling))
        self._failures += 1
        self._counters["http_failed"] += 1
        text = f"blob {sha256.hex()[:16]}: {why}; fetching the rest over MQTT"
        return [*self.halt(), Note(logging.WARNING, text)]

    def timer(self) -> float | None:
        """Return the time at which the server's silence will count as a failure."""
        return self._stall_at
