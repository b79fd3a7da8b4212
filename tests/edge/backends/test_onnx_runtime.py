"""OnnxTrainer on hand-built programs, against a numpy twin.

The programs are a softmax regression written node by node, so that nothing here depends on the
exporter. theta is W (F, C) and b (C,), flat.
"""

import hashlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs
from numpy.typing import NDArray
from onnx import (
    ModelProto,
    StringStringEntryProto,
    TensorProto,
    checker,
    helper,
    numpy_helper,
    parser,
)
from tests.edge.harness import manifest_of

from sedge_edge.backends.onnx_runtime import OnnxTrainer
from sedge_edge.training.batches import batches
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainingDiverged, TrainingStopped
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.bundle import (
    Bundle,
    Program,
    TensorSpec,
    pack,
)
from sedge_protocol.wire.messages import LastBatch, Training

F, C, B = 5, 3, 4
N = F * C + C

# In ONNX's own text form. Every program begins with MODEL; FORWARD gives the loss of each row.
HEAD = '<ir_version: 9, opset_import: ["": 20]>'
CONSTANTS = f"""<int64[1] first = {{0}}, int64[1] last = {{1}}, int64[1] cut = {{{F * C}}},
    int64[1] end = {{{N}}}, int64[2] shape = {{{F}, {C}}}, int64[2] column = {{{B}, 1}},
    int64[1] flat = {{-1}}, int64[1, {C}] classes = {{{", ".join(map(str, range(C)))}}}>"""
MODEL = """
    W_flat = Slice (theta, first, cut, first)
    W = Reshape (W_flat, shape)
    b = Slice (theta, cut, end, first)
    product = MatMul (x, W)
    logits = Add (product, b)
"""
FORWARD = """
    probabilities = Softmax <axis = 1> (logits)
    y_column = Reshape (y, column)
    hits = Equal (y_column, classes)
    wanted = Cast <to = 1> (hits)
    logs = Log (probabilities)
    picked = Mul (logs, wanted)
    negative = ReduceSum <keepdims = 0> (picked, last)
    losses = Neg (negative)
    weighted = Mul (losses, w)
    loss_sum = ReduceSum <keepdims = 0> (weighted, first)
    weight_sum = ReduceSum <keepdims = 0> (w, first)
"""
GRADIENT = """
    loss = Div (loss_sum, weight_sum)
    error = Sub (probabilities, wanted)
    w_column = Reshape (w, column)
    scaled = Mul (error, w_column)
    mean = Div (scaled, weight_sum)
    turned = Transpose <perm = [1, 0]> (x)
    gradient_W = MatMul (turned, mean)
    gradient_b = ReduceSum <keepdims = 0> (mean, first)
    gradient_flat = Reshape (gradient_W, flat)
    gradient = Concat <axis = 0> (gradient_flat, gradient_b)
"""
COUNT = """
    guess = ArgMax <axis = 1, keepdims = 0> (logits)
    right = Equal (guess, y)
    right_number = Cast <to = 1> (right)
    right_weighted = Mul (right_number, w)
    correct_count = ReduceSum <keepdims = 0> (right_weighted, first)
"""
ROWS = f"float[{N}] theta, float[{B}, {F}] x"
BATCH = f"{ROWS}, int64[{B}] y, float[{B}] w"


def program(inputs: str, outputs: str, *nodes: str) -> bytes:
    """The bytes of an ONNX model."""
    text = f"{HEAD} test ({inputs}) => ({outputs}) {CONSTANTS} {{ {''.join((MODEL, *nodes))} }}"
    model = parser.parse_model(text)
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


FILES = {
    "gradient": program(BATCH, f"float[{N}] gradient, float loss", FORWARD, GRADIENT),
    "evaluate": program(
        BATCH, "float loss_sum, float correct_count, float weight_sum", FORWARD, COUNT
    ),
    "predict": program(ROWS, f"float[{B}, {C}] logits"),
}


