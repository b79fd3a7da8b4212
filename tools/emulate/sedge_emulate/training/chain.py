"""A model that is one chain of layers, trained without autograd.

Parameters, gradients and velocity are one flat vector each, stored in the order that the layers want
(``layers``), so that a step of SGD is one pass over memory and nothing is converted inside a step.
theta is rearranged when a training begins and when it ends.
"""

import torch
from torch import Tensor
from torch.nn import functional

from sedge_edge.training.step_loop import places
from sedge_emulate.training import graph
from sedge_emulate.training.layers import (
    DirectConvolution,
    Explicit,
    FlattenLayer,
    HalvingPool,
    LinearLayer,
    MaxPool,
    MinimalConvolution,
    Parameter,
    ReluLayer,
)
from sedge_emulate.training.losses import loss_and_gradient
from sedge_emulate.training.problem import Problem
from sedge_emulate.training.storage import Order, Storage
from sedge_emulate.training.tasks import Precision, Unsupported
from sedge_emulate.training.winograd import POINTS, TILE
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Training

# Below that many channels the transformations cost more than the products they save.
_FEWEST_CHANNELS = 16


class Chain:
    """``Engine`` for a chain of layers on the CPU. Raises ``Unsupported`` for any other model.

    With ``minimal`` the convolutions that can be are ``Winograd``'s; a chain without one is refused.
    """

    def __init__(self, problem: Problem, precision: Precision, minimal: bool) -> None:
        if minimal and precision != "fp32":
            raise Unsupported("minimal filtering loses too many digits in bf16")
        layout = problem.network.layout
        plan = Plan(problem, minimal, precision)
        self._loss = problem.loss
        self._half = precision == "bf16"
        self._values, self._gradient = torch.zeros(layout.size), torch.zeros(layout.size)
        self._velocity, self._anchor = torch.zeros(layout.size), torch.zeros(layout.size)
        self._computed = self._values.bfloat16() if self._half else self._values
        self._training = Training()
        self._layout = layout
        self._frozen: tuple[slice, ...] = ()
        self._parameters = plan.parameters
        self._first = 0
        self.storage = Storage(layout, plan.orders)
        self._layers = plan.layers(
            self.storage.views(self._computed), self.storage.views(self._gradient)
        )

    @property
    def values(self) -> Tensor:
        """The present values (n,), as they are stored."""
        return self._values

    def start(self, theta: Theta, training: Training, anchor: Theta | None = None) -> None:
        """Begin a training at theta (n,), pulled towards anchor (n,) or theta."""
        self._frozen = places(self._layout, training.freeze)
        # Nobody wants a gradient of what comes before the first parameter that learns.
        learning = (not names <= {*training.freeze} for names in self._parameters)
        self._first = next(
            (place for place, learns in enumerate(learning) if learns), len(self._layers)
        )
        self.storage.write(theta, self._values)
        self._training = training
        self._velocity.zero_()
        if anchor is None:
            self._anchor.copy_(self._values)
        else:
            self.storage.write(anchor, self._anchor)
        self._cast()

    def place(self, values: Tensor) -> None:
        """Go on from values (n,), stored as ``values`` are."""
        self._values.copy_(values)
        self._cast()

    def differentiate(self, x: Tensor, y: Tensor) -> Tensor:
        """The loss of x (B, ...), y (B,); leaves its gradient."""
        logits = self._forward(x)
        shares = torch.full(y.shape, 1 / y.shape[0])
        loss, gradient = loss_and_gradient(self._loss, logits.float(), y, shares)
        passed: Tensor | None = gradient.to(logits.dtype)
        for place in range(len(self._layers) - 1, self._first - 1, -1):
            assert passed is not None
            passed = self._layers[place].backward(passed, place > self._first)
        self._freeze()
        return loss

    def gradient(self) -> Tensor:
        """The last batch's gradient (n,), as ``values`` are stored; good until the next step."""
        return self._gradient

    def descend(self) -> None:
        """The step of SGD along the last batch's gradient."""
        change, training = self._gradient, self._training
        if training.prox:
            change.add_(self._values - self._anchor, alpha=training.prox)
            self._freeze()
        if training.momentum:
            change = self._velocity.mul_(training.momentum).add_(change)
        self._values.add_(change, alpha=-training.learning_rate)
        self._cast()

    def outputs(self, x: Tensor) -> Tensor:
        """The model's outputs (B, C) in float32."""
        return self._forward(x).float()

    def _forward(self, x: Tensor) -> Tensor:
        if x.ndim == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        x = x.to(self._computed.dtype)
        for layer in self._layers:
            x = layer.forward(x)
        return x

    def _freeze(self) -> None:
        for place in self._frozen:
            self._gradient[place] = 0

    def _cast(self) -> None:
        if self._half:
            self._computed.copy_(self._values)


