"""A web server that serves blobs by their SHA-256, either correctly or with a chosen fault."""

import re
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

LOOPBACK = "127.0.0.1"


class BlobServer(ThreadingHTTPServer):
    """A server for blobs.

    Requests are answered by the method of ``_Handler`` named ``manner``. ``asked`` lists the requested
    ranges.
    """

    daemon_threads = True

    def __init__(
        self,
        manner: str = "ranges",
        blobs: dict[str, bytes] | None = None,
        folder: Path | None = None,
    ) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        self.manner, self.blobs, self.folder = manner, {} if blobs is None else blobs, folder
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.ended = threading.Event()
        self.scheme = "http"
        self.elsewhere = ""

    @property
    def url(self) -> str:
        """The base URL of the blobs."""
        return f"{self.scheme}://{LOOPBACK}:{self.server_address[1]}"

    def find(self, name: str) -> bytes | None:
        """Return the blob with this name, from the folder if the server has one, or None."""
        if self.folder is None:
            return self.blobs.get(name)
        path = self.folder / name
        return path.read_bytes() if path.is_file() else None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors, because the tests include clients that disconnect."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    _range: ClassVar = re.compile(r"bytes=(\d+)-(\d+)")

    @property
    def blob_server(self) -> BlobServer:
        assert isinstance(self.server, BlobServer)
        return self.server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.blob_server.headers.append(dict(self.headers.items()))
        self.blob_server.asked.append(self.headers.get("Range", ""))
        self.close_connection = True
        data = self.blob_server.find(self.path.rpartition("/")[2])
        if data is None:
            self.send_error(404)
        else:
            getattr(self, self.blob_server.manner)(data)

    def ranges(self, data: bytes, sent: bytes | None = None, skew: int = 0) -> None:
        """Serve ranges, as every static web server does."""
        match = self._range.fullmatch(self.headers.get("Range", ""))
        assert match is not None, "a request without a range"
        first, last = int(match[1]) + skew, min(int(match[2]), len(data) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        self.wfile.write((data if sent is None else sent)[first : last + 1])

    def whole(self, data: bytes) -> None:
        """Ignore ranges, and send the whole blob."""
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def larger(self, data: bytes) -> None:
        """Ignore ranges, and send more bytes than are in the blob."""
        self.whole(data + b"more")

    def lies(self, data: bytes) -> None:
        """Send wrong bytes from some offset on."""
        self.ranges(data, data[:9000] + bytes(len(data) - 9000))

    def skews(self, data: bytes) -> None:
        """Send a range that was not requested."""
        self.ranges(data, skew=1)

    def cuts(self, data: bytes) -> None:
        """Disconnect midway."""
        self.ranges(data, data[: len(data) // 2])

    def stalls(self, data: bytes) -> None:
        """Stop sending midway, but stay connected."""
        self.cuts(data)
        self.wfile.flush()
        self.blob_server.ended.wait(30)

    def drips(self, data: bytes) -> None:
        """Use HTTP/1.0: send half at once, then 100 single bytes slowly, then the rest."""
        self.protocol_version = "HTTP/1.0"
        self.cuts(data)
        rest = data[len(data) // 2 :]
        for at in range(100):
            if self.blob_server.ended.wait(0.03):
                return
            self.wfile.write(rest[at : at + 1])
        self.wfile.write(rest[100:])

    def redirects(self, data: bytes) -> None:
        """Redirect to another server, or to a second name of the blob on this server."""
        if self.path.startswith("/there/"):
            self.ranges(data)
            return
        self.send_response(302)
        name = self.path.rpartition("/")[2]
        self.send_header("Location", f"{self.blob_server.elsewhere or '/there'}/{name}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def circles(self, data: bytes) -> None:
        """Redirect every request to the same URL."""
        self.send_response(301)
        self.send_header("Location", self.path)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def fails(self, data: bytes) -> None:
        """Fail every request."""
        self.send_error(503)

    def garbles(self, data: bytes) -> None:
        """Answer with something other than HTTP."""
        self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n")


@contextmanager
def serving(
    manner: str = "ranges",
    blobs: dict[str, bytes] | None = None,
    certificate: tuple[Path, Path] | None = None,
    folder: Path | None = None,
) -> Generator[BlobServer]:
    """Run a server within this context. It uses TLS if a certificate and its key are given."""
    server = BlobServer(manner, blobs, folder)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.scheme = "https"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
