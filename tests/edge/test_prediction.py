"""Predictions from what is on the disk: the right model, the right numbers, and every bad file."""

import hashlib
import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.edge.harness import Harness, N, hash_of, theta_of
from tests.edge.home import make_home, put_models
from tests.fleet import changed

from sedge_edge.agent import AgentEffect
from sedge_edge.config import BackendConfig, EdgeConfig, load_config
from sedge_edge.jobs.job import Job, Kept
from sedge_edge.prediction import personal_model, predict_file
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.rounds.waiting import CHECK_S
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.errors import ConfigError, DataError, StorageError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta

BACKEND = BackendConfig()


@pytest.fixture
def config(tmp_path: Path, tiny: tuple[bytes, Theta]) -> EdgeConfig:
    """A device with three runs, the newest of which has no model."""
    path = make_home(tmp_path / "home")
    bundle, theta = tiny
    put_models(path, bundle, {"old": theta, "newer": 2 * theta, "newest": None})
    return load_config(path)


def forward(theta: Theta, x: NDArray[np.float32]) -> NDArray[np.float32]:
    """The network (6, 4, 3) in numpy: weight and bias of each layer, one after the other in theta."""
    w1, b1 = theta[:24].reshape(4, 6), theta[24:28]
    w2, b2 = theta[28:40].reshape(3, 4), theta[40:43]
    found: NDArray[np.float32] = np.maximum(x @ w1.T + b1, 0) @ w2.T + b2
    return found


def rows(count: int = 11) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(size=(count, 6)).astype(np.float32)


def test_a_mixture_predicts_and_not_its_own_part(
    config: EdgeConfig, tiny: tuple[bytes, Theta]
) -> None:
    """``model`` is what a device predicts with, whatever else it keeps."""
    theta = tiny[1]
    journal = Journal(config.state_dir / "journal", AgentState, SCHEMA)
    state = journal.load()
    assert state is not None
    part = BlobFolder(config.state_dir, 0).write((5 * theta).astype("<f4").tobytes())
    kept = msgspec.structs.replace(state.runs["newer"].kept, part=part, gradient=part)
    newer = msgspec.structs.replace(state.runs["newer"], kept=kept)
    journal.commit(msgspec.structs.replace(state, runs={**state.runs, "newer": newer}))
    np.testing.assert_array_equal(personal_model(config.state_dir, "newer").theta, 2 * theta)


def test_before_its_first_training_a_device_predicts_with_its_class_shares(
    config: EdgeConfig, tiny: tuple[bytes, Theta]
) -> None:
    theta = tiny[1]
    journal = Journal(config.state_dir / "journal", AgentState, SCHEMA)
    state = journal.load()
    assert state is not None
    blobs = BlobFolder(config.state_dir, 0)
    base, start = (blobs.write((k * theta).astype("<f4").tobytes()) for k in (3, 4))
    newest = msgspec.structs.replace(state.runs["newest"], base=base, kept=Kept(start=start))
    journal.commit(msgspec.structs.replace(state, runs={**state.runs, "newest": newest}))
    model = personal_model(config.state_dir, "newest")
    assert not model.trained
    np.testing.assert_array_equal(model.theta, 4 * theta)


def test_the_newest_model_unless_a_run_is_named(
    config: EdgeConfig, tiny: tuple[bytes, Theta]
) -> None:
    theta = tiny[1]
    np.testing.assert_array_equal(personal_model(config.state_dir, None).theta, 2 * theta)
    np.testing.assert_array_equal(personal_model(config.state_dir, "old").theta, theta)
    assert personal_model(config.state_dir, None).num_classes == 3


@pytest.mark.parametrize("run", ["newest", "nothing"])
def test_a_run_without_a_model(config: EdgeConfig, run: str) -> None:
    with pytest.raises(ConfigError, match=f"run: found '{run}', expected one of: old, newer"):
        personal_model(config.state_dir, run)


