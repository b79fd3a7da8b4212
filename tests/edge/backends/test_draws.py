"""torch's random functions on given numbers; tests/system/test_random_numbers.py has whole models."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sedge_edge.backends.draws import draws

X = torch.arange(1.0, 25.0).view(2, 3, 4)
NUMBERS = torch.arange(24) / 24  # each below the next


def kept(shape: tuple[int, ...], p: float) -> Tensor:
    return (NUMBERS[: torch.Size(shape).numel()].view(shape) >= p).float() / (1 - p)


def normal() -> Tensor:
    """Twelve of Box and Muller's."""
    return (-2 * (1 - NUMBERS[:12]).log()).sqrt() * (2 * torch.pi * NUMBERS[12:]).cos()


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: F.dropout(X, 0.25), X * kept((2, 3, 4), 0.25)),
        (lambda: F.dropout(X.clone(), 0.25, inplace=True), X * kept((2, 3, 4), 0.25)),
        (lambda: F.dropout(X, 1.0), 0 * X),
        (lambda: F.dropout1d(X, 0.1), X * kept((2, 3, 1), 0.1)),
        (lambda: F.dropout2d(X[:, :, None], 0.1), X[:, :, None] * kept((2, 3, 1, 1), 0.1)),
        (lambda: torch.bernoulli(torch.full((3, 4), 0.2)), (NUMBERS[:12] < 0.2).float().view(3, 4)),
        (lambda: torch.empty(12).bernoulli_(0.2), (NUMBERS[:12] < 0.2).float()),
        (lambda: torch.rand(2, 3), NUMBERS[:6].view(2, 3)),
        (lambda: torch.rand((2, 3), dtype=torch.float64), NUMBERS[:6].view(2, 3).double()),
        (lambda: torch.rand_like(X), NUMBERS.view(2, 3, 4)),
        (lambda: torch.empty(12).uniform_(2, 4), 2 + 2 * NUMBERS[:12]),
        (lambda: torch.empty(12).exponential_(2), -torch.log(1 - 2**-17 - NUMBERS[:12]) / 2),
        (lambda: torch.dropout(X, 0.25, True), X * kept((2, 3, 4), 0.25)),
        (lambda: torch.randn(12), normal()),
        (lambda: torch.normal(3.0, 2.0, (12,)), 3 + 2 * normal()),
    ],
)
def test_the_next_numbers_decide(call: Callable[[], Tensor], expected: Tensor) -> None:
    with draws(NUMBERS):
        torch.testing.assert_close(call(), expected)
    with draws(None) as source:
        call()
    assert source.count in (expected.numel(), 2 * expected.numel(), 6) or not expected.any()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("mask", [None, torch.ones(3, 3).tril().bool(), torch.eye(3)])
def test_attention_is_torchs_but_for_the_dropout(causal: bool, mask: Tensor | None) -> None:
    given = None if causal else mask
    plain = F.scaled_dot_product_attention(X, X / 9, X, given, 0.0, causal)
    with draws(torch.full((18,), 0.9)):  # nothing is dropped, and the rest is scaled
        found = F.scaled_dot_product_attention(X, X / 9, X, given, 0.5, causal)
        torch.testing.assert_close(found, 2 * plain)
    with draws(torch.zeros(18)):
        assert not F.scaled_dot_product_attention(X, X / 9, X, given, 0.5, causal).any()


def test_what_is_not_random_or_not_ours_is_torchs_own() -> None:
    before = F.dropout, torch.rand, Tensor.bernoulli_
    torch.manual_seed(0)
    expected = torch.randperm(3), torch.rand(3, generator=torch.Generator().manual_seed(1))
    torch.manual_seed(0)
    with draws(None) as source:
        assert F.dropout(X, 0.5, training=False) is X and F.dropout(X, 0.0).equal(X)
        found = torch.randperm(3), torch.rand(3, generator=torch.Generator().manual_seed(1))
        with pytest.raises(ValueError, match="probability has to be between 0 and 1"):
            F.dropout(X, 1.5)
    assert source.count == 0 and all(map(torch.equal, found, expected))
    assert (F.dropout, torch.rand, Tensor.bernoulli_) == before
