"""Models for tabular data from pytorch-tabnet, rtdl and tab-transformer-pytorch."""

from collections.abc import Mapping
from functools import partial

import torch
from tools.bench.zoo.case import Case
from tools.bench.zoo.published.package import CLASSES, Take, package
from torch import Tensor, nn


def _tabnet() -> nn.Module:
    network = package("pytorch_tabnet.tab_network").TabNet
    empty = torch.eye(16)
    made: nn.Module = network(16, CLASSES, n_d=8, n_a=8, n_steps=2, group_attention_matrix=empty)
    return Take(made, 0)


class NumbersOnly(nn.Module):
    """A tabular model for numbers and categories, used without categories."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, C) for rows (B, F)."""
        logits: Tensor = self.model(x, None)
        return logits


def _tabular(kind: str, **options: object) -> nn.Module:
    made: nn.Module = getattr(package("rtdl_revisiting_models"), kind)(**options)
    return NumbersOnly(made) if kind == "FTTransformer" else made


def _tab_transformer() -> nn.Module:
    made = package("tab_transformer_pytorch").FTTransformer
    model: nn.Module = made(
        categories=(), num_continuous=16, dim=16, dim_out=CLASSES, depth=1, heads=2
    )
    return _NoCategories(model)


class _NoCategories(NumbersOnly):
    def forward(self, x: Tensor) -> Tensor:
        none = torch.empty(x.shape[0], 0, dtype=torch.int64)
        logits: Tensor = self.model(none, x)
        return logits


def _periodic() -> nn.Module:
    embeddings = package("rtdl_num_embeddings").PeriodicEmbeddings(16, 8, lite=False)
    return nn.Sequential(
        embeddings, nn.Flatten(), nn.Linear(16 * 8, 32), nn.ReLU(), nn.Linear(32, CLASSES)
    )


_RESNET: Mapping[str, object] = {
    "d_in": 16, "d_out": CLASSES, "n_blocks": 2, "d_block": 32, "d_hidden": None,
    "d_hidden_multiplier": 2.0, "dropout1": 0.1, "dropout2": 0.0,
}  # fmt: skip
_MLP: Mapping[str, object] = {
    "d_in": 16, "d_out": CLASSES, "n_blocks": 2, "d_block": 32, "dropout": 0.1,
}  # fmt: skip
_FT: Mapping[str, object] = {
    "n_cont_features": 16, "cat_cardinalities": [], "d_out": CLASSES, "n_blocks": 2, "d_block": 16,
    "attention_n_heads": 2, "attention_dropout": 0.0, "ffn_d_hidden": None,
    "ffn_d_hidden_multiplier": 2.0, "ffn_dropout": 0.0, "residual_dropout": 0.0,
}  # fmt: skip
_row = partial(Case, "tabular", row=(16,), classes=CLASSES)
TABULAR: dict[str, Case] = {
    "pytorch-tabnet TabNet": _row(_tabnet),
    "rtdl MLP": _row(partial(_tabular, "MLP", **_MLP)),
    "rtdl ResNet": _row(partial(_tabular, "ResNet", **_RESNET)),
    "rtdl FT-Transformer": _row(partial(_tabular, "FTTransformer", **_FT)),
    "rtdl-num-embeddings Periodic": _row(_periodic),
    "tab-transformer-pytorch FTTransformer": _row(_tab_transformer),
}