def test_a_device_that_has_not_trained_yet_has_what_it_would_start_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gate closes when everything has come: behind a closed gate nothing is fetched."""

    def unplugged(job: Job) -> list[AgentEffect]:
        device.closed = "on battery"
        device.now += CHECK_S
        return device.agent.interrupted()

    device = Harness(tmp_path / "device", gated=True)

    device.connect()
    first, second, third = device.chain(1, 3)
    with monkeypatch.context() as plug:
        plug.setattr(device, "work", unplugged)
        device.give(first)
    model = personal_model(device.folder)
    assert not model.trained
    np.testing.assert_array_equal(model.theta, theta_of(1))

    device.closed = ""
    device.settle()
    assert personal_model(device.folder).trained
    np.testing.assert_array_equal(personal_model(device.folder).theta, device.own())

    device.give(changed(second, run="tested", task="evaluate"))
    device.settle()
    tested = personal_model(device.folder, "tested")
    assert not tested.trained and hash_of(tested.theta) == second.model_hash
    personal = SparseVector(N, np.array([3], np.uint32), np.array([7.0], np.float32))
    patch = encode(personal, ValueCoding.FP32)
    named = {"patch": patch, "patch_hash": hashlib.sha256(patch).digest()}
    monkeypatch.setattr(device, "work", unplugged)
    device.give(changed(third, run="tested", **named))
    started = personal_model(device.folder, "tested").theta.copy()
    assert started[3] == 7.0
    started[3] = 0.0
    assert not np.array_equal(started, tested.theta)
    assert personal_model(device.folder).trained  # the newest that it has trained


def test_a_device_that_has_never_run(tmp_path: Path) -> None:
    config = load_config(make_home(tmp_path))
    with pytest.raises(
        ConfigError, match="found 'newest', expected a run with a model, but none has arrived"
    ):
        personal_model(config.state_dir, None)


@pytest.mark.parametrize("count", [1, 11])
@pytest.mark.parametrize("kind", ["npy", "npz", "float64"])
def test_predictions_are_the_models(
    config: EdgeConfig, tmp_path: Path, count: int, kind: str
) -> None:
    path = tmp_path / "rows"
    with path.open("wb") as file:
        if kind == "npz":
            np.savez(file, x=rows(count), y=np.zeros(count))
        else:
            np.save(file, rows(count).astype("f8" if kind == "float64" else "f4"))
    model = personal_model(config.state_dir, None)
    found = predict_file(model, path, BACKEND)
    assert found.shape == (count, 3)
    np.testing.assert_allclose(found, forward(model.theta, rows(count)), rtol=1e-5, atol=1e-6)


def saved(array: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(compressed: bool = False, **arrays: NDArray[np.generic]) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(file, **arrays)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return file.getvalue()


BAD_FILES: dict[str, bytes] = {
    "empty": b"",
    "text": b"1,2,3\n",
    "pickle": saved(np.array([{"a": 1}], object)),
    "truncated": saved(rows())[:-5],
    "header cut": saved(rows())[:40],
    "header damaged": saved(rows()).replace(b"'shape': (11, 6)", b"'shape': (11, 6 "),
    "no x": archive(y=rows()),
    "archive cut": archive(x=rows())[:-30],
    "member damaged": archive(x=rows()).replace(rows()[3:4].tobytes(), bytes(24)),
    "compressed member damaged": archive(compressed=True, x=rows())[:100] + b"\xff" * 200,
}


def test_bad_files(config: EdgeConfig, tmp_path: Path) -> None:
    model = personal_model(config.state_dir, None)
    for name, data in BAD_FILES.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(
            DataError, match=f"^{path}: .*(expected .npy, .npz with x|expected x or arrays by name)"
        ):
            predict_file(model, path, BACKEND)
    with pytest.raises(DataError, match=r"missing\.npy: .*expected \.npy"):
        predict_file(model, tmp_path / "missing.npy", BACKEND)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, 5), np.float32), r"rows of shape \(5,\), but the model expects \(6,\)"),
        (np.full((4, 6), 2**25), r"is int64 and .* holds 33554432, but the model expects float32"),
        (np.full((4, 6), 1e300), "holds NaN or inf"),
        (np.float32(1.0), "x is a single value"),
        (np.array(["a"]), "expected numbers"),
    ],
)
def test_rows_that_the_model_cannot_take(
    config: EdgeConfig, tmp_path: Path, array: NDArray[np.generic], message: str
) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, array)
    with pytest.raises(DataError, match=message):
        predict_file(personal_model(config.state_dir, None), path, BACKEND)


@pytest.mark.parametrize("which", ["bundle", "model", "journal"])
def test_damage_on_disk_is_said(config: EdgeConfig, which: str) -> None:
    state = config.state_dir
    if which == "journal":
        victim = state / "journal"
    else:
        paths = sorted(state.glob("blobs/*"), key=lambda path: path.stat().st_size)
        victim = paths[-1] if which == "bundle" else paths[0]
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    with pytest.raises(StorageError, match="sha256"):
        for run in ("old", "newer"):
            personal_model(config.state_dir, run)


def test_a_function_of_the_devices_own(config: EdgeConfig, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", rows())
    (tmp_path / "predicting_client.py").write_text(
        "def fit(): pass\n"
        "def evaluate(): pass\n"
        "def predict(parameters, inputs):\n"
        "    w1, b1, w2, b2 = parameters\n"
        "    return (inputs @ w1.T + b1).clip(0) @ w2.T + b2\n"
    )
    model, backend = personal_model(config.state_dir, "old"), BackendConfig("predicting_client:fit")
    found = predict_file(model, tmp_path / "x.npy", backend, tmp_path)
    np.testing.assert_allclose(found, forward(model.theta, rows()), rtol=1e-5, atol=1e-6)
