"""Coded vectors whose mask is in the form factors, with models that nobody has fitted."""

from collections.abc import Sequence

import numpy as np

from sedge_protocol.factors import to_factors
from sedge_protocol.mask_model import MaskModel, Matrix, model_bytes
from sedge_protocol.positions import MaskForm
from sedge_protocol.sparse import Compression, SparseVector, ValueCoding, encode

_TAGS = {Compression.NONE: 0, Compression.ZLIB: 1, Compression.ZSTD: 2}


def random_vector(rng: np.random.Generator, size: int, count: int) -> SparseVector:
    """``count`` elements of n = ``size``, with values that every coding holds."""
    indices = np.sort(rng.choice(size, count, replace=False)).astype(np.uint32)
    return SparseVector(size, indices, rng.choice([0.5, -0.25], count).astype(np.float32))


def random_models(rng: np.random.Generator, size: int) -> list[MaskModel]:
    """Models of up to three matrices within n = ``size``, at least 30, with numbers of their own."""
    found: list[MaskModel] = []
    begin, room = 0, -(-size // 8)  # more is refused
    for _ in range(int(rng.integers(0, 4))):
        rows, columns = (int(extent) for extent in rng.integers(1, 20, 2))
        offset = begin + int(rng.integers(0, 5))
        matrix = Matrix(offset, rows, columns)
        rank = int(rng.integers(0, 3))
        room -= model_bytes(matrix, rank)
        if matrix.slice.stop > size or room < 0:
            break
        begin = matrix.slice.stop
        spread = int(rng.choice([2, 10, 127]))
        left = rng.integers(-spread, spread + 1, (1 + rank, rows)).astype(np.int8)
        right = rng.integers(-spread, spread + 1, (1 + rank, columns)).astype(np.int8)
        found.append(MaskModel(matrix, left, right))
    return found


def modelled(
    vector: SparseVector,
    models: Sequence[MaskModel],
    compression: Compression = Compression.ZSTD,
    values: ValueCoding = ValueCoding.BF16,
) -> bytes:
    """The coded vector as it would be with these models, even where another form is shorter."""
    assert vector.indices is not None
    kept = np.zeros(vector.size, np.bool_)
    kept[vector.indices] = True
    section = to_factors(kept, models, compression)
    assert len(section) <= -(-vector.size // 8)  # a longer one is refused
    plain = encode(vector, values, Compression.NONE)
    length = int.from_bytes(plain[12:16], "little")
    after = 16 + 4 * (2 if values is ValueCoding.BF16 else 4)
    tag = bytes([MaskForm.FACTORS | _TAGS[compression] << 4])
    head = plain[:1] + tag + plain[2:12] + len(section).to_bytes(4, "little") + plain[16:after]
    return head + section + plain[after + length :]
