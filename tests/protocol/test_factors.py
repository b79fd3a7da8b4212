"""The mask form with a model: any model carries any mask, and damaged sections are refused.

That fitted models are worth their bytes is tested in test_positions.py; the form is also decoded by
test_sparse_reference.py, which knows it from WIRE.md alone.
"""

import numpy as np
import pytest
from tests.protocol.modelled import random_models

from sedge_protocol import factors
from sedge_protocol.compression import Compression
from sedge_protocol.errors import CodecError
from sedge_protocol.factors import from_factors, to_factors


@pytest.mark.parametrize("compression", Compression)
def test_any_model_carries_any_mask(compression: Compression) -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        size = int(rng.integers(30, 6000))
        kept = rng.random(size) < rng.choice([0.0, 0.01, 0.5, 0.99, 1.0])
        section = to_factors(kept, random_models(rng, size), compression)
        found = from_factors(memoryview(section), compression, size)
        assert found.dtype == np.uint32
        assert found.tolist() == np.flatnonzero(kept).tolist()


def test_more_elements_than_32_bits_place_sort_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    models, kept = random_models(rng, 3000), rng.random(3000) < 0.2
    narrow = to_factors(kept, models, Compression.ZSTD)
    monkeypatch.setattr(factors, "NARROW_BITS", 10)
    assert to_factors(kept, models, Compression.ZSTD) == narrow
    found = from_factors(memoryview(narrow), Compression.ZSTD, 3000)
    assert found.tolist() == np.flatnonzero(kept).tolist()


def test_a_section_that_is_cut_off_anywhere_is_refused() -> None:
    rng = np.random.default_rng(5)
    models = random_models(rng, 3000)
    assert models
    section = to_factors(rng.random(3000) < 0.1, models, Compression.ZSTD)
    for end in range(0, len(section), 7):
        with pytest.raises(CodecError):
            from_factors(memoryview(section)[:end], Compression.ZSTD, 3000)
    with pytest.raises(CodecError):
        from_factors(memoryview(section + b"\x00"), Compression.ZSTD, 3000)
    with pytest.raises(CodecError, match=r"expected within \d+ to n="):
        from_factors(memoryview(section), Compression.ZSTD, models[-1].matrix.slice.stop - 1)
