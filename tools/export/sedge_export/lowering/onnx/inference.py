"""Lowers a model that only predicts, with constant weights, to ONNX's plain operators.

Runtimes can fuse and quantise these. The lowerings for training are tuned for batches and gradients
instead.
"""

import operator
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.nn.utils.fusion import fuse_conv_bn_weights

from sedge_export.lowering.onnx.convolution import plain_convolution
from sedge_export.lowering.onnx.table import LOWERINGS, Lowering
from sedge_protocol.errors import LocalError

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
BATCH_NORM = aten._native_batch_norm_legit_functional.default


# The lowerings for a graph without gradients.
PLAIN_LOWERINGS: dict[OpOverload, Lowering] = {
    **LOWERINGS,
    aten.convolution.default: plain_convolution,
}


def fold_batch_norms(module: fx.GraphModule) -> None:
    """Fold each batch normalisation that follows a convolution into the convolution's weight and bias.

    onnxruntime 1.31 does not do this itself at opset 20.
    """
    for norm in module.graph.find_nodes(op="call_function", target=BATCH_NORM):
        source = norm.args[0]
        # A transposed convolution's weight has its output channels on another axis.
        if source.target is CONVOLUTION and not source.args[6] and len(source.users) == 1:
            constants = _constants(module, [*source.args[1:3], *norm.args[1:5]])
            if constants is not None:
                _fold(module, source, norm, constants)
    module.graph.eliminate_dead_code()
    module.recompile()


def _constants(module: fx.GraphModule, given: Sequence[object]) -> list[Tensor | None] | None:
    """Return the constant tensors that the nodes ``given`` refer to, with None for a missing argument.

    Returns None if any of the values is computed rather than constant.
    """
    found: list[Tensor | None] = []
    for node in given:
        if not isinstance(node, fx.Node):
            found.append(None)
        elif node.op == "get_attr":
            found.append(cast(Tensor, getattr(module, str(node.target))))
        else:
            return None
    return found


def _fold(
    module: fx.GraphModule, source: fx.Node, norm: fx.Node, constants: Sequence[Tensor | None]
) -> None:
    weight, bias, gamma, beta, mean, variance = constants
    if weight is None or mean is None or variance is None:
        raise LocalError(
            f"{source}, {norm}: expected a convolution's weight and a normalisation's statistics"
        )
    eps = cast(float, norm.args[7])
    made = fuse_conv_bn_weights(weight, bias, mean, variance, eps, gamma, beta)
    with module.graph.inserting_before(source):
        for place, tensor in enumerate(made, 1):
            name = f"{source.name}_folded_{place}"
            module.register_buffer(name, tensor.detach())
            source.update_arg(place, module.graph.get_attr(name))
    for user in list(norm.users):
        if user.target is operator.getitem and user.args[1] == 0:
            user.replace_all_uses_with(source)
