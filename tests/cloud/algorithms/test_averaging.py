"""The running mean against exact arithmetic, its memory, and what it refuses."""

import weakref
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from sedge_cloud.algorithms.averaging import mean_change, robust_change, shared_mean_change
from sedge_cloud.algorithms.robust import Robust
from sedge_cloud.strategy import Change, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import StrategyError
from sedge_protocol.layout import Theta


def vector(*values: float) -> Theta:
    return np.array(values, np.float32)


def updates(weighted: Iterable[tuple[int, Theta]]) -> Iterator[Update]:
    return (Update("d", count, theta) for count, theta in weighted)


def coded(rng: np.random.Generator, size: int, count: int | None) -> SparseVector:
    """Normal values at ``count`` places, None: at all."""
    values = rng.normal(size=size if count is None else count).astype(np.float32)
    if count is None:
        return SparseVector(size, None, values)
    indices = np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)
    return SparseVector(size, indices, values)


@pytest.mark.parametrize(("patch", "delta"), [(None, 7), (5, None), (0, 0), (5, 40), (50, 50)])
def test_what_was_sent_is_averaged_like_whole_models(patch: int | None, delta: int | None) -> None:
    """The mean of patches and deltas on the global is that of the models they make.

    The models are rounded to float32 one by one, the sums only once: half an ulp of a model apart.
    """
    rng = np.random.default_rng(3)
    old = rng.normal(size=50).astype(np.float32)
    sent = [
        Update(
            f"d{i}",
            int(rng.integers(1, 900)),
            old,
            None if patch is None else coded(rng, 50, patch),
            coded(rng, 50, delta) if i else None,
        )
        for i in range(9)
    ]
    found = mean_change(sent, old)
    whole = mean_change([Update(u.device, u.num_examples, u.trained) for u in sent], old)
    largest = max(float(np.abs(u.trained).max()) for u in sent)
    spacing = float(np.spacing(np.float32(largest)))
    np.testing.assert_allclose(found, whole, rtol=0, atol=2 * spacing)
    total = sum(u.num_examples for u in sent)
    for k in range(50):
        exact = Fraction(0)
        for u in sent:
            moved = Fraction(float(old[k]))
            if u.patch is not None:
                moved = at(u.patch, k) or moved
            exact += u.num_examples * (moved + (at(u.delta, k) or 0 if u.delta else 0))
        assert old[k] + found[k] == pytest.approx(float(exact / total), rel=1e-7, abs=1e-9)


def at(vector: SparseVector, place: int) -> Fraction | None:
    """A vector's value at one place, exactly; None where it has none."""
    if vector.indices is None:
        return Fraction(float(vector.values[place]))
    found = np.flatnonzero(vector.indices == place)
    return Fraction(float(vector.values[found[0]])) if found.size else None


def test_holds_one_vector_at_a_time() -> None:
    seen: list[weakref.ref[Theta]] = []
    most_alive = 0

    def models() -> Iterator[Update]:
        nonlocal most_alive
        for i in range(6):
            theta = np.full(100, i, np.float32)
            seen.append(weakref.ref(theta))
            most_alive = max(most_alive, sum(ref() is not None for ref in seen))
            yield Update("d", 1, theta)

    mean_change(models(), np.zeros(100, np.float32))
    assert most_alive <= 2  # the one just made, and the last, still bound in the loop


def by_median(updates: Iterable[Update], theta: Theta) -> Change:
    return robust_change(updates, theta, Robust(rule="median"))


@pytest.mark.parametrize("call", [mean_change, shared_mean_change, by_median])
@pytest.mark.parametrize(
    ("weight", "theta", "message"),
    [
        (-1, vector(1, 1), "weight -1"),
        (1, vector(1), r"shape \(1,\), expected \(2,\)"),
        (1, vector(1, 1).reshape(1, 2), r"shape \(1, 2\), expected \(2,\)"),
    ],
)
def test_refuses(
    call: Callable[[Iterable[Update], Theta], Change], weight: int, theta: Theta, message: str
) -> None:
    with pytest.raises(StrategyError, match=message):
        call(updates([(3, vector(1, 1)), (weight, theta)]), vector(0, 0))
