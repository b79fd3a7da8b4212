"""Rewrites a traced ATen graph without changing any values or gradients."""

import operator

import torch
from torch import fx
from torch._ops import OpOverload
from torch.fx.node import Argument

aten = torch.ops.aten
POOL = aten.max_pool2d_with_indices.default
POOL_BACKWARD = aten.max_pool2d_with_indices_backward.default
RELU = aten.relu.default
RELU_BACKWARD = aten.threshold_backward.default


def pool_before_relu(graph: fx.Graph) -> None:
    """Turn max_pool(relu(x)) into relu(max_pool(x)), forward and backward.

    The maximum of a window is the same either way, and so is the gradient: if the maximum is positive,
    both forms choose the same first element; otherwise both give 0. ReLU then has fewer elements, a
    quarter with 2 x 2 windows.
    """
    for relu in graph.find_nodes(op="call_function", target=RELU):
        pools = [user for user in relu.users if user.target is POOL]
        backward = [user for user in relu.users if user.target is POOL_BACKWARD]
        masks = [user for user in relu.users if _masks(user, relu, backward)]
        if len(pools) == 1 and len(pools) + len(backward) + len(masks) == len(relu.users):
            _exchange(graph, relu, pools[0], backward, masks)


def _masks(user: fx.Node, relu: fx.Node, backward: list[fx.Node]) -> bool:
    return user.target is RELU_BACKWARD and user.args[0] in backward and user.args[1:] == (relu, 0)


def _exchange(
    graph: fx.Graph, relu: fx.Node, pool: fx.Node, backward: list[fx.Node], masks: list[fx.Node]
) -> None:
    source = relu.all_input_nodes[0]
    pool.replace_input_with(relu, source)
    largest = next(u for u in pool.users if u.target is operator.getitem and u.args[1] == 0)
    with graph.inserting_after(largest):
        moved = _node(graph, RELU, (largest,), largest)
    largest.replace_all_uses_with(moved, delete_user_cb=lambda user: user is not moved)
    for node in backward:
        grad = node.all_input_nodes[0]
        with graph.inserting_before(node):
            masked = _node(graph, RELU_BACKWARD, (grad, moved, 0), grad)
        node.args = (masked, source, *node.args[2:])
    for mask in masks:
        mask.replace_all_uses_with(mask.all_input_nodes[0])
        graph.erase_node(mask)


def _node(
    graph: fx.Graph,
    target: OpOverload,
    args: tuple[Argument, ...],
    like: fx.Node,
) -> fx.Node:
    made = graph.call_function(target, args)
    made.meta["val"] = like.meta["val"]
    return made
