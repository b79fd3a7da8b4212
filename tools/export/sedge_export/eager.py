"""The reference that programs are verified against: the user's own model in plain eager torch.

Autograd and torch.optim.SGD, real rows only; nothing of the tracing is shared with it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sedge_export.batches import Batch
from sedge_export.network import RowLoss, copied
from sedge_protocol.layout import Layout, Theta


class Eager:
    """A copy of the model with its optimizer; a deep copy of it continues on its own."""

    def __init__(self, model: nn.Module, layout: Layout, loss: RowLoss, momentum: float) -> None:
        self._model = copied(model)
        self._layout, self._loss = layout, loss
        held = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        self._tensors = [held[tensor.name] for tensor in layout.tensors]
        learning = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.SGD(learning, lr=1.0, momentum=momentum)

    @property
    def theta(self) -> Theta:
        """The model's values, shape (n,)."""
        return _flat([tensor.detach() for tensor in self._tensors])

    @property
    def gradient(self) -> Theta:
        """The last gradient, shape (n,), 0 for what has none."""
        return _flat([torch.zeros_like(t) if t.grad is None else t.grad for t in self._tensors])

    @property
    def velocity(self) -> Theta:
        """The optimizer's momentum buffer, shape (n,), 0 for what does not learn."""
        state = self._optimizer.state
        held = [state[t].get("momentum_buffer") if t in state else None for t in self._tensors]
        pairs = zip(held, self._tensors, strict=True)
        return _flat([torch.zeros_like(t) if v is None else v for v, t in pairs])

    def step(
        self, batch: Batch, learning_rate: float, prox: float = 0.0, anchor: Theta | None = None
    ) -> float:
        """One step; gives the loss."""
        self._model.train()
        self._model.zero_grad()
        rows = slice(batch.rows)
        losses = self._loss(self._model(batch.x[rows]), batch.y[rows])
        loss = (losses * batch.w[rows]).sum() / batch.w[rows].sum()
        torch.autograd.backward(loss)
        # Of a layer that takes no part there is no gradient; in a program it is zero.
        for tensor in self._tensors:
            if tensor.requires_grad and tensor.grad is None:
                tensor.grad = torch.zeros_like(tensor)
        if anchor is not None:
            self._pull(prox, anchor)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        return loss.item()

    def _pull(self, prox: float, anchor: Theta) -> None:
        for tensor, place in zip(self._tensors, self._layout.tensors, strict=True):
            if tensor.grad is not None:
                held = torch.from_numpy(anchor[place.slice].reshape(place.shape))
                tensor.grad += prox * (tensor.detach() - held)

    def evaluate(self, batch: Batch, classifies: bool) -> tuple[Tensor, dict[str, float]]:
        """Outputs (B, C) of all rows, and what ``evaluate`` must give."""
        self._model.eval()
        with torch.no_grad():
            output = self._model(batch.x)
            losses = self._loss(output, batch.y)
            right = (output.argmax(1) == batch.y) if classifies else torch.zeros(len(batch.w))
        sums = {
            "loss_sum": (losses * batch.w).sum().item(),
            "correct_count": (right * batch.w).sum().item(),
            "weight_sum": batch.w.sum().item(),
        }
        return output, sums


def _flat(tensors: Sequence[Tensor]) -> Theta:
    return np.concatenate([t.reshape(-1).numpy() for t in tensors]).astype(np.float32)
