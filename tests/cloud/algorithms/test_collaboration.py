"""Overlaps of masks, thresholds and groups: tables, properties, samples."""

import numpy as np
import pytest
from numpy.typing import NDArray

from sedge_cloud.algorithms import collaboration
from sedge_cloud.algorithms.collaboration import Masks, overlaps, sampled_places


def masks_of(size: int, **critical: list[int]) -> Masks:
    masks = Masks(size, 2**21)
    for device, elements in critical.items():
        masks.add(device, np.array(elements, np.intp))
    return masks


def by_counting(bits: NDArray[np.bool_]) -> NDArray[np.float64]:
    """O (N, N) of masks (N, n), element by element."""
    found = np.zeros((len(bits), len(bits)))
    for i, mine in enumerate(bits):
        for j, other in enumerate(bits):
            found[i, j] = 1 - sum(mine != other) / (2 * sum(mine))
    return found


@pytest.mark.parametrize("size", [1, 63, 64, 65, 64 * 512 + 1])
def test_overlaps_are_what_counting_gives(size: int) -> None:
    rng = np.random.default_rng(size)
    bits = rng.random((5, size)) < np.array([0.1, 0.5, 0.5, 0.9, 1.0])[:, None]
    bits[:, 0] = True  # none is empty
    bits[2] = bits[1]
    found = overlaps([collaboration.packed(row) for row in bits])
    np.testing.assert_array_equal(found, by_counting(bits))
    assert found[1, 2] == found[2, 1] == 1


@pytest.mark.parametrize("devices", [2, 3, 5, 40])
def test_overlaps_do_not_depend_on_slices(devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(devices)
    masks = [rng.integers(0, 2**63, 1100, np.uint64) for _ in range(devices)]
    whole = overlaps(masks)
    monkeypatch.setattr(collaboration, "_LARGE", 0)
    for slices in (1, 7, 32):
        monkeypatch.setattr(collaboration, "_SLICES", slices)
        assert overlaps(masks).tobytes() == whole.tobytes()


@pytest.mark.parametrize(("count", "number"), [(2, 1), (7, 3), (30, 7)])
def test_equal_masks_are_one_group(count: int, number: int) -> None:
    # Whatever the mean of equal overlaps is rounded to.
    elements = [0, 3, 4, 9, 10]
    masks = masks_of(12, **{f"d{i:02}": elements for i in range(count)})
    groups = collaboration.collaborators(masks.words, number, 7)
    for device in masks.words:
        assert groups[device] == tuple(d for d in masks.words if d != device)


def test_no_rounding_lifts_the_threshold_above_the_largest_overlap() -> None:
    # The mean of six times 13/14 is rounded up, and so is .2 + (.9 - .2) at other numbers.
    masks = masks_of(16, **{f"d{i}": [*range(13), 13 + i] for i in range(3)})
    groups = collaboration.collaborators(masks.words, 1, 7)
    assert groups == {"d0": ("d1", "d2"), "d1": ("d0", "d2"), "d2": ("d0", "d1")}
    overlap = np.array([[1, 1 - 19 / 20, 1 - 9 / 20], [1 - 16 / 20, 1, 0.25], [0.9, 0.15, 1]])
    assert collaboration.threshold(overlap, 3, 3) == 0.9


@pytest.mark.parametrize(("size", "sample"), [(65, 64), (1000, 999)])
def test_the_sample_is_one_element_of_each_stretch(size: int, sample: int) -> None:
    places = sampled_places(size, sample)
    assert places is not None
    edges = np.arange(sample + 1) * size // sample
    assert (edges[:-1] <= places).all() and (places < edges[1:]).all()
    np.testing.assert_array_equal(places, sampled_places(size, sample))
    assert sampled_places(sample, sample) is None


def test_a_sample_errs_no_more_than_documented() -> None:
    share = 0.1
    # 72 pairs of random masks: their root mean square error is below the stated one.
    rng = np.random.default_rng(1)
    size, sample = 50_000, 4096
    whole, some = Masks(size, size), Masks(size, sample)
    for i in range(9):
        elements = np.flatnonzero(rng.random(size) < share)
        whole.add(str(i), elements)
        some.add(str(i), elements)
    error = overlaps(list(some.words.values())) - overlaps(list(whole.words.values()))
    pairs = error[~np.eye(9, dtype=np.bool_)]
    assert 0 < np.sqrt(np.square(pairs).mean()) < 1 / (2 * share * np.sqrt(sample))
