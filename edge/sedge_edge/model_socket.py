"""Serves the device's model on a Unix socket, for programs that may not read the agent's state.

    curl --unix-socket /run/sedge-edge/model.sock --data-binary @x.npy http://localhost/predict

It speaks HTTP. The model answers one request at a time, which bounds its use of memory:

    GET  /          the model as JSON: name, input type and shape, number of classes and their labels
    POST /predict   inputs (N, ...) as .npy, or as JSON (nested lists, Content-Type application/json). The
                    answer has the same form: outputs (N, C) as .npy, or JSON {"outputs": [[...]]}, for a
                    classifier with "classes", "probabilities" and "labels"

A bad request is answered with one line of text and a status of 400 or above. Any program that may open the
socket may use it. A silent client cannot lock others out: if there are too many clients, the one that has
kept the others waiting longest is disconnected.
"""

import contextlib
import io
import json
import os
import socket
import socketserver
import threading
from collections.abc import Callable, Generator, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sedge_edge.serving import Model
from sedge_protocol.errors import ConfigError, DataError, SedgeError
from sedge_protocol.host.array_files import read_arrays
from sedge_protocol.host.disk import translated

# The maximum size in bytes of one request's input: 27 images of 224 x 224 x 3 in float32. Larger inputs
# must be split.
MAX_BODY = 16 << 20
# The maximum size of an input in JSON, whose objects take twenty times as much memory.
MAX_JSON = 1 << 20
# The maximum number of clients at a time, and of bytes in all their inputs.
MAX_CLIENTS, MAX_BYTES = 16, 2 * MAX_BODY
# A client that is silent for this many seconds is disconnected.
PATIENCE_S = 5.0
_JSON = "application/json"
# The standard library's stubs use this type.
_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]


