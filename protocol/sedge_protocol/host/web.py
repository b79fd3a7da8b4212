"""Downloads a span of a blob from an HTTP server, chunk by chunk.

Only this module uses http.client. No header identifies the device: there is no cookie, no password, nothing
about the fleet. At most one chunk is in memory. The caller must verify the chunks.
"""

import contextlib
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple
from urllib.parse import urljoin, urlsplit

from sedge_protocol.errors import LinkError
from sedge_protocol.wire.places import MAX_URL
from sedge_protocol.wire.transfer import Manifest

# The longest that the server may stay silent, in seconds.
SILENCE_S = 20.0
MAX_REDIRECTS = 4
_REDIRECTS = (301, 302, 303, 307, 308)
_PRINTABLE = re.compile(r"[!-~]+")
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+|\*)")


class Address(NamedTuple):
    """The parts of a URL: host, port, whether it uses TLS, and the path."""

    host: str
    port: int
    tls: bool
    target: str


def parse(url: str) -> Address:
    """Parse an http:// or https:// URL. Raises ``LinkError`` for any other."""
    wrong = LinkError(f"{shown(url)}: expected http://host/path or https://host/path")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None
    printable = len(url) <= MAX_URL and _PRINTABLE.fullmatch(url) is not None
    if not printable or parts.scheme not in ("http", "https") or not host or port == 0:
        raise wrong
    if parts.username is not None:
        raise wrong
    tls = parts.scheme == "https"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Address(host, port or (443 if tls else 80), tls, target)


def shown(url: str) -> str:
    """Return a URL for display, without its query and user, which may contain a password."""
    start, at, rest = url.partition("?")[0].rpartition("@")
    return ascii(f"{start.partition('://')[0]}://...@{rest}" if at else rest)[1:-1][:200]


class Span:
    """The chunks from ``first`` to ``end`` - 1 of the blob at ``url``.

    Redirects are followed only where ``permits`` allows, and never from https to http. ``ca_file`` (PEM)
    replaces the system's certificate authorities. ``ranged`` is true if the server sent only the span.
    """

    def __init__(
        self,
        url: str,
        manifest: Manifest,
        first: int,
        end: int,
        permits: Callable[[str], bool] = lambda url: True,
        ca_file: str | None = None,
    ) -> None:
        self.ranged = True
        self._url, self._manifest, self._first, self._end = url, manifest, first, end
        self._permits, self._ca_file = permits, ca_file
        self._connection: HTTPConnection | None = None
        self._socket: socket.socket | None = None
        self.stopped = False

    def chunks(self) -> Iterator[tuple[int, bytes]]:
        """Yield each chunk's index and bytes, in order.

        A server without range support sends the whole blob. Then every chunk of it is yielded, so that one
        response supplies all missing chunks. Raises ``LinkError``, with a one-line message, for any
        failure.
        """
        try:
            response = self._answer()
            whole = range(self._manifest.count)
            for index in range(self._first, self._end) if self.ranged else whole:
                yield index, self._chunk(response, index)
        except (OSError, HTTPException, ValueError) as exc:
            raise LinkError(f"{shown(self._url)}: {_why(exc)}") from exc
        finally:
            if self._connection is not None:
                self._connection.close()

    def stop(self) -> None:
        """Stop the download from another thread. The pending read then raises ``LinkError``."""
        self.stopped = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def _answer(self) -> HTTPResponse:
        url, was_tls = self._url, False
        for _ in range(MAX_REDIRECTS + 1):
            address = parse(url)
            if was_tls and not address.tls:
                raise LinkError(f"{shown(self._url)}: redirects from https to {shown(url)}")
            if not self._permits(url):
                raise LinkError(
                    f"{shown(self._url)}: redirects to {shown(url)}, which edge.toml does not allow"
                )
            was_tls = address.tls
            response = self._get(address)
            if response.status not in _REDIRECTS:
                self._check(response)
                return response
            url = urljoin(url, response.getheader("Location", ""))
            response.close()
        raise LinkError(f"{shown(self._url)}: more than {MAX_REDIRECTS} redirects")

    def _get(self, address: Address) -> HTTPResponse:
        if self._connection is not None:  # this connection is to the server that redirected us here
            self._connection.close()
        self._connection = connection = self._to(address)
        connection.connect()
        # http.client drops its reference to a socket if the server will close the connection.
        self._socket = connection.sock
        if self.stopped:
            raise LinkError(f"{shown(self._url)}: stopped")
        start, last = (
            self._manifest.span(self._first)[0],
            sum(self._manifest.span(self._end - 1)) - 1,
        )
        headers = {"Range": f"bytes={start}-{last}", "User-Agent": "sedge"}
        connection.request("GET", address.target, headers=headers)
        return connection.getresponse()

    def _to(self, address: Address) -> HTTPConnection:
        host, port, tls, _ = address
        if not tls:
            return HTTPConnection(host, port, timeout=SILENCE_S)
        context = ssl.create_default_context(cafile=self._ca_file)
        return HTTPSConnection(host, port, timeout=SILENCE_S, context=context)

    def _check(self, response: HTTPResponse) -> None:
        """Raise ``LinkError`` for a response that is neither this span nor the whole blob."""
        size, start = self._manifest.size, self._manifest.span(self._first)[0]
        found = ""
        if response.getheader("Content-Encoding", "identity") != "identity":
            found = f"encoded as {response.getheader('Content-Encoding')!a}"
        elif response.status == 206:
            given = _RANGE.fullmatch(response.getheader("Content-Range", ""))
            if given is None or int(given[1]) != start or given[3] not in ("*", str(size)):
                found = f"sent {response.getheader('Content-Range')!a} for the bytes from {start} of {size}"
        elif response.status == 200:
            self.ranged = False
            if response.length not in (None, size):
                found = f"has {response.length} bytes, expected {size}"
        else:
            found = f"answered {response.status}"
        if found:
            raise LinkError(f"{shown(self._url)}: {found}")

    def _chunk(self, response: HTTPResponse, index: int) -> bytes:
        length = self._manifest.span(index)[1]
        data = response.read(length)
        if len(data) != length:
            raise LinkError(f"{shown(self._url)}: the response was cut off")
        return data


def _why(exc: Exception) -> str:
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"invalid certificate: {exc.verify_message}"
    if isinstance(exc, TimeoutError):
        return f"silent for {SILENCE_S:.0f} s"
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    return f"{type(exc).__name__}: {ascii(str(exc))[1:-1][:120]}"
