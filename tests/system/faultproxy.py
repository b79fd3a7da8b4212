"""A TCP proxy that does to a link what the world does: slows it, cuts it, swallows it, refuses it."""

import contextlib
import socket
import sys
import threading
import time


class FaultProxy:
    """Listens on a loopback port and passes everything on to another, as told.

    ``rate`` limits bytes per second towards the broker (0: none). ``hole`` swallows both directions
    without closing anything. ``refuse`` closes new connections at once. ``sent`` counts bytes that
    went towards the broker. Of what comes from the broker, ``most`` bytes pass and the rest is swallowed.
    """

    def __init__(self, port: int) -> None:
        self.rate = 0
        self.hole = False
        self.refuse = False
        self.sent = 0
        self.most = sys.maxsize
        self.connections = 0
        self._target = port
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"mqtt://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut(self) -> None:
        pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                _shut(end)

    def close(self) -> None:
        self._closed = True
        _shut(self._listener)
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                if self.refuse:
                    raise ConnectionRefusedError
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                _shut(client)
                continue
            self.connections += 1
            self._pairs.append((client, server))
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, up: bool) -> None:
        try:
            while data := source.recv(8192):
                if self.hole:
                    continue
                if not up:
                    self.most -= len(data)
                    if self.most < 0:
                        continue
                else:
                    self.sent += len(data)
                    if self.rate:
                        time.sleep(len(data) / self.rate)
                sink.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(sink)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
