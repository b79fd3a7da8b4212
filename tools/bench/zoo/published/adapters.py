"""Frozen models with adapters from peft."""

from functools import partial
from typing import Any

from tools.bench.zoo.case import Case
from tools.bench.zoo.published.package import (
    CLASSES,
    LENGTH,
    SIDE,
    WORDS,
    Padded,
    Take,
    hugging_face,
    package,
)
from tools.bench.zoo.published.text import TINY
from tools.bench.zoo.published.vision import IMAGE
from torch import nn


def _adapted(kind: str, model: nn.Module, **options: object) -> nn.Module:
    peft = package("peft")
    return _cast(peft.get_peft_model(model, getattr(peft, kind)(**options)))


def _cast(made: Any) -> nn.Module:
    model: nn.Module = made
    return model


def _lora_bert() -> nn.Module:
    base = hugging_face("BertConfig", "BertForSequenceClassification", **TINY)
    return Padded(
        _adapted(
            "LoraConfig",
            base,
            r=4,
            target_modules=["query", "value"],
            modules_to_save=["classifier"],
        )
    )


def _ia3_bert() -> nn.Module:
    base = hugging_face("BertConfig", "BertForSequenceClassification", **TINY)
    return Take(
        _adapted(
            "IA3Config",
            base,
            target_modules=["key", "value"],
            feedforward_modules=[],
            modules_to_save=["classifier"],
        )
    )


def _lora_vit() -> nn.Module:
    base = package("timm").create_model(
        "vit_tiny_patch16_224", num_classes=10, img_size=SIDE, patch_size=8, depth=2
    )
    return _adapted("LoraConfig", base, r=4, target_modules=["qkv"], modules_to_save=["head"])


_words = partial(Case, "adapters", row=(LENGTH,), classes=CLASSES, vocabulary=WORDS)
ADAPTERS: dict[str, Case] = {
    "peft LoRA of BERT": _words(_lora_bert),
    "peft IA3 of BERT": _words(_ia3_bert),
    "peft LoRA of ViT": Case("adapters", _lora_vit, IMAGE),
}
