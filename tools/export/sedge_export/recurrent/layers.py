"""Replaces torch's functions for RNN, GRU and LSTM layers in a trace.

The products with the input are computed for all steps at once, before the loop (``cells``). Every row
of a packed sequence (``packed``) must have all steps. An LSTM with projected states is left unchanged.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from sedge_export.recurrent import cells
from sedge_export.recurrent.loop import Tensors
from sedge_export.recurrent.packed import Sizes
from sedge_protocol.errors import ExportError

# Maps x (T, B, I), first states (B, H), weights and reverse to all outputs (T, B, H) and the final states.
Direction: TypeAlias = Callable[[Tensor, Tensors, Tensors, bool], tuple[Tensor, Tensors]]
Layers: TypeAlias = Callable[..., tuple[Tensor, ...] | None]


def _layers(
    one: Direction, gates: int,
    input: Tensor, hx: Tensor | Tensors, params: Tensors, has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...] | None:  # fmt: skip
    """Run a stack of layers with one or two directions each. Returns the outputs and final states.

    ``one`` runs one direction of a layer, whose cell has ``gates`` gates. The other arguments are those
    of torch's function. Returns None if torch's function should be called instead.
    """
    if not input.numel():
        return None
    first = [hx] if isinstance(hx, Tensor) else hx
    if first[0].shape[2] * gates != len(params[1]):  # projected
        return None
    x = input.transpose(0, 1) if batch_first else input
    each, ways = 4 if has_biases else 2, 2 if bidirectional else 1
    last: list[Tensors] = []
    for layer in range(num_layers):
        found: list[Tensor] = []
        for at in range(layer * ways, (layer + 1) * ways):
            weights = params[at * each : (at + 1) * each]
            output, after = one(x, [state[at] for state in first], weights, at % ways == 1)
            found.append(output)
            last.append(after)
        x = torch.cat(found, 2)
        if dropout and train and layer < num_layers - 1:
            x = functional.dropout(x, dropout)
    states = [torch.stack(list(state)) for state in zip(*last, strict=True)]
    return x.transpose(0, 1) if batch_first else x, *states


def _products(x: Tensor, w: Tensor, *biases: Tensor) -> Tensor:
    """Return W x + biases for all steps, (T, B, ...), in one product."""
    bias = sum(biases[1:], biases[0]) if biases else None
    rows = functional.linear(x.flatten(0, 1), w, bias)
    return rows.view(*x.shape[:2], len(w))


def _last(h: Tensor, reverse: bool) -> Tensor:
    return h[0] if reverse else h[-1]


def _rnn(
    kind: str, x: Tensor, states: Tensors, weights: Tensors, reverse: bool
) -> tuple[Tensor, Tensors]:
    w_x, w, *biases = weights
    h = cells.rnn(kind, reverse, _products(x, w_x, *biases), states[0], w)
    return h, [_last(h, reverse)]


def _gru(x: Tensor, states: Tensors, weights: Tensors, reverse: bool) -> tuple[Tensor, Tensors]:
    """Run one direction of a GRU.

    The new gate n keeps its two biases apart, because the reset gate r multiplies only the state's bias.
    """
    w_x, w, *biases = weights
    units = w.shape[1]
    (w_rz, w_n), *parts = (each.split_with_sizes([2 * units, units]) for each in (w_x, *biases))
    a_rz = _products(x, w_rz, *(part[0] for part in parts))
    a_n = _products(x, w_n, *(part[1] for part in parts[:1]))
    b_n = parts[1][1] if parts else x.new_zeros(units)
    h = cells.gru(reverse, a_rz, a_n, states[0], w, b_n)[0]
    return h, [_last(h, reverse)]


def _lstm(x: Tensor, states: Tensors, weights: Tensors, reverse: bool) -> tuple[Tensor, Tensors]:
    w_x, w, *biases = weights
    h, last_c, *_ = cells.lstm(reverse, _products(x, w_x, *biases), *states, w)
    return h, [_last(h, reverse), last_c]


def _any(layers: Layers) -> Layers:
    """Make ``layers`` also accept a packed sequence, with its sizes as the second argument."""

    def call(input: Tensor, *arguments: Any) -> tuple[Tensor, ...] | None:
        if not isinstance(arguments[0], Sizes):
            return layers(input, *arguments)
        sizes, *rest = arguments
        x = input.reshape(sizes.steps, sizes.rows, -1)
        found = layers(x, *rest, False)
        if found is None:
            raise ExportError(
                "model: a packed sequence in an LSTM with projected states, expected proj_size=0"
            )
        return found[0].flatten(0, 1), *found[1:]

    return call


# Replacements for the torch functions that these layers call; None leaves a call unchanged.
RECURRENT: dict[Callable[..., Any], Layers] = {
    torch.rnn_tanh: _any(partial(_layers, partial(_rnn, "rnn_tanh"), 1)),
    torch.rnn_relu: _any(partial(_layers, partial(_rnn, "rnn_relu"), 1)),
    torch.gru: _any(partial(_layers, _gru, 3)),
    torch.lstm: _any(partial(_layers, _lstm, 4)),
}
