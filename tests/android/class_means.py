"""A model whose steps have the same bytes in every runtime: C means of F whole numbers, one for each class.

For inputs that are small whole numbers a sum over a batch is exact in any order, and every other operation
of a step is rounded once, element by element. So ONNX Runtime and a loop in Java agree to the last bit.
"""

import numpy as np
from onnx import checker, parser
from tests.fleet import bundle_of

from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.bundle import Bundle

F, C, B = 256, 10, 8
N = C * F

HEAD = '<ir_version: 9, opset_import: ["": 20]>'
CONSTANTS = f"""<int64[2] shape = {{{C}, {F}}}, int64[2] column = {{{B}, 1}}, int64[2] tall = {{{C}, 1}},
    int64[1] flat = {{-1}}, int64[1] first = {{0}}, int64[1] last = {{1}},
    int64[1, {C}] classes = {{{", ".join(map(str, range(C)))}}}>"""
HITS = """
    means = Reshape (theta, shape)
    y_column = Reshape (y, column)
    same = Equal (y_column, classes)
    hits = Cast <to = 1> (same)
    weight_sum = ReduceSum <keepdims = 0> (w, first)
"""
GRADIENT = """
    w_column = Reshape (w, column)
    weighted = Mul (hits, w_column)
    turned = Transpose <perm = [1, 0]> (weighted)
    sums = MatMul (turned, x)
    counts_flat = ReduceSum <keepdims = 0> (weighted, first)
    counts = Reshape (counts_flat, tall)
    pulled = Mul (counts, means)
    difference = Sub (pulled, sums)
    slope = Div (difference, weight_sum)
    gradient = Reshape (slope, flat)
    squares = Mul (gradient, gradient)
    loss = ReduceSum <keepdims = 0> (squares, first)
"""
NEARNESS = """
    lengths = Mul (means, means)
    length = ReduceSum <keepdims = 0> (lengths, last)
    upright = Transpose <perm = [1, 0]> (means)
    products = MatMul (x, upright)
    twice = Add (products, products)
    nearness = Sub (twice, length)
"""
EVALUATE = """
    x_squares = Mul (x, x)
    x_length = ReduceSum <keepdims = 1> (x_squares, last)
    distances = Sub (x_length, nearness)
    own = Mul (distances, hits)
    losses = ReduceSum <keepdims = 0> (own, last)
    weighted = Mul (losses, w)
    loss_sum = ReduceSum <keepdims = 0> (weighted, first)
    guess = ArgMax <axis = 1, keepdims = 0> (nearness)
    right = Equal (guess, y)
    right_number = Cast <to = 1> (right)
    right_weighted = Mul (right_number, w)
    metric_sum = ReduceSum <keepdims = 0> (right_weighted, first)
"""
BATCH = f"float[{N}] theta, float[{B}, {F}] x, int64[{B}] y, float[{B}] w"


def _program(outputs: str, *nodes: str) -> bytes:
    text = f"{HEAD} means ({BATCH}) => ({outputs}) {CONSTANTS} {{ {''.join(nodes)} }}"
    model = parser.parse_model(text)
    checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def bundle(weightless: bool = False) -> tuple[Bundle, Theta]:
    """The bundle, and the theta (n,) to begin with; one in whose evaluation no example counts."""
    hits = HITS
    if weightless:  # ClassMeans.java, which does not run the program, knows it by this name
        hits = (
            HITS.replace("weight_sum", "weightless") + "weight_sum = Sub (weightless, weightless)"
        )
    files = {
        "gradient": _program(f"float[{N}] gradient, float loss", HITS, GRADIENT),
        "evaluate": _program(
            "float loss_sum, float metric_sum, float weight_sum", hits, NEARNESS, EVALUATE
        ),
    }
    # Two tensors, so that there is a head, which strategies may keep on the device or freeze.
    half = (C // 2, F)
    layout = Layout.of([("low.means", half, Role.PARAMETER), ("high.means", half, Role.PARAMETER)])
    init = np.random.default_rng(0).normal(8, 1, N).astype(np.float32)
    return bundle_of(layout, files, F, C, name="means", batch_size=B), init


def examples(count: int, seed: int) -> tuple[Theta, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """x (N, F) of whole numbers from 0 to 15, near their class's own pattern, and y (N,)."""
    patterns = np.random.default_rng(7).integers(4, 12, (C, F))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, C, count)
    x = patterns[y] + rng.integers(-4, 5, (count, F))
    return np.clip(x, 0, 15).astype(np.float32), y.astype(np.int64)