def bundle(files: dict[str, bytes], uses_batch_statistics: bool = False) -> Bundle:
    listed = [
        Program(name, "onnxruntime", name, hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    ]
    layout = Layout.of([("W", (F, C), Role.PARAMETER), ("b", (C,), Role.PARAMETER)])
    manifest = manifest_of(
        layout,
        *listed,
        name="softmax",
        batch_size=B,
        input=TensorSpec("float32", (F,)),
        num_classes=C,
        uses_batch_statistics=uses_batch_statistics,
    )
    return Bundle(manifest, files)


@pytest.fixture(scope="module")
def trainer() -> OnnxTrainer:
    return OnnxTrainer(bundle(FILES), threads=1)


def examples(count: int, seed: int = 0) -> Examples:
    rng = np.random.default_rng(seed)
    return Examples(
        rng.standard_normal((count, F)).astype(np.float32), rng.integers(0, C, count, np.int64)
    )


def start(seed: int = 1) -> Theta:
    return np.random.default_rng(seed).standard_normal(N).astype(np.float32)


def never() -> bool:
    return False


def twin_losses(
    theta: NDArray[np.float64], x: NDArray[np.float64], y: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Loss of each row (B,), and probabilities (B, C)."""
    logits = x @ theta[: F * C].reshape(F, C) + theta[F * C :]
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    return -np.log(probabilities[np.arange(len(y)), y]), probabilities


def twin(
    theta: Theta, data: Examples, training: Training, seed: int, safe: bool
) -> tuple[NDArray[np.float64], float, int]:
    """The same training in float64 numpy, written from the definition of momentum and FedProx."""
    current, velocity = theta.astype(np.float64), np.zeros(N)
    steps, losses, weights = 0, 0.0, 0.0
    found = batches(len(data.targets), B, training.local_epochs, training.last_batch, seed, safe)
    for batch in found:
        x, y = data.inputs[batch.indices].astype(np.float64), data.targets[batch.indices]
        w = batch.weights.astype(np.float64)
        rows, probabilities = twin_losses(current, x, y)
        error = (probabilities - np.eye(C)[y]) * w[:, None] / w.sum()  # (B, C)
        gradient = np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)])
        gradient += training.prox * (current - theta)
        velocity = training.momentum * velocity + gradient
        if batch.epoch == training.local_epochs - 1:
            losses += float((rows * w).sum())
            weights += float(w.sum())
        current = current - training.learning_rate * velocity
        steps += 1
    return current, losses / weights, steps


@pytest.mark.parametrize("last_batch", ["pad", "fill", "drop"])
@pytest.mark.parametrize("count", [2, 11])
@pytest.mark.parametrize(("momentum", "prox"), [(0.9, 0.0), (0.0, 0.5)])
def test_training_agrees_with_the_twin(
    trainer: OnnxTrainer, last_batch: LastBatch, count: int, momentum: float, prox: float
) -> None:
    training = Training(3, 0.1, momentum, prox, last_batch)
    theta, data = start(), examples(count)
    before = theta.copy()
    trained = trainer.train(theta, data, training, 7, never)
    expected, loss, steps = twin(theta, data, training, 7, safe=True)
    np.testing.assert_array_equal(theta, before)
    np.testing.assert_allclose(trained.theta, expected, atol=2e-6)
    assert trained.loss == pytest.approx(loss, abs=2e-6)
    assert trained.steps == steps
    assert trained.theta.dtype == np.float32


def test_batch_statistics_turn_padding_into_filling() -> None:
    trainer = OnnxTrainer(bundle(FILES, uses_batch_statistics=True), threads=1)
    theta, data, training = start(), examples(6), Training(2, 0.1)
    expected = twin(theta, data, training, 7, safe=False)[0]
    trained = trainer.train(theta, data, training, 7, never)
    np.testing.assert_allclose(trained.theta, expected, atol=2e-6)
    assert not np.allclose(expected, twin(theta, data, training, 7, safe=True)[0], atol=1e-4)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_evaluation_and_prediction(trainer: OnnxTrainer, count: int) -> None:
    theta, data = start(), examples(count)
    rows, _ = twin_losses(theta.astype(np.float64), data.inputs.astype(np.float64), data.targets)
    logits = data.inputs @ theta[: F * C].reshape(F, C) + theta[F * C :]
    metrics = trainer.evaluate(theta, data)
    assert metrics.loss == pytest.approx(rows.mean(), abs=1e-5)
    assert metrics.accuracy == pytest.approx((logits.argmax(axis=1) == data.targets).mean())
    assert metrics.num_examples == count
    found = trainer.predict(theta, data.inputs)
    assert found.shape == (count, C)
    np.testing.assert_allclose(found, logits, atol=1e-5)


def test_frozen_tensors_and_an_anchor(trainer: OnnxTrainer) -> None:
    data, anchor = examples(11), start(2)
    training = Training(3, 0.1, 0.5, 0.3)
    free = trainer.train(start(), data, training, 7, never, anchor=anchor).theta
    around = trainer.train(start(), data, training, 7, never).theta
    assert np.linalg.norm(free - anchor) < np.linalg.norm(around - anchor)
    for name, place in (("W", slice(0, F * C)), ("b", slice(F * C, N))):
        frozen = structs.replace(training, freeze=(name,))
        found = trainer.train(start(), data, frozen, 7, never, anchor=anchor).theta
        assert found[place].tobytes() == start()[place].tobytes()
        assert (np.delete(found, place) != np.delete(start(), place)).all()
    with pytest.raises(CodecError, match="no tensor named 'c'"):
        trainer.train(start(), data, Training(freeze=("W", "c")), 7, never)
    with pytest.raises(CodecError, match="theta"):
        trainer.train(start(), data, training, 7, never, anchor=anchor[:-1])


@pytest.mark.parametrize(("momentum", "prox"), [(0.0, 0.0), (0.5, 0.1)])
def test_the_last_batchs_gradient(trainer: OnnxTrainer, momentum: float, prox: float) -> None:
    data = examples(8)  # two whole batches
    training = Training(1, 0.1, momentum, prox)
    trained = trainer.train(start(), data, training, 7, never, gradient=True)
    silent = trainer.train(start(), data, training, 7, never)
    assert trained.theta.tobytes() == silent.theta.tobytes()
    assert silent.gradient is None
    first, last = batches(8, B, 1, "pad", 7, True)
    one = Examples(data.inputs[first.indices], data.targets[first.indices])
    before = trainer.train(start(), one, training, 0, never).theta
    y = data.targets[last.indices]
    x = data.inputs[last.indices].astype(np.float64)
    error = (twin_losses(before.astype(np.float64), x, y)[1] - np.eye(C)[y]) / B
    wanted = np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)])
    assert trained.gradient is not None
    np.testing.assert_allclose(trained.gradient, wanted, rtol=0, atol=1e-6)


def test_two_models_side_by_side(trainer: OnnxTrainer) -> None:
    """The sent one ends as alone; the own one, with mix 1, as if it were the only one."""
    data, training = examples(11), Training(2, 0.1, 0.5)
    sent, own = start(1), start(2)
    mixed = trainer.train_mixed(sent, own, 1.0, False, data, training, 7, never)
    alone = trainer.train(sent, data, training, 7, never)
    assert mixed.sent.theta.tobytes() == alone.theta.tobytes()
    assert (mixed.sent.loss, mixed.sent.steps) == (alone.loss, alone.steps)
    expected, _, _ = twin(own, data, training, 7, safe=True)
    np.testing.assert_allclose(mixed.own, expected, atol=2e-6)
    assert mixed.mix == 1.0
    np.testing.assert_array_equal(own, start(2))
    pulled = structs.replace(training, prox=0.3)
    again = trainer.train_mixed(sent, own, 1.0, False, data, pulled, 7, never)
    np.testing.assert_allclose(again.own, expected, atol=2e-6, err_msg="prox is sent's alone")
    assert (again.sent.theta != alone.theta).any()
    adapted = trainer.train_mixed(sent, own, 0.5, True, data, training, 7, never)
    assert 0 <= adapted.mix <= 1
    assert adapted.mix != 0.5


def test_stopping_at_each_step(trainer: OnnxTrainer) -> None:
    data, training = examples(11), Training(2, 0.1)  # 3 steps an epoch
    for allowed in range(6):
        asked: list[None] = []

        def stopped(asked: list[None] = asked, allowed: int = allowed) -> bool:
            asked.append(None)
            return len(asked) > allowed

        epoch = allowed // 3 + 1
        with pytest.raises(TrainingStopped, match=f"epoch {epoch} of 2, step {allowed + 1}"):
            trainer.train(start(), data, training, 0, stopped)
        assert len(asked) == allowed + 1


def test_divergence_names_epoch_and_step(trainer: OnnxTrainer) -> None:
    with pytest.raises(TrainingDiverged, match=r"epoch 1 of 2, step 2: the loss is"):
        trainer.train(start(), examples(11), Training(2, 1000.0), 0, never)
    with pytest.raises(TrainingDiverged, match="evaluation: the mean loss is"):
        trainer.evaluate(start() * np.float32(1e30), examples(4))


def test_parameters_beyond_float32_after_the_last_step(trainer: OnnxTrainer) -> None:
    """The loss of the step is still finite; only theta shows it."""
    data = examples(4)
    huge = Examples(data.inputs * np.float32(1e37), data.targets)
    with pytest.raises(
        TrainingDiverged, match=r"epoch 1 of 1, step 1: \d+ parameters are not finite"
    ):
        trainer.train(np.zeros(N, np.float32), huge, Training(1, 1000.0), 0, never)


def test_threads_share_one_trainer() -> None:
    shared = OnnxTrainer(bundle(FILES), threads=1)
    barrier = threading.Barrier(4)

    def work(seed: int) -> tuple[Theta, float]:
        barrier.wait()  # all threads open the sessions at once
        trained = shared.train(
            start(seed), examples(30, seed), Training(5, 0.1, 0.5, 0.1), seed, never
        )
        return trained.theta, shared.evaluate(trained.theta, examples(30, seed)).loss

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(work, range(4)))
    barrier = threading.Barrier(1)
    for seed, (theta, loss) in enumerate(together):
        alone = work(seed)
        np.testing.assert_array_equal(theta, alone[0])
        assert loss == alone[1]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"gradient": b""}, "cannot be loaded"),
        ({"gradient": b"not onnx"}, "cannot be loaded"),
        ({"gradient": FILES["gradient"][:-100]}, "cannot be loaded"),
        (
            {"gradient": FILES["predict"]},
            "takes theta, x and gives logits, expected theta, x, y, w",
        ),
        ({"evaluate": FILES["evaluate"]}, "no program 'gradient'"),
    ],
)
def test_a_bad_gradient_program_is_refused_at_once(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(CodecError, match=f"bundle 'softmax'.*{message}"):
        OnnxTrainer(bundle(files), threads=1)


def reading(file: str) -> bytes:
    """The train program, its last constant read from a file in the working directory."""
    model = ModelProto.FromString(FILES["gradient"])
    model.graph.initializer.append(
        TensorProto(
            name="secret",
            dims=[4],
            data_type=TensorProto.FLOAT,
            data_location=TensorProto.EXTERNAL,
            external_data=[StringStringEntryProto(key="location", value=file)],
        )
    )
    return bytes(model.SerializeToString())


def test_a_program_cannot_read_the_devices_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """onnxruntime would take it: it looks for such a file in the working directory."""
    (tmp_path / "secret").write_bytes(b"0123456789abcdef")
    monkeypatch.chdir(tmp_path)
    said = r"program 'gradient' cannot be loaded: model.graph.initializer\[\d\]: external_data"
    with pytest.raises(CodecError, match=said):
        OnnxTrainer(bundle({"gradient": reading("secret")}), threads=1)


def test_bytes_of_another_format_are_not_taken_for_it() -> None:
    """ONNX with the mark of onnxruntime's own format, which it would believe."""
    name = ModelProto(producer_name="  ORTM").SerializeToString()
    assert name[4:8] == b"ORTM"
    OnnxTrainer(bundle({"gradient": name + FILES["gradient"]}), threads=1)


# Predicts with a packed bundle on a machine that has as many pages of memory as its first argument says.
SMALL_MACHINE = """
import os, pathlib, sys
import numpy as np
real = os.sysconf
os.sysconf = lambda name: int(sys.argv[1]) if name == "SC_PHYS_PAGES" else real(name)
from sedge_edge.backends import open_trainer
from sedge_protocol.wire.bundle import unpack
trainer = open_trainer(unpack(pathlib.Path(sys.argv[2]).read_bytes()), "auto", 1)
theta, rows = np.zeros(int(sys.argv[3]), np.float32), np.zeros((1, int(sys.argv[4])), np.float32)
try:
    print(trainer.predict(theta, rows))
except Exception as exc:
    print(type(exc).__name__, exc)
"""


def test_a_program_cannot_take_the_devices_memory(tmp_path: Path) -> None:
    """400 MB, of an operator that may be used, on a device of 256: refused, where it would be killed."""
    model = ModelProto.FromString(FILES["predict"])
    model.graph.initializer.append(numpy_helper.from_array(np.full(2, 10_000), "huge"))
    model.graph.node[-1].output[0] = "small"
    filled = helper.make_node("ConstantOfShape", ["huge"], ["filled"])
    total = helper.make_node("ReduceSum", ["filled"], ["total"], keepdims=0)
    model.graph.node.extend(
        [filled, total, helper.make_node("Add", ["small", "total"], ["logits"])]
    )
    packed = tmp_path / "bundle"
    packed.write_bytes(pack(bundle({**FILES, "predict": model.SerializeToString()})))
    pages = 256 * 10**6 // os.sysconf("SC_PAGE_SIZE")
    words = [sys.executable, "-c", SMALL_MACHINE, str(pages), str(packed), str(N), str(F)]
    said = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    assert said.startswith("CodecError bundle 'softmax': program 'predict' failed: ")
    assert "Available memory" in said


def test_wrong_arrays_are_refused(trainer: OnnxTrainer) -> None:
    with pytest.raises(CodecError, match="theta"):
        trainer.train(start()[:-1], examples(4), Training(), 0, never)
    narrow = Examples(examples(4).inputs[:, :3], examples(4).targets)
    with pytest.raises(CodecError, match="program 'gradient' failed"):
        trainer.train(start(), narrow, Training(), 0, never)
