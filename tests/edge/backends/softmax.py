"""A softmax regression by hand: its programs for each backend, a numpy twin, and random data.

The ONNX programs are written node by node here, those of ExecuTorch function by function in ``make_pte``:
nothing depends on the exporter. theta is W (F, C) and b (C,), flat.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import checker, parser
from tests.fleet import bundle_of

from sedge_edge.training.batches import batches
from sedge_edge.training.examples import Examples, Inputs
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, Bundle
from sedge_protocol.wire.training import Training

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
    metric_sum = ReduceSum <keepdims = 0> (right_weighted, first)
"""
ROWS = f"float[{N}] theta, float[{B}, {F}] x"
BATCH = f"{ROWS}, int64[{B}] y, float[{B}] w"


def program(inputs: str, outputs: str, *nodes: str) -> bytes:
    text = f"{HEAD} test ({inputs}) => ({outputs}) {CONSTANTS} {{ {''.join((MODEL, *nodes))} }}"
    model = parser.parse_model(text)
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


FILES = {
    "gradient": program(BATCH, f"float[{N}] gradient, float loss", FORWARD, GRADIENT),
    "evaluate": program(
        BATCH, "float loss_sum, float metric_sum, float weight_sum", FORWARD, COUNT
    ),
    "predict": program(ROWS, f"float[{B}, {C}] logits"),
}

# It predicts as it should, and divides by 0 meanwhile: SIGFPE, in onnxruntime's own code.
DIVIDING = program(
    ROWS,
    f"float[{B}, {C}] logits, int64[{B}, {C}] quotient",
    "whole = Cast <to = 7> (logits)",
    "quotient = Div (whole, first)",
)

PTE = dict.fromkeys(FILES, Path(__file__).with_name("softmax.pte").read_bytes())  # one file for all
PROGRAMS = {ONNXRUNTIME: FILES, EXECUTORCH: PTE}


def bundle(
    files: dict[str, bytes], backend: str = ONNXRUNTIME, uses_batch_statistics: bool = False
) -> Bundle:
    layout = Layout.of([("W", (F, C), Role.PARAMETER), ("b", (C,), Role.PARAMETER)])
    changes = {"batch_size": B, "uses_batch_statistics": uses_batch_statistics}
    return bundle_of(layout, files, F, C, backend, name="softmax", **changes)


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
    theta: NDArray[np.float64], x: NDArray[np.float64], y: Inputs
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
        x, y = (
            data.inputs[batch.indices].astype(np.float64),
            data.targets[batch.indices].astype(int),
        )
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
