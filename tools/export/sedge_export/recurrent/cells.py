"""The time steps of RNN, GRU and LSTM and their gradients, as loops with few products.

A cell's input is a (T, B, ...): the products of its weights with the inputs of all steps, including biases.
So its loop contains only the products with the state h. The backward loop passes the gradient of the state
from step to step and is linear in it. All factors are computed before that loop, for all steps at once, and
the gradient of the weights is computed after it. Equations, gates and their order are those in torch's
documentation of the layers. Shapes: T steps, B rows, H units.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sedge_export.recurrent.loop import Tensors, loop, step


def _before(first: Tensor, h: Tensor, reverse: bool) -> Tensor:
    """Return the state (T, B, H) before each step."""
    return torch.cat([h[1:], first[None]] if reverse else [first[None], h[:-1]])


def _of_weights(d: Tensor, before: Tensor) -> Tensor:
    """Return the gradient (G H, H) of the weights that multiply the state.

    ``d`` (T, B, G H) is the gradient of the products, and ``before`` (T, B, H) is the state before each
    step.
    """
    return d.flatten(0, 1).mT @ before.flatten(0, 1)


@step("rnn_tanh")
def _rnn_tanh(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    h = torch.addmm(slices[0], states[0], constants[0].mT).tanh()
    return [h], [h]


@step("rnn_relu")
def _rnn_relu(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    h = torch.addmm(slices[0], states[0], constants[0].mT).relu()
    return [h], [h]


@step("rnn_backward")
def _rnn_backward(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    to_h, slope = slices
    d = (to_h + states[0]) * slope
    return [d @ constants[0]], [d]


class _Rnn(Function):
    @staticmethod
    def forward(kind: str, reverse: bool, a: Tensor, first: Tensor, w: Tensor) -> Tensor:
        return loop(kind, [first], [a], [w], reverse)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.kind, ctx.reverse, _, first, w = inputs
        ctx.save_for_backward(first, w, output)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, w, h = ctx.saved_tensors
        slope = 1 - h * h if ctx.kind == "rnn_tanh" else (h > 0).to(h.dtype)
        begin, over = [torch.zeros_like(first)], [gradients[0], slope]
        to_first, d = loop("rnn_backward", begin, over, [w], not ctx.reverse)
        return None, None, d, to_first, _of_weights(d, _before(first, h, ctx.reverse))


@step("gru")
def _gru_step(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    (h,), (a_rz, a_n), (w_rz, w_n, b_n) = states, slices, constants
    r_z = torch.addmm(a_rz, h, w_rz.mT).sigmoid()
    r, z = r_z.split_with_sizes([len(b_n), len(b_n)], 1)
    u = torch.addmm(b_n, h, w_n.mT)
    n = torch.tanh(a_n + r * u)
    h = n + z * (h - n)
    return [h], [h, r_z, n, u]


@step("gru_backward")
def _gru_backward(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    to_h, z, factors = slices
    d_h = to_h + states[0]
    d = (factors * d_h[:, None]).flatten(1)
    return [torch.addmm(d_h * z, d, constants[0])], [d_h, d]


class _Gru(Function):
    """The GRU's loop.

    Returns h and the values that the gradient needs: gates r and z, n, and u = W_n h + b_n.
    """

    @staticmethod
    def forward(
        reverse: bool, a_rz: Tensor, a_n: Tensor, first: Tensor, w: Tensor, b_n: Tensor
    ) -> tuple[Tensor, ...]:
        constants = [*w.split_with_sizes([2 * len(b_n), len(b_n)]), b_n]
        return tuple(loop("gru", [first], [a_rz, a_n], constants, reverse)[1:])

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.reverse, _, _, first, w, _ = inputs
        ctx.save_for_backward(first, w, *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, w, h, r_z, n, u = ctx.saved_tensors
        r, z = r_z.chunk(2, 2)
        before = _before(first, h, ctx.reverse)
        of_n = (1 - z) * (1 - n * n)
        factors = [of_n * u * r * (1 - r), (before - n) * z * (1 - z), of_n * r]
        begin, over = [torch.zeros_like(first)], [gradients[0], z, torch.stack(factors, 2)]
        to_first, d_h, d = loop("gru_backward", begin, over, [w], not ctx.reverse)
        d_rz, d_u = d.split_with_sizes([r_z.shape[2], u.shape[2]], 2)
        return None, d_rz, d_h * of_n, to_first, _of_weights(d, before), d_u.sum((0, 1))


@step("lstm")
def _lstm_step(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    h, c = states
    units = c.shape[1]
    products = torch.addmm(slices[0], h, constants[0].mT)
    i_f, g, o = products.split_with_sizes([2 * units, units, units], 1)
    i_f, g, o = i_f.sigmoid(), g.tanh(), o.sigmoid()
    i, f = i_f.split_with_sizes([units, units], 1)
    c = f * c + i * g
    squashed = c.tanh()
    h = o * squashed
    return [h, c], [h, c, i_f, g, o, squashed]


@step("lstm_backward")
def _lstm_backward(states: Tensors, slices: Tensors, constants: Tensors) -> tuple[Tensors, Tensors]:
    to_h, of_c, of_o, f, factors = slices
    d_h = to_h + states[0]
    d_c = states[1] + d_h * of_c
    d = torch.cat([(factors * d_c[:, None]).flatten(1), d_h * of_o], 1)
    return [d @ constants[0], d_c * f], [d]


class _Lstm(Function):
    """The LSTM's loop. Returns h, the final c, and the values that the gradient needs.

    These are c after every step, the gates i and f, g, o, and tanh(c).
    """

    @staticmethod
    def forward(
        reverse: bool, a: Tensor, first: Tensor, first_c: Tensor, w: Tensor
    ) -> tuple[Tensor, ...]:
        _, last_c, h, *saved = loop("lstm", [first, first_c], [a], [w], reverse)
        return h, last_c, *saved

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: tuple[Tensor, ...]) -> None:
        ctx.reverse, _, first, first_c, w = inputs
        ctx.save_for_backward(first, first_c, w, output[0], *output[2:])
        ctx.mark_non_differentiable(*output[2:])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        first, first_c, w, h, c, i_f, g, o, squashed = ctx.saved_tensors
        i, f = i_f.chunk(2, 2)
        before_c = _before(first_c, c, ctx.reverse)
        factors = [g * i * (1 - i), before_c * f * (1 - f), i * (1 - g * g)]
        of_c, of_o = o * (1 - squashed * squashed), squashed * o * (1 - o)
        begin = [torch.zeros_like(first), gradients[1]]
        over = [gradients[0], of_c, of_o, f, torch.stack(factors, 2)]
        to_first, to_first_c, d = loop("lstm_backward", begin, over, [w], not ctx.reverse)
        to_w = _of_weights(d, _before(first, h, ctx.reverse))
        return None, d, to_first, to_first_c, to_w


# Maps (step, reverse, a (T, B, H), first h, W (H, H)) to all h (T, B, H).
rnn: Callable[..., Tensor] = _Rnn.apply
# Maps (reverse, a of r and z (T, B, 2 H), a of n (T, B, H), first h, W (3 H, H), b_n (H,)) to all h, and
# values for the gradient.
gru: Callable[..., tuple[Tensor, ...]] = _Gru.apply
# Maps (reverse, a (T, B, 4 H), first h, first c, W (4 H, H)) to all h, the final c, and values for the
# gradient.
lstm: Callable[..., tuple[Tensor, ...]] = _Lstm.apply
