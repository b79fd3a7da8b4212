"""What a web server does in front of a broker on port 443: ends TLS and passes the bytes on."""

import socket
import ssl
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOPBACK = "127.0.0.1"


@contextmanager
def tls_proxy(certificate: Path, key: Path, to_port: int) -> Generator[int]:
    """The port of a proxy for as many connections as come; all end with it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    links: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(work: threading.Thread) -> None:
        threads.append(work)
        work.start()

    def accept() -> None:
        with suppress(OSError):
            while True:
                outer, inner = server.accept()[0], socket.create_connection((LOOPBACK, to_port))
                links.extend((outer, inner))
                start(threading.Thread(target=_pass_on, args=(context, outer, inner)))

    with socket.create_server((LOOPBACK, 0)) as server:
        start(threading.Thread(target=accept))
        try:
            yield server.getsockname()[1]
        finally:
            for link in (server, *links):
                with suppress(OSError):
                    link.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()
            for link in links:
                link.close()


def _pass_on(context: ssl.SSLContext, outer: socket.socket, inner: socket.socket) -> None:
    """Both directions of one connection, in one thread, as an SSL object must not be shared."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=True)
    outer.settimeout(0.002)
    inner.settimeout(0.002)
    with suppress(OSError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
        while True:
            _copy(outer, incoming)
            with suppress(ssl.SSLWantReadError):
                while data := tls.read(65536):
                    inner.settimeout(None)
                    inner.sendall(data)
            inner.settimeout(0.002)
            with suppress(TimeoutError):
                if not (data := inner.recv(65536)):
                    break
                tls.write(data)
            outer.settimeout(None)
            outer.sendall(outgoing.read())
            outer.settimeout(0.002)
    with suppress(OSError):
        outer.shutdown(socket.SHUT_RDWR)
        inner.shutdown(socket.SHUT_RDWR)


def _copy(sock: socket.socket, bio: ssl.MemoryBIO) -> None:
    with suppress(TimeoutError):
        if not (data := sock.recv(65536)):
            raise ConnectionAbortedError
        bio.write(data)
