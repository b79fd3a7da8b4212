"""The device's model for programs that may not read the agent's folder: over HTTP, on a Unix socket."""

import contextlib
import http.client
import io
import json
import os
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.edge.home import make_home, put_models
from tests.edge.test_prediction import forward, rows, saved
from tools.bench.parts.real_fleet import wait_until
from torch import nn

from sedge_edge import Model, model_socket
from sedge_edge.__main__ import main
from sedge_edge.model_socket import MAX_BODY, MAX_JSON, ModelSocket
from sedge_export import export
from sedge_protocol.errors import StorageError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import TensorSpec, load, pack, unpack

JSON = {"Content-Type": "application/json"}
LABELS = ("cat", "dog", "fish")


class Local(http.client.HTTPConnection):
    """The standard library's client, on a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self._path)


def ask(
    path: Path, method: str, where: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> tuple[int, bytes]:
    with contextlib.closing(Local(path)) as client:
        client.request(method, where, body, headers or {})
        answer = client.getresponse()
        return answer.status, answer.read()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A device without a model so far."""
    return make_home(tmp_path / "home")


@pytest.fixture
def served(home: Path, tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "model.sock"
    with ModelSocket(path, lambda: Model(home.parent / "state")):
        yield path
    assert not path.exists()


def test_arrays_and_json(home: Path, served: Path, tiny: tuple[bytes, Theta]) -> None:
    bundle = unpack(tiny[0])
    manifest = msgspec.structs.replace(bundle.manifest, labels=LABELS)
    put_models(home, pack(msgspec.structs.replace(bundle, manifest=manifest)), {"first": tiny[1]})
    expected = forward(tiny[1], rows())
    status, body = ask(served, "POST", "/predict", saved(rows()))
    assert status == 200
    np.testing.assert_allclose(np.load(io.BytesIO(body)), expected, rtol=1e-5, atol=1e-6)

    status, body = ask(served, "POST", "/predict", json.dumps(rows().tolist()).encode(), JSON)
    found = json.loads(body)
    np.testing.assert_allclose(found["outputs"], expected, rtol=1e-5, atol=1e-6)
    assert found["classes"] == expected.argmax(axis=1).tolist()
    assert found["labels"] == [LABELS[one] for one in found["classes"]]
    powers = np.exp(expected)
    shares = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found["probabilities"], shares, rtol=1e-4)

    assert json.loads(ask(served, "GET", "/")[1]) == {
        "name": "tiny",
        "input": {"dtype": "float32", "shape": [6]},
        "num_classes": 3,
        "labels": list(LABELS),
    }