class ModelSocket:
    """Serves a device's newest model at ``path``, in a separate thread. Use it in a ``with`` statement.

    ``opened`` opens the model at the first request, so that an unused socket takes no memory for it.
    Entering raises ``StorageError`` if the socket cannot be created.
    """

    def __init__(self, path: Path, opened: Callable[[], Model]) -> None:
        self._path = path
        self._opened = opened
        self._model: Model | None = None

    def __enter__(self) -> "ModelSocket":
        with translated("open the socket", self._path):
            if self._path.is_socket():  # left behind by an agent that was killed
                self._path.unlink()
            self._server = _Server(str(self._path), self.model)
            os.chmod(self._path, 0o666)
        threading.Thread(target=self._server.serve_forever, name="model", daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def model(self) -> Model:
        """Return the model, which is opened at the first call.

        Raises ``ConfigError`` while there is no model, and ``StorageError`` for a disk error.
        """
        if self._model is None:
            self._model = self._opened()
        return self._model


class _Clients:
    """Limits the number of clients and the bytes of their inputs. Thread-safe.

    If there is no room for a new client, the oldest client that has not sent everything yet, or does not
    read its answer, is disconnected.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._bytes: dict[socket.socket, int] = {}  # oldest client first
        self._in_turn: set[socket.socket] = set()

    def enter(self, client: socket.socket, num_bytes: int = 0) -> None:
        """Make room for a client, or for its inputs.

        From now on, the client may be disconnected to make room for others.
        """
        with self._changed:
            self._bytes.pop(client, None)
            while len(self._bytes) >= MAX_CLIENTS or self._used() + num_bytes > MAX_BYTES:
                oldest = next((it for it in self._bytes if it not in self._in_turn), None)
                if oldest is None:  # all clients have sent everything and will be answered soon
                    self._changed.wait()
                else:
                    self._close(oldest)
            self._bytes[client] = num_bytes

    @contextlib.contextmanager
    def in_turn(self, client: socket.socket) -> Generator[None]:
        """Mark the client as waiting for the model, so that it is not closed to make room."""
        with self._changed:
            self._in_turn.add(client)
        try:
            yield
        finally:
            with self._changed:
                self._in_turn.discard(client)
                self._changed.notify_all()

    def leave(self, client: socket.socket) -> None:
        """Remove a client."""
        with self._changed:
            self._bytes.pop(client, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Disconnect all clients."""
        with self._changed:
            for client in list(self._bytes):
                self._close(client)

    def _used(self) -> int:
        return sum(self._bytes.values())

    def _close(self, client: socket.socket) -> None:
        del self._bytes[client]
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # ends a read or write in the client's thread


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 4 * MAX_CLIENTS

    def __init__(self, path: str, model: Callable[[], Model]) -> None:
        self.model = model
        self.turn = threading.Lock()
        self.clients = _Clients()
        super().__init__(path, _Handler)

    def process_request(self, request: _Request, client_address: object) -> None:
        """Serve a client in a separate thread."""
        self.clients.enter(cast(socket.socket, request))
        super().process_request(request, client_address)

    def shutdown_request(self, request: _Request) -> None:
        """Remove a client that has been served."""
        self.clients.leave(cast(socket.socket, request))
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop accepting clients and disconnect all of them."""
        super().server_close()
        self.clients.close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore exceptions in a handler, which nearly always mean that its client has disconnected."""


class _Handler(BaseHTTPRequestHandler):
    def setup(self) -> None:
        """Limit how long a client may be silent."""
        super().setup()
        self._server = cast(_Server, self.server)
        self.connection.settimeout(PATIENCE_S)

    def _model(self) -> Model:
        return self._server.model()

    def do_GET(self) -> None:
        """Answer with a description of the model."""
        if self.path == "/":
            self._answer(lambda: (_JSON, _described(self._model())))
        else:
            self._say(404, "text/plain", b"GET / or POST /predict\n")

    def do_POST(self) -> None:
        """Answer with the model's outputs."""
        length = self.headers.get("Content-Length", "")
        most = MAX_JSON if self.headers.get_content_type() == _JSON else MAX_BODY
        if self.path != "/predict":
            self._say(404, "text/plain", b"GET / or POST /predict\n")
        elif not length.isdecimal() or len(length) > 9 or int(length) > most:
            text = f"Content-Length: {length[:20]!r}, expected at most {most}\n"
            self._say(413, "text/plain", text.encode())
        else:
            self._server.clients.enter(self.connection, int(length))
            body = self.rfile.read(int(length))
            if len(body) == int(length):
                self._answer(lambda: self._predicted(body))

    def _predicted(self, body: bytes) -> tuple[str, bytes]:
        """Return the content type and the bytes of the answer."""
        model = self._model()
        if self.headers.get_content_type() == _JSON:
            return _JSON, _as_json(model, _from_json(body))
        found = io.BytesIO()
        np.save(found, model.predict(_from_npy(body)))
        return "application/octet-stream", found.getvalue()

    def _answer(self, made: Callable[[], tuple[str, bytes]]) -> None:
        with self._server.clients.in_turn(self.connection), self._server.turn:
            try:
                answer = 200, *made()
            except SedgeError as exc:
                answer = _status(exc), "text/plain", f"{exc}\n".encode()
        self._say(*answer)

    def _say(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because any program on the device could fill the log with requests."""


def _status(error: SedgeError) -> int:
    if isinstance(error, DataError):
        return 400
    return 503 if isinstance(error, ConfigError) else 500


def _described(model: Model) -> bytes:
    manifest = model.manifest
    fields = {
        "name": manifest.name,
        "input": {"dtype": manifest.input.dtype, "shape": manifest.input.shape},
        "num_classes": manifest.num_classes,
        "labels": manifest.labels,
    }
    return json.dumps(fields).encode()


def _from_npy(body: bytes) -> NDArray[np.generic]:
    found = read_arrays(io.BytesIO(body), "inputs", ".npy")
    if not isinstance(found, np.ndarray):
        raise DataError("inputs: an archive, expected one array as .npy")
    return found


def _from_json(body: bytes) -> NDArray[np.generic]:
    expected = "nested lists of numbers as JSON"
    try:
        lists = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise DataError(f"inputs: {exc}, expected {expected}") from exc
    try:
        return np.array(lists)
    except ValueError as exc:
        raise DataError(f"inputs: lists of different lengths, expected {expected}") from exc


def _as_json(model: Model, inputs: NDArray[np.generic]) -> bytes:
    if not model.manifest.num_classes:
        return _numbers({"outputs": model.predict(inputs).tolist()})
    found = model.classify(inputs)
    fields = {
        "outputs": found.outputs.tolist(),
        "classes": found.classes.tolist(),
        "probabilities": found.probabilities.tolist(),
        "labels": np.array(found.labels)[found.classes].tolist() if found.labels else [],
    }
    return _numbers(fields)


def _numbers(fields: Mapping[str, object]) -> bytes:
    try:
        return json.dumps(fields, allow_nan=False).encode()
    except ValueError as exc:
        raise DataError("outputs: NaN or inf cannot be written as JSON; request .npy") from exc
