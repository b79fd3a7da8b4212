"""Element-wise operators: arithmetic, comparisons, activations, casts."""

from functools import partial

import numpy as np
import torch
from torch._ops import OpOverload

from sedge_export.lowering.onnx.graph import BOOL, FLOAT, INT, ElementType, Graph, Scalar, Value
from sedge_export.lowering.onnx.table import LOWERINGS, lowers
from sedge_protocol.errors import ExportError

aten = torch.ops.aten
Operand = Value | Scalar

# torch's narrower integers are int64 in a program; ``wrapped`` reduces results to their range.
_NARROW = {torch.uint8: 8, torch.int8: 8, torch.int16: 16, torch.int32: 32}
DTYPES = {torch.float32: FLOAT, torch.int64: INT, torch.bool: BOOL, **dict.fromkeys(_NARROW, INT)}
# The order of type promotion among the three types that programs have.
_RANK = {BOOL: 0, INT: 1, FLOAT: 2}
# Operators whose result may leave the range of a narrower integer.
_LEAVING = {
    aten.abs, aten.add, aten._to_copy, aten.copy, aten.cumsum, aten.mul, aten.neg, aten.pow, aten.sub,
    aten.sum,
}  # fmt: skip

_UNARY = {
    aten.abs: "Abs",
    aten.ceil: "Ceil",
    aten.cos: "Cos",
    aten.erf: "Erf",
    aten.exp: "Exp",
    aten.floor: "Floor",
    aten.log: "Log",
    aten.neg: "Neg",
    aten.reciprocal: "Reciprocal",
    aten.relu: "Relu",
    aten.round: "Round",
    aten.sigmoid: "Sigmoid",
    aten.sign: "Sign",
    aten.sin: "Sin",
    aten.sqrt: "Sqrt",
    aten.tanh: "Tanh",
}
_COMPARISONS = {
    aten.eq: "Equal",
    aten.ge: "GreaterOrEqual",
    aten.gt: "Greater",
    aten.le: "LessOrEqual",
    aten.lt: "Less",
}


def element_type(dtype: torch.dtype) -> ElementType:
    """Return the ONNX element type for a torch type.

    Raises ``ExportError`` for a type that programs lack.
    """
    if dtype not in DTYPES:
        raise ExportError(f"element type {dtype}, expected float32, bool or an integer")
    return DTYPES[dtype]


def wrapped(graph: Graph, operator: OpOverload, result: Value, dtype: torch.dtype) -> Value:
    """Wrap a result into the range of a narrower integer type, as torch does on overflow."""
    bits = _NARROW.get(dtype)
    if bits is None or operator.overloadpacket not in _LEAVING:
        return result
    count = graph.scalar(2**bits, INT)
    if dtype == torch.uint8:
        return graph.binary("Mod", result, count)
    half = graph.scalar(2 ** (bits - 1), INT)
    return graph.sub(graph.binary("Mod", graph.add(result, half), count), half)


def operands(graph: Graph, x: Operand, y: Operand) -> tuple[Value, Value]:
    """Convert both operands to values of their common type, as torch's promotion does."""
    kinds = [kind_of(side) for side in (x, y)]
    common = max(kinds, key=_RANK.__getitem__)
    return _as(graph, x, common), _as(graph, y, common)


def kind_of(side: Operand) -> ElementType:
    """Return the element type of a value, or the type that torch's promotion gives to a number."""
    if isinstance(side, Value):
        return side.dtype
    return BOOL if isinstance(side, bool) else INT if isinstance(side, int) else FLOAT


def _as(graph: Graph, side: Operand, dtype: ElementType) -> Value:
    return graph.cast(side, dtype) if isinstance(side, Value) else graph.scalar(side, dtype)


def _unary(kind: str, graph: Graph, x: Value) -> Value:
    return graph.unary(kind, x if kind in {"Abs", "Neg", "Sign"} else graph.cast(x, FLOAT))


def _compare(kind: str, graph: Graph, x: Operand, y: Operand) -> Value:
    left, right = operands(graph, x, y)
    if left.dtype == BOOL and kind != "Equal":  # ONNX does not order booleans
        left, right = _as(graph, left, INT), _as(graph, right, INT)
    return graph.compare(kind, left, right)


for _packet, _name in _UNARY.items():
    LOWERINGS[_packet.default] = partial(_unary, _name)
for _packet, _name in _COMPARISONS.items():
    LOWERINGS[_packet.Scalar] = LOWERINGS[_packet.Tensor] = partial(_compare, _name)


@lowers(aten.ne.Scalar, aten.ne.Tensor)
def not_equal(graph: Graph, x: Value, y: Operand) -> Value:
    """Return x != y; ONNX has only equality."""
    return graph.unary("Not", graph.compare("Equal", *operands(graph, x, y)))


@lowers(aten.isnan.default)
def isnan(graph: Graph, x: Value) -> Value:
    """Return True where x is NaN."""
    return not_equal(graph, x, x)


