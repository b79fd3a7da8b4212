"""[download]: downloads blobs over HTTP. Decides which servers may be used, and runs the thread."""

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from sedge_edge.rounds.effects import FetchedChunk, FetchSpan, SpanEnd
from sedge_edge.sensors import link_is_metered
from sedge_protocol.errors import ConfigError, LinkError

if TYPE_CHECKING:
    from sedge_protocol.host.web import Span

# The number of chunks that may wait for the disk. A faster server has to wait.
WAITING = 4
# How often a waiting thread checks whether its download is still wanted.
LOOK_S = 0.5


class DownloadConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[download]: which web servers this device downloads large models and frozen bases from.

    If the coordinator has a web server for them, its orders name it. Whatever that server does not deliver
    correctly comes over MQTT.
    """

    http: Literal["any", "https", "never"] = "any"
    """Which of the addresses in orders to download from: ``any``, only ``https``, or ``never``, which
    leaves everything to MQTT."""
    hosts: tuple[str, ...] = ()
    """Names of the servers to download from, also after a redirect; if empty, any."""
    unmetered: bool = False
    """Use web servers only while the link is unmetered; for links on which only the broker's traffic is
    free."""
    ca_file: Path | None = None
    """Certificate of the authority that signed the servers' certificates, in PEM; by default, the
    system's authorities."""

    def check(self) -> None:
        """Raise ``ConfigError`` for a host that is not a plain name, or a missing certificate file."""
        for host in self.hosts:
            if not host or set(host) & set("/:@ "):
                raise ConfigError("download.hosts", host, "names such as cdn.example.org")
        if self.ca_file is not None and not self.ca_file.is_file():
            raise ConfigError("download.ca_file", str(self.ca_file), "a readable file")

    def permits(self, url: str) -> bool:
        """Return True if this URL may be requested now."""
        if self.http == "never" or (self.unmetered and link_is_metered()):
            return False
        return self.names(url)

    def names(self, url: str) -> bool:
        """Return True if this URL may be requested, regardless of whether the link is metered."""
        # Imported here, because http.client takes memory, which is scarce.
        from sedge_protocol.host.web import parse

        try:
            address = parse(url)
        except LinkError:
            return False
        hosts = {host.lower() for host in self.hosts}
        return (address.tls or self.http == "any") and (not hosts or address.host in hosts)


class HttpDownloads:
    """Downloads one span at a time, in a separate thread."""

    def __init__(self, config: DownloadConfig) -> None:
        self._config = config
        self._parts: queue.Queue[FetchedChunk | SpanEnd] = queue.Queue(WAITING)
        self._span: Span | None = None

    @property
    def waiting(self) -> bool:
        """Whether data have arrived that ``taken`` has not returned yet."""
        return not self._parts.empty()

    def start(self, wanted: FetchSpan, wake: Callable[[], None]) -> None:
        """Start fetching a span. Whenever data arrive, ``wake`` is called from another thread."""
        from sedge_protocol.host.web import Span

        self.stop()
        ca_file = None if self._config.ca_file is None else str(self._config.ca_file)
        self._span = span = Span(
            wanted.url, wanted.manifest, wanted.first, wanted.end, self._config.names, ca_file
        )
        work = threading.Thread(
            target=self._work, args=(span, wanted.number, wake), name="sedge-http", daemon=True
        )
        work.start()

    def stop(self) -> None:
        """Abandon the current request."""
        if self._span is not None:
            self._span.stop()
        self._span = None

    def taken(self) -> Iterator[FetchedChunk | SpanEnd]:
        """Yield everything that has arrived since the last call."""
        for _ in range(self._parts.qsize()):
            yield self._parts.get_nowait()

    def _work(self, span: "Span", number: int, wake: Callable[[], None]) -> None:
        end = SpanEnd(number)
        try:
            for index, data in span.chunks():
                if not self._hand(span, FetchedChunk(number, index, data), wake):
                    return
        except LinkError as exc:
            end = SpanEnd(number, str(exc))
        self._hand(span, end, wake)

    def _hand(self, span: "Span", part: FetchedChunk | SpanEnd, wake: Callable[[], None]) -> bool:
        """Pass on a part once there is room.

        Returns False if the download has been stopped in the meantime.
        """
        while not span.stopped:
            try:
                self._parts.put(part, timeout=LOOK_S)
            except queue.Full:
                continue
            wake()
            return True
        return False


NO_DOWNLOADS = HttpDownloads(DownloadConfig(http="never"))
