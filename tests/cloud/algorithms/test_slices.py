"""However a task is cut, its bytes are those of the whole."""

import numpy as np
import pytest

from sedge_cloud.algorithms import collaboration
from sedge_cloud.algorithms.collaboration import overlaps


@pytest.mark.parametrize("devices", [2, 3, 5, 40])
def test_overlaps_do_not_depend_on_the_slices(
    devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(devices)
    masks = [rng.integers(0, 2**63, 1100, np.uint64) for _ in range(devices)]
    whole = overlaps(masks)
    monkeypatch.setattr(collaboration, "_LARGE", 0)
    for slices in (1, 7, 32):
        monkeypatch.setattr(collaboration, "_SLICES", slices)
        assert overlaps(masks).tobytes() == whole.tobytes()
