"""Imports packages when a model is built, and adapts their models' outputs."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

WORDS, LENGTH, CLASSES, SIDE = 100, 12, 5, 32
_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_library: Any = torch.library.Library
_OPERATORS = _library("torchvision", "FRAGMENT")


def package(name: str) -> Any:
    """Import a package.

    The operators that torchvision needs on import are declared first, because torchvision's compiled
    operators may need CUDA.
    """
    if find_spec("torchvision") and not hasattr(torch.ops.torchvision, "nms"):
        for operator in ("nms", "qnms"):
            _OPERATORS.define(f"{operator}{_SCHEMA}")
    return import_module(name)


def hugging_face(config: str, model: str, **options: object) -> nn.Module:
    """Return a model from transformers with random weights."""
    transformers = package("transformers")
    made: nn.Module = getattr(transformers, model)(getattr(transformers, config)(**options))
    return made


class Take(nn.Module):
    """Wraps a model that outputs an object or tuple, and returns its element ``part``, a name or index."""

    def __init__(self, model: nn.Module, part: str | int = "logits", **constants: object) -> None:
        super().__init__()
        self.model, self.part, self.constants = model, part, constants

    def forward(self, x: Tensor) -> Tensor:
        """Return the element (B, ...) for inputs (B, ...)."""
        output = self.model(x, **self.constants)
        taken: Tensor = output[self.part]
        return taken


class LastToken(nn.Module):
    """Wraps a causal language model to classify the next token: the last position's logits (B, V)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, V) for tokens (B, T)."""
        logits: Tensor = self.model(tokens).logits[:, -1]
        return logits


class Padded(nn.Module):
    """A text classifier whose attention ignores token 0, the padding."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, C) for tokens (B, T)."""
        logits: Tensor = self.model(tokens, attention_mask=(tokens != 0).long()).logits
        return logits


class Pooled(nn.Module):
    """Classifies with an encoder of sequences, a mean over positions, and a linear layer."""

    def __init__(
        self, encoder: nn.Module, width: int, classes: int, part: str | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.part = encoder, part
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C)."""
        output = self.encoder(x)
        hidden: Tensor = output[self.part] if self.part else output
        logits: Tensor = self.head(hidden.mean(1))
        return logits
