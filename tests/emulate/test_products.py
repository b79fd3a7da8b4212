"""Every way to a product gives it."""

import pytest
import torch

from sedge_emulate.training import products
from sedge_emulate.training.products import by_transposed


@pytest.mark.parametrize("has_kernel", [True, False])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(3, 5, 7), (32, 256, 96), (1, 1024, 600), (0, 4, 3)])
def test_products(
    shape: tuple[int, int, int],
    kind: torch.dtype,
    has_kernel: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not has_kernel:
        monkeypatch.setattr(products, "_KERNEL", None)
    rows, inner, columns = shape
    torch.manual_seed(0)
    x, weight = torch.randn(rows, inner).to(kind), torch.randn(columns, inner).to(kind)
    bias = torch.randn(columns).to(kind)
    wanted = x.double() @ weight.double().t()
    flipped = x.t().contiguous().t(), weight.t().contiguous().t()
    for left, right in ((x, weight), flipped):
        for added in (None, bias):
            found = by_transposed(left, right, added)
            assert found.dtype == kind
            assert found.shape == (rows, columns)
            exact = wanted if added is None else wanted + added.double()
            error = (found.double() - exact).norm()
            assert float(error) <= (1e-2 if kind is torch.bfloat16 else 2e-6) * float(exact.norm())


def test_this_build_of_torch_has_the_kernel() -> None:
    """The pinned one: a rename would cost half of the speed, and nothing else would tell."""
    assert products._KERNEL is not None
