"""Modules made of a function: what no layer of torch's own says in a line."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor, nn

Body: TypeAlias = Callable[..., Tensor]
Function: TypeAlias = Callable[[Body, Tensor], Tensor]


class Lambda(nn.Module):
    """A function of a submodule and the input."""

    def __init__(self, function: Function, body: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.body, x)


class Beside(nn.Module):
    """Branches on the same input; their outputs are flattened and joined."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x).flatten(1) for branch in self.branches], 1)