@lowers(aten.add.Tensor, aten.add.Scalar)
def add(graph: Graph, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    """Return x + alpha y."""
    return _sum(graph, "Add", x, y, alpha)


@lowers(aten.sub.Tensor, aten.sub.Scalar)
def sub(graph: Graph, x: Operand, y: Operand, alpha: Scalar = 1) -> Value:
    """Return x - alpha y."""
    return _sum(graph, "Sub", x, y, alpha)


def _sum(graph: Graph, kind: str, x: Operand, y: Operand, alpha: Scalar) -> Value:
    left, right = operands(graph, x, y)
    if alpha != 1:
        right = graph.mul(right, graph.scalar(alpha, right.dtype))
    return graph.binary(kind, left, right)


@lowers(aten.mul.Tensor, aten.mul.Scalar)
def mul(graph: Graph, x: Operand, y: Operand) -> Value:
    """Return x y."""
    left, right = operands(graph, x, y)
    if left.dtype == BOOL:
        return graph.binary("And", left, right)
    return graph.mul(left, right)


@lowers(aten.div.Tensor, aten.div.Scalar)
def div(graph: Graph, x: Value, y: Operand) -> Value:
    """Return x / y as real numbers, whatever the types of x and y."""
    return graph.binary("Div", graph.cast(x, FLOAT), _as(graph, y, FLOAT))


@lowers(aten.rsqrt.default)
def rsqrt(graph: Graph, x: Value) -> Value:
    """Return 1 / sqrt(x)."""
    return graph.unary("Reciprocal", graph.unary("Sqrt", x))


@lowers(aten.log1p.default)
def log1p(graph: Graph, x: Value) -> Value:
    """Return log(1 + x).

    ONNX has no accurate operator for this, so results for small x have an absolute error of 6e-8.
    """
    return graph.unary("Log", graph.add(x, graph.scalar(1.0)))


@lowers(aten.expm1.default)
def expm1(graph: Graph, x: Value) -> Value:
    """Return exp(x) - 1.

    ONNX has no accurate operator for this, so results for small x have an absolute error of 6e-8.
    """
    return graph.sub(graph.unary("Exp", x), graph.scalar(1.0))


@lowers(aten.pow.Tensor_Scalar, aten.pow.Tensor_Tensor, aten.pow.Scalar)
def power(graph: Graph, x: Operand, exponent: Operand) -> Value:
    """Return x to a power. The square becomes a product, which is many times faster than Pow."""
    if isinstance(x, Value) and exponent == 2:
        return graph.mul(x, x)
    return graph.binary("Pow", *operands(graph, x, exponent))


@lowers(aten.maximum.default)
def maximum(graph: Graph, x: Value, y: Value) -> Value:
    """Return the larger of x and y."""
    return graph.binary("Max", *operands(graph, x, y))


@lowers(aten.minimum.default)
def minimum(graph: Graph, x: Value, y: Value) -> Value:
    """Return the smaller of x and y."""
    return graph.binary("Min", *operands(graph, x, y))


@lowers(aten.clamp.default, aten.clamp.Tensor)
def clamp(graph: Graph, x: Value, low: Operand | None = None, high: Operand | None = None) -> Value:
    """Return x clamped between two bounds."""
    result = x
    if low is not None:
        result = graph.binary("Max", *operands(graph, result, low))
    if high is not None:
        result = graph.binary("Min", *operands(graph, result, high))
    return result


@lowers(aten.hardtanh.default)
def hardtanh(graph: Graph, x: Value, low: Scalar = -1, high: Scalar = 1) -> Value:
    """Return x clamped between two bounds, as in ReLU6."""
    return clamp(graph, x, float(low), float(high))


@lowers(aten.fmod.Scalar)
def fmod(graph: Graph, x: Value, y: Scalar) -> Value:
    """Return the remainder with the sign of x."""
    left, right = operands(graph, x, y)
    return graph.op("Mod", left, right, shape=left.shape, dtype=left.dtype, fmod=1)


@lowers(aten.remainder.Scalar, aten.remainder.Tensor)
def remainder(graph: Graph, x: Value, y: Operand) -> Value:
    """Return the remainder with the sign of y."""
    left, right = operands(graph, x, y)
    if left.dtype == INT:
        return graph.binary("Mod", left, right)
    shape = np.broadcast_shapes(left.shape, right.shape)
    found = graph.op("Mod", left, right, shape=shape, dtype=FLOAT, fmod=1)
    below = [graph.compare("Less", each, graph.scalar(0.0)) for each in (found, right)]
    other = graph.compare("And", not_equal(graph, *below), not_equal(graph, found, 0.0))
    return where(graph, other, graph.add(found, right), found)


@lowers(aten.div.Tensor_mode, aten.div.Scalar_mode)
def whole_div(graph: Graph, x: Value, y: Operand, rounding_mode: str | None = None) -> Value:
    """Return x / y, rounded down or towards 0."""
    left, right = operands(graph, x, y)
    if rounding_mode == "floor":
        # x minus its remainder is a multiple of y, so rounding makes the quotient exact.
        quotient = graph.binary("Div", graph.sub(left, remainder(graph, left, right)), right)
        return quotient if left.dtype == INT else graph.unary("Round", quotient)
    if rounding_mode is None or left.dtype == INT:
        return graph.binary("Div", left, right) if rounding_mode else div(graph, x, y)
    quotient = graph.binary("Div", left, right)
    size = graph.unary("Floor", graph.unary("Abs", quotient))
    return graph.mul(size, graph.unary("Sign", quotient))


@lowers(aten.where.self)
def where(graph: Graph, condition: Value, x: Value, y: Value) -> Value:
    """Return x where the condition holds, y elsewhere."""
    x, y = operands(graph, x, y)
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    return graph.op("Where", condition, x, y, shape=shape, dtype=x.dtype)


@lowers(aten.logical_and.default, aten.bitwise_and.Tensor)
def logical_and(graph: Graph, x: Value, y: Value) -> Value:
    """Return x and y, element by element."""
    return graph.compare("And", _boolean(x), _boolean(y))


@lowers(aten.logical_or.default, aten.bitwise_or.Tensor)
def logical_or(graph: Graph, x: Value, y: Value) -> Value:
    """Return x or y, element by element."""
    return graph.compare("Or", _boolean(x), _boolean(y))


@lowers(aten.logical_xor.default, aten.bitwise_xor.Tensor)
def logical_xor(graph: Graph, x: Value, y: Value) -> Value:
    """Return x or y but not both, element by element."""
    return not_equal(graph, _boolean(x), _boolean(y))


@lowers(aten.logical_not.default, aten.bitwise_not.default)
def logical_not(graph: Graph, x: Value) -> Value:
    """Return not x, element by element."""
    return graph.unary("Not", _boolean(x))


def _boolean(x: Value) -> Value:
    if x.dtype != BOOL:
        raise ExportError("logic on numbers, expected booleans")
    return x


@lowers(aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def identity(graph: Graph, x: Value, memory_format: torch.memory_format | None = None) -> Value:
    """Return x itself: values are immutable here."""
    return x


@lowers(aten.copy.default)
def copy(graph: Graph, x: Value, source: Value, non_blocking: bool = False) -> Value:
    """Return ``source`` converted to the shape and type of x, like an assignment to x[:]."""
    return graph.expand(graph.cast(source, x.dtype), x.shape)


@lowers(aten._to_copy.default)
def to_copy(
    graph: Graph, x: Value, dtype: torch.dtype | None = None, **_placement: object
) -> Value:
    """Return x with another element type; its device is ignored."""
    return x if dtype is None else graph.cast(x, element_type(dtype))


@lowers(aten.leaky_relu.default)
def leaky_relu(graph: Graph, x: Value, negative_slope: float = 0.01) -> Value:
    """Return x where x > 0, else negative_slope * x."""
    return graph.unary("LeakyRelu", x, alpha=float(negative_slope))


@lowers(aten.gelu.default)
def gelu(graph: Graph, x: Value, approximate: str = "none") -> Value:
    """Return x Phi(x)."""
    return graph.unary("Gelu", x, approximate=approximate)


@lowers(aten.elu.default)
def elu(
    graph: Graph, x: Value, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> Value:
    """Return ELU or, with scales, SELU or CELU."""
    if input_scale == 1:
        result = graph.unary("Elu", x, alpha=float(alpha))
        return result if scale == 1 else graph.scale(result, scale)
    inner = graph.scale(graph.unary("Elu", graph.scale(x, input_scale), alpha=1.0), alpha)
    linear = graph.compare("Greater", x, graph.scalar(0.0))
    return graph.scale(where(graph, linear, x, inner), scale)


@lowers(aten.threshold_backward.default)
def threshold_backward(graph: Graph, grad: Value, x: Value, threshold: Scalar) -> Value:
    """Return grad where x > threshold, else 0.

    Computed as a product with a mask, because onnxruntime's Where makes three passes and takes twice as
    long. If x is Relu's output, it is never negative, so x != 0 is the mask and a cast computes it.
    """
    if threshold == 0 and graph.is_output_of("Relu", x):
        above = graph.cast(x, BOOL)
    else:
        above = graph.compare("Greater", x, graph.scalar(threshold))
    return graph.mul(grad, graph.cast(above, FLOAT))


@lowers(aten._softmax.default)
def softmax(graph: Graph, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """Return the softmax along an axis."""
    return graph.unary("Softmax", x, axis=dim)


@lowers(aten._log_softmax.default)
def log_softmax(graph: Graph, x: Value, dim: int, half_to_float: bool = False) -> Value:
    """Return log(softmax) along an axis."""
    return graph.unary("LogSoftmax", x, axis=dim)
