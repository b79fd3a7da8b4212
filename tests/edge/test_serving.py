"""``sedge_edge.Model``: the newest model that the agent has, switched in one step; and files for others."""

import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.edge.home import make_home, put_models
from tests.edge.test_prediction import forward, rows

from sedge_edge import Model
from sedge_edge.prediction import personal_model
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_export.exporter import export
from sedge_export.models import mlp
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.model_files import write_model
from sedge_protocol.host.onnx_runtime import library
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import load, pack
from sedge_protocol.wire.frozen import frozen_blob


@pytest.fixture
def home(tmp_path: Path, tiny: tuple[bytes, Theta]) -> Path:
    path = make_home(tmp_path / "home")
    put_models(path, tiny[0], {"first": tiny[1]})
    return path


def expect(model: Model, theta: Theta) -> None:
    np.testing.assert_allclose(model.predict(rows()), forward(theta, rows()), rtol=1e-5, atol=1e-6)


def test_a_better_model_is_served_at_once(home: Path, tiny: tuple[bytes, Theta]) -> None:
    bundle, theta = tiny
    newest, first = Model(home.parent / "state"), Model(home.parent / "state", run="first")
    expect(newest, theta)
    put_models(home, bundle, {"first": 2 * theta, "second": 3 * theta})
    expect(newest, 3 * theta)
    expect(first, 2 * theta)
    put_models(home, bundle, {"first": None, "second": None})
    expect(newest, 3 * theta)  # which it has in memory


def test_a_model_that_cannot_be_read_leaves_the_old_one_in_service(
    home: Path, tiny: tuple[bytes, Theta]
) -> None:
    bundle, theta = tiny
    state = home.parent / "state"
    model = Model(state)
    put_models(home, bundle, {"first": 2 * theta})
    journal = Journal(state / "journal", AgentState, SCHEMA).load()
    assert journal is not None
    name = journal.runs["first"].kept.model
    assert name is not None
    blob = next(state.glob(f"blobs/{name.hex()}*"))
    data = blob.read_bytes()
    blob.unlink()
    expect(model, theta)
    with pytest.raises(StorageError):
        Model(state)
    blob.write_bytes(data)
    expect(model, 2 * theta)
    (state / "journal").unlink()
    expect(model, 2 * theta)


def test_every_answer_is_of_one_model(home: Path, tiny: tuple[bytes, Theta]) -> None:
    bundle, theta = tiny
    model, done = Model(home.parent / "state"), threading.Event()
    answers = [forward(factor * theta, rows()) for factor in (1, 2)]
    seen: list[int] = []

    def ask() -> None:
        while not done.is_set():
            found = model.predict(rows())
            seen.append(next(i for i, a in enumerate(answers) if np.allclose(found, a, atol=1e-5)))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        put_models(home, bundle, {"first": (1 + turn % 2) * theta})
        before = len(seen)
        while len(seen) < before + 4 and any(thread.is_alive() for thread in threads):
            pass
    done.set()
    for thread in threads:
        thread.join()
    assert set(seen) == {0, 1} and len(seen) >= 80


def test_a_folder_without_an_agent_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"state_dir: found .*expected an agent's folder"):
        Model(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_frozen_tensors_serve_and_are_in_the_files(tmp_path: Path) -> None:
    torch.manual_seed(2)
    network = mlp(6, 4, 3)
    for parameter in list(network.parameters())[:2]:
        parameter.requires_grad_(False)
    folder = tmp_path / "bundle"
    export(network, torch.randn(4, 6), batch_size=4, name="t", num_classes=3, folder=folder)
    bundle, theta = load(folder)
    assert bundle.frozen is not None
    config, whole = make_home(tmp_path / "home"), np.concatenate([bundle.frozen, theta])
    put_models(config, pack(bundle), {"run": theta})
    state = config.parent / "state"
    with pytest.raises(StorageError):  # not fetched, or lost
        Model(state)
    BlobFolder(state, 0).write(frozen_blob(bundle.frozen))
    model, x = Model(state), rows(4)
    np.testing.assert_allclose(model.predict(x), forward(whole, x), rtol=1e-5, atol=1e-6)
    for name in ("model.npz", "model.onnx"):
        personal = personal_model(state)
        write_model(personal.bundle, personal.theta, tmp_path / name)
    with np.load(tmp_path / "model.npz") as tensors:
        assert sum(tensors[name].size for name in tensors) == whole.size
    (logits,) = library().InferenceSession(tmp_path / "model.onnx").run(None, {"x": x})
    np.testing.assert_allclose(logits, forward(whole, x), rtol=1e-5, atol=1e-6)