class Plan:
    """Which layers a model has, and how their parameters are stored.

    Raises ``Unsupported`` for what is no chain, or a chain of layers that do not fit together.
    """

    def __init__(self, problem: Problem, minimal: bool, precision: Precision = "fp32") -> None:
        self._half = precision == "bf16"
        self._found = graph.chain(problem.module)
        self._shapes = {t.name: t.shape for t in problem.network.layout.tensors}
        self.orders: dict[str, Order] = {}
        self._minimal: set[str] = set()
        names = list(graph.parameters_of(self._found))
        if sorted(names) != sorted(self._shapes):
            raise Unsupported("a layer is used twice, or the model has parameters that none uses")
        if problem.input.dtype != "float32":
            raise Unsupported(f"inputs are {problem.input.dtype}, expected float32")
        self._arrange(torch.empty(1, *problem.input.shape, device="meta"), minimal)
        if minimal and not self._minimal:
            raise Unsupported("no convolution for minimal filtering")
        self.parameters = [frozenset(graph.parameters_of([layer])) for layer in self._found]

    def layers(self, values: dict[str, Tensor], gradients: dict[str, Tensor]) -> list[Explicit]:
        """The layers over stored parameters and the places of their gradients."""

        def parameter(name: str) -> Parameter:
            return Parameter(values[name], gradients[name])

        def layer(found: graph.Layer) -> Explicit:
            match found:
                case graph.Convolution():
                    kind = (
                        MinimalConvolution if found.weight in self._minimal else DirectConvolution
                    )
                    bias = parameter(found.bias) if found.bias else None
                    return kind(found, parameter(found.weight), bias)
                case graph.Linear():
                    bias = parameter(found.bias) if found.bias else None
                    return LinearLayer(parameter(found.weight), bias)
                case graph.Pool():
                    return HalvingPool() if self._half and _is_halving(found) else MaxPool(found)
                case graph.Relu():
                    return ReluLayer()
                case graph.Flatten():
                    return FlattenLayer()

        return [layer(found) for found in self._found]

    def _arrange(self, x: Tensor, minimal: bool) -> None:
        """Follow an input's shape through the layers, and order each one's weight."""
        flattened: tuple[int, ...] | None = None  # (C, H, W) of images, until a linear layer
        for layer in self._found:
            before, x = x, self._outputs(x, layer)
            if isinstance(layer, graph.Convolution):
                shape = self._shapes[layer.weight]
                fits = minimal and _is_minimal(layer, shape, x.shape[2])
                if fits:
                    self._minimal.add(layer.weight)
                self.orders[layer.weight] = Order(shape, (2, 0, 3, 1) if fits else (0, 2, 3, 1))
            elif isinstance(layer, graph.Flatten) and before.ndim == 4:
                flattened = tuple(before.shape[1:])
            elif isinstance(layer, graph.Linear):
                if before.ndim != 2:
                    raise Unsupported(f"{layer.weight}: linear over {before.ndim - 1} axes")
                if flattened:
                    rows = self._shapes[layer.weight][0]
                    self.orders[layer.weight] = Order((rows, *flattened), (0, 2, 3, 1))
                flattened = None
        if x.ndim != 2 or flattened:
            found = tuple(x.shape[1:])
            raise Unsupported(f"outputs of shape {found} a row, expected a linear layer's")

    def _outputs(self, x: Tensor, layer: graph.Layer) -> Tensor:
        """What a layer makes of x, of both only the shapes."""
        try:
            match layer:
                case graph.Convolution():
                    weight = torch.empty(self._shapes[layer.weight], device="meta")
                    settings = layer.stride, layer.padding, layer.dilation, layer.groups
                    return torch.conv2d(x, weight, None, *settings)
                case graph.Linear():
                    weight = torch.empty(self._shapes[layer.weight], device="meta")
                    return functional.linear(x, weight)
                case graph.Pool():
                    settings = layer.stride, layer.padding, layer.dilation, layer.ceil_mode
                    return torch.max_pool2d(x, layer.kernel, *settings)
                case graph.Relu():
                    return x
                case graph.Flatten():
                    return x.flatten(1)
        except RuntimeError as exc:
            raise Unsupported(f"{layer} on {tuple(x.shape)}: {exc}") from exc


def _is_halving(pool: graph.Pool) -> bool:
    twos = {*pool.kernel, *pool.stride} == {2}
    return twos and {*pool.padding} == {0} and {*pool.dilation} == {1} and not pool.ceil_mode


def _is_minimal(layer: graph.Convolution, shape: tuple[int, ...], height: int) -> bool:
    outputs, inputs, taps, _ = shape
    plain = layer.groups == 1 and {*layer.stride, *layer.dilation} == {1}
    return plain and min(inputs, outputs) >= _FEWEST_CHANNELS and taps in POINTS and height >= TILE
