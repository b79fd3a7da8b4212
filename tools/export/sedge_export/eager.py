"""The reference for verification: the user's own model in plain eager torch.

It uses autograd and torch.optim.SGD on real rows only, and shares no code with the tracing.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from sedge_export.batches import Batch
from sedge_export.network import RowLoss, copied
from sedge_protocol.layout import Layout, Theta


class Eager:
    """A copy of the model with its optimizer; deep copies continue independently."""

    def __init__(self, model: nn.Module, layout: Layout, loss: RowLoss, momentum: float) -> None:
        self._model = copied(model)
        self._layout, self._loss = layout, loss
        by_name = {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}
        self._tensors = [by_name[tensor.name] for tensor in layout.tensors]
        trainable = [p for p in self._model.parameters() if p.requires_grad]
        self._optimizer = torch.optim.SGD(trainable, lr=1.0, momentum=momentum)

    @property
    def theta(self) -> Theta:
        """The model's values, shape (n,)."""
        return _flat([tensor.detach() for tensor in self._tensors])

    @property
    def gradient(self) -> Theta:
        """The last gradient, shape (n,), 0 for tensors without one."""
        return _flat([torch.zeros_like(t) if t.grad is None else t.grad for t in self._tensors])

    @property
    def velocity(self) -> Theta:
        """The optimizer's momentum buffer, shape (n,), 0 for tensors that are not trained."""
        state = self._optimizer.state
        buffers = [state[t].get("momentum_buffer") if t in state else None for t in self._tensors]
        pairs = zip(buffers, self._tensors, strict=True)
        return _flat([torch.zeros_like(t) if v is None else v for v, t in pairs])

    def step(
        self, batch: Batch, learning_rate: float, prox: float = 0.0, anchor: Theta | None = None
    ) -> float:
        """One step. Returns the loss."""
        self._model.train()
        self._model.zero_grad()
        rows = slice(batch.rows)
        losses = self._loss(self._model(batch.x[rows]), batch.y[rows])
        loss = (losses * batch.w[rows]).sum() / batch.w[rows].sum()
        torch.autograd.backward(loss)
        # An unused layer has no gradient here, and a zero one in a program.
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
        for tensor, spec in zip(self._tensors, self._layout.tensors, strict=True):
            if tensor.grad is not None:
                target = torch.from_numpy(anchor[spec.slice].reshape(spec.shape))
                tensor.grad += prox * (tensor.detach() - target)

    def evaluate(self, batch: Batch, classifies: bool) -> tuple[Tensor, dict[str, float]]:
        """Outputs (B, C) of all rows, and the sums that the program ``evaluate`` must return."""
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