def test_a_class_for_each_token(
    home: Path, served: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The classes are the outputs' last axis, as only that fits the labels; so ``predict`` prints them."""
    module = nn.Sequential(nn.Linear(6, 6), nn.Unflatten(1, (2, 3)))
    export(
        module, torch.randn(4, 6), batch_size=4, name="tokens", num_classes=3, labels=LABELS,
        target=TensorSpec("int64", (2,)), folder=tmp_path / "tokens",
    )  # fmt: skip
    bundle, theta = load(tmp_path / "tokens")
    put_models(home, pack(bundle), {"run": theta})
    body = json.dumps(rows().tolist()).encode()
    found = json.loads(ask(served, "POST", "/predict", body, JSON)[1])
    logits = module(torch.from_numpy(rows())).detach()
    assert found["classes"] == logits.argmax(2).tolist()
    np.testing.assert_allclose(found["probabilities"], logits.softmax(2), rtol=1e-4)
    names = np.array(LABELS)[logits.argmax(2)].tolist()
    assert found["labels"] == names
    np.save(tmp_path / "x.npy", rows())
    assert main(["-c", str(home), "predict", str(tmp_path / "x.npy")]) == 0
    assert capsys.readouterr().out.splitlines() == [str(row) for row in names]


def test_whoever_may_open_it_may_ask(served: Path) -> None:
    assert stat.S_IMODE(os.stat(served).st_mode) == 0o666


@pytest.mark.parametrize(
    ("where", "body", "headers", "status", "said"),
    [
        ("/predict", b"no array", {}, 400, b"expected .npy"),
        ("/predict", b"[[1, 2]", JSON, 400, b"expected nested lists of numbers as JSON"),
        ("/predict", b"[[1], [2, 3]]", JSON, 400, b"expected nested lists of numbers as JSON"),
        ("/predict", b'["a"]', JSON, 400, b"expected numbers"),
        ("/predict", saved(np.zeros((1, 5))), {}, 400, b"inputs: x has rows of shape (5,)"),
        ("/predict", b"", {"Content-Length": str(MAX_BODY + 1)}, 413, b"expected at most"),
        ("/predict", b"", {**JSON, "Content-Length": str(MAX_JSON + 1)}, 413, b"expected at most"),
        ("/predict", b"", {"Content-Length": "-1"}, 413, b"expected at most"),
        ("/predict", b"", {"Content-Length": "9" * 5000}, 413, b"expected at most"),
        ("/elsewhere", b"", {}, 404, b"POST /predict"),
    ],
)
def test_bad_requests_leave_it_in_service(
    home: Path,
    served: Path,
    tiny: tuple[bytes, Theta],
    where: str,
    body: bytes,
    headers: dict[str, str],
    status: int,
    said: bytes,
) -> None:
    put_models(home, tiny[0], {"first": tiny[1]})
    found, text = ask(served, "POST", where, body, headers)
    assert (found, text.count(b"\n")) == (status, 1) and said in text
    assert ask(served, "POST", "/predict", saved(rows()))[0] == 200


def test_a_device_without_a_model_gets_one(
    home: Path, served: Path, tiny: tuple[bytes, Theta]
) -> None:
    assert ask(served, "POST", "/predict", saved(rows()))[0] == 503
    put_models(home, tiny[0], {"first": tiny[1]})
    assert ask(served, "POST", "/predict", saved(rows()))[0] == 200


def test_whole_numbers_as_json_are_inputs_too(
    home: Path, served: Path, tiny: tuple[bytes, Theta]
) -> None:
    put_models(home, tiny[0], {"first": tiny[1]})
    whole = np.arange(12, dtype=np.float32).reshape(2, 6)
    body = json.dumps(whole.astype(int).tolist()).encode()  # as JavaScript writes 1.0
    status, answer = ask(served, "POST", "/predict", body, JSON)
    assert status == 200, answer
    expected = forward(tiny[1], whole)
    np.testing.assert_allclose(json.loads(answer)["outputs"], expected, rtol=1e-5, atol=1e-6)


def test_infinite_outputs_are_no_json(home: Path, served: Path, tiny: tuple[bytes, Theta]) -> None:
    put_models(home, tiny[0], {"first": np.full_like(tiny[1], 1e30)})
    body = json.dumps([[1e30] * 6]).encode()
    status, answer = ask(served, "POST", "/predict", body, JSON)
    assert status == 400 and b"NaN or inf" in answer


def threads_of_clients() -> int:
    return sum("process_request" in thread.name for thread in threading.enumerate())


HEAD = b"POST /predict HTTP/1.0\r\nContent-Length: %d\r\n\r\n"


@pytest.mark.parametrize("first", [b"", b"POST /pre", HEAD % 1000 + b"x" * 999])
def test_clients_that_dawdle_hold_up_nobody(
    home: Path,
    served: Path,
    tiny: tuple[bytes, Theta],
    monkeypatch: pytest.MonkeyPatch,
    first: bytes,
) -> None:
    """However many there are, and whatever they have sent so far."""
    monkeypatch.setattr(model_socket, "PATIENCE_S", 3600.0)
    monkeypatch.setattr(model_socket, "MAX_BYTES", 5000)
    put_models(home, tiny[0], {"first": tiny[1]})
    with contextlib.ExitStack() as stack:
        for _ in range(3 * model_socket.MAX_CLIENTS):
            slow = stack.enter_context(socket.socket(socket.AF_UNIX))
            slow.connect(str(served))
            slow.sendall(first)
        assert ask(served, "POST", "/predict", saved(rows()))[0] == 200
        most = model_socket.MAX_CLIENTS + 1
        wait_until(lambda: threads_of_clients() < most, 20, "those who made room have gone")


def test_a_client_that_is_silent_is_closed(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_socket, "PATIENCE_S", 0.2)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(20)
        silent.connect(str(served))
        silent.sendall(HEAD % 1000)
        assert silent.recv(1) == b""


def test_clients_that_do_not_take_their_answers_hold_up_nobody(
    home: Path, served: Path, tiny: tuple[bytes, Theta], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_socket, "PATIENCE_S", 3600.0)
    put_models(home, tiny[0], {"first": tiny[1]})
    body = saved(np.zeros((25_000, 6), np.float32))  # whose answer no socket buffers
    with contextlib.ExitStack() as stack:
        for _ in range(model_socket.MAX_CLIENTS + 2):
            deaf = stack.enter_context(socket.socket(socket.AF_UNIX))
            deaf.connect(str(served))
            deaf.sendall(HEAD % len(body) + body)
        assert ask(served, "POST", "/predict", saved(rows()))[0] == 200


def test_what_a_killed_agent_left_is_replaced_and_nothing_else(home: Path, tmp_path: Path) -> None:
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with ModelSocket(path, lambda: Model(home.parent / "state")):
        assert ask(path, "GET", "/")[0] == 503
    path.write_text("a file")
    with pytest.raises(StorageError, match=f"open the socket {path}"):
        ModelSocket(path, lambda: Model(home.parent / "state")).__enter__()
    assert path.read_text() == "a file"
