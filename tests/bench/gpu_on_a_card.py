"""The loop and the limits of ``make bench-gpu`` on a card of fake tensors, where all of theirs must lie.

Run by test_gpu_measures, in a process of its own (see ``tests.emulate.training.card``).
"""

import torch
from tests.emulate.training.card import CARD, card
from tools.bench.gpu import card as limits
from tools.bench.gpu import loop
from tools.bench.gpu.sizes import SIZES
from tools.bench.gpu.subjects import built, subject
from tools.bench.training import Example
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

TINY = SIZES["tiny"]


def with_numbers(example: Example) -> nn.Module:
    """A model is made with its numbers, before it goes to the card."""
    with unset_fake_temporarily():
        return built(example)


def main() -> None:
    setattr(loop, "built", with_numbers)  # noqa: B010
    with card() as host:
        for name in ("avgcnn", "resnet8", "conv1d", "mlp"):
            for precision in (loop.DEFAULT, "fp32"):
                devices = loop.Loop(subject(name, TINY, 2), CARD.type, precision)
                host.uploads.clear()
                devices.train()
                assert not host.uploads and not host.downloads, (name, precision)
        limits.product(CARD.type, 8, "tf32", 0.0)
        limits.copied(CARD.type, 64, 0.0)
        assert not host.uploads and not host.downloads
    assert not torch.backends.cuda.matmul.allow_tf32


if __name__ == "__main__":
    main()
