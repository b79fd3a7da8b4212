"""A torch module whose tensors are views of one flat vector, and its gradient by autograd.

Both the device's backend ``torch`` and the emulator use it.
"""

from collections.abc import Callable, Collection, Mapping
from itertools import chain
from typing import TypeAlias, cast

import torch
from torch import Tensor, nn

from sedge_edge.backends.guided import GuideInputs, Pass, features_of
from sedge_edge.backends.rows import Objective
from sedge_edge.training.steppers.model import Differentiated, tensor_slices
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire.bundle import Bundle

# Splits a vector (n,) into tensors keyed by name, which are views of the vector in the module's shapes.
Views: TypeAlias = Callable[[Tensor], Mapping[str, Tensor]]


def place_frozen(module: nn.Module, bundle: Bundle) -> None:
    """Write a bundle's frozen values into the module's tensors of the same names."""
    if bundle.manifest.frozen is None or bundle.frozen is None:
        return
    with torch.no_grad():
        held = dict(chain(module.named_parameters(), module.named_buffers()))
        for name, values in bundle.manifest.frozen.layout.views(bundle.frozen).items():
            held[name].copy_(torch.tensor(values))


class FlatModule:
    """A module whose tensors have been replaced by views of one vector (n,). Not thread-safe.

    Every tensor of the layout must be a parameter or buffer of the module, in the same shape. Other
    parameters and buffers do not change.
    """

    def __init__(
        self, module: nn.Module, layout: Layout, views: Views, device: torch.device
    ) -> None:
        self.module = module.to(device)
        self._layout, self._views, self._device = layout, views, device
        held: dict[str, Tensor] = {
            **dict(self.module.named_parameters()), **dict(self.module.named_buffers()),
        }  # fmt: skip
        self._values = torch.zeros(layout.size, device=device)
        for name, stored in views(self._values).items():
            held[name].data = stored
        self._trainable = {n: held[n] for n in layout.by_name if held[n].requires_grad}
        self._statistics = [held[name] for name in layout.statistics]

    def place(self, values: Tensor) -> None:
        """Copy values (n,) into the tensors."""
        self._values.copy_(values)

    def freeze(self, names: Collection[str]) -> None:
        """Stop computing gradients for these tensors, and compute them for all others.

        Raises ``CodecError`` for a tensor that the model does not have.
        """
        tensor_slices(self._layout, names)
        for name, tensor in self._trainable.items():
            tensor.requires_grad_(name not in names)

    def rows(
        self, objective: Objective, x: Tensor, y: Tensor, guidance: Mapping[str, Tensor] | None,
        outputs: Callable[[Tensor], Tensor] | None = None,
    ) -> Callable[[], Tensor]:  # fmt: skip
        """Return a function that computes the losses (B,) of a batch at the current values.

        If ``guidance`` is given, even if it is empty, the function computes the guided loss. The keys of
        ``guidance`` are the names in ``Guide``. Reference models are run before this returns. ``outputs``
        maps x to the module's outputs; by default, the module is called.
        """
        run, loss = outputs or self.module, objective.guided
        if guidance is None:
            return lambda: objective.loss(run(x), y)
        assert loss is not None
        passes: dict[str, Pass] = {}
        for name in loss.guide.models:
            self.place(guidance[name])
            self.module.eval()
            with torch.no_grad(), features_of(self.module) as features:
                passes[name] = Pass(run(x), features())
        seen = GuideInputs(passes, guidance)

        def guided() -> Tensor:
            with features_of(self.module) as features:
                now = Pass(run(x), features())
            return loss.rows(objective.loss(now.outputs, y), now, y, seen)

        return guided

    def differentiate(self, values: Tensor, mean_loss: Callable[[], Tensor]) -> Differentiated:
        """Return the gradient (n,) of a loss at values (n,).

        ``mean_loss`` computes the loss by calling the module, which is in training mode.
        """
        self.place(values)
        self.module.train()
        for tensor in self._trainable.values():
            tensor.grad = None
        with torch.enable_grad(), self._device:
            loss = mean_loss()
            if loss.requires_grad:  # false if the loss depends only on frozen tensors
                torch.autograd.backward(loss)
        gradient = torch.zeros_like(self._values)
        views = self._views(gradient)
        for name, tensor in self._trainable.items():
            if tensor.grad is not None:
                views[name].copy_(tensor.grad)
        statistics = None
        if self._statistics:
            statistics = torch.cat([tensor.flatten() for tensor in self._statistics])
        return Differentiated(cast(Theta, gradient), loss.detach(), cast(Theta, statistics))
