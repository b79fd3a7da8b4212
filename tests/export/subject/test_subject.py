"""The user's model is taken once: what an export costs in copies of it and forward passes, by count."""

from pathlib import Path

import torch
from torch import Tensor, nn

from sedge_export import export


class Counted(nn.Module):
    """Counts for the whole class, as an instance's attribute would be hidden state."""

    copies = 0
    forwards = 0

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def __deepcopy__(self, _memo: object) -> "Counted":
        Counted.copies += 1
        copy = Counted()
        copy.load_state_dict(self.state_dict())
        return copy

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (B, 3) of x (B, 4)."""
        Counted.forwards += 1
        logits: Tensor = self.last(x)
        return logits


def test_an_export_copies_and_runs_the_model_no_more_than_its_stages_need(tmp_path: Path) -> None:
    """Copies: two inspected, one traced, one in float64 and one in float32.

    Forward passes: inspected in both modes (1 + 3 each) and on random rows (1), traced for the axes (1) and
    for three programs (3), and run as the yardstick: for the learning rate (1), and in either precision for
    four gradients and two evaluations (12).
    """
    Counted.copies = Counted.forwards = 0
    export(
        Counted(), torch.randn(4, 4), batch_size=4, name="counted", num_classes=3,
        folder=tmp_path / "bundle",
    )  # fmt: skip
    assert (Counted.copies, Counted.forwards) == (5, 26)
