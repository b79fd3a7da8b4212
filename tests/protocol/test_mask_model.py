"""The model of a mask's matrices: its classes, its bytes, and which tensors have one."""

import re

import numpy as np
import pytest

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Role
from sedge_protocol.mask_model import (
    CLASSES,
    LEVELS,
    MAX_MATRICES,
    MaskModel,
    Matrix,
    check_matrices,
    classes_of,
    entropy_bits,
    from_bytes,
    matrices,
    model_bytes,
)


def _model(matrix: Matrix, rank: int, seed: int, spread: int) -> MaskModel:
    rng = np.random.default_rng(seed)
    left = rng.integers(-spread, spread + 1, (1 + rank, matrix.rows)).astype(np.int8)
    right = rng.integers(-spread, spread + 1, (1 + rank, matrix.columns)).astype(np.int8)
    return MaskModel(matrix, left, right)


@pytest.mark.parametrize("rank", [0, 1, 3, 8])
@pytest.mark.parametrize("spread", [1, 20, 127])
def test_classes_are_those_of_whole_numbers(rank: int, spread: int) -> None:
    matrix = Matrix(0, 150, 31)  # more rows than a block, and not whole blocks
    model = _model(matrix, rank, 10 * rank + spread, spread)
    left, right = model.rows.astype(int), model.columns.astype(int)
    sixteenths = 4 * left[0][:, None] + 4 * right[0][None] + left[1:].T @ right[1:]
    expected = np.clip(sixteenths // 8 + 16, 0, 31)
    assert model.classes().dtype == np.uint8
    assert np.array_equal(model.classes().reshape(150, 31), expected)
    assert model.rank == rank


def test_classes_of_the_greatest_numbers_are_exact() -> None:
    """8 x 127 x 127 is far below 2**24: float32 holds every sum."""
    matrix = Matrix(0, 1, 1)
    for sign, expected in ((1, 31), (-1, 0)):
        left = np.full((9, 1), 127, np.int8)
        right = np.full((9, 1), sign * 127, np.int8)
        assert MaskModel(matrix, left, right).classes().tolist() == [expected]
    level = MaskModel(matrix, np.array([[2], [127]], np.int8), np.array([[0], [0]], np.int8))
    assert level.classes().tolist() == [17]  # exactly a half is the next class


def test_what_is_in_no_matrix_is_a_class_of_its_own() -> None:
    first, second = _model(Matrix(2, 3, 2), 1, 1, 5), _model(Matrix(10, 1, 4), 0, 2, 5)
    found = classes_of([first, second], 16)
    assert found[2:8].tolist() == first.classes().tolist()
    assert found[10:14].tolist() == second.classes().tolist()
    assert set(found[[0, 1, 8, 9, 14, 15]].tolist()) == {LEVELS} == {CLASSES - 1}
    assert classes_of([], 3).tolist() == [LEVELS] * 3


def test_the_entropy_of_a_random_mask() -> None:
    assert [entropy_bits(count, 1000) for count in (0, 500, 1000)] == [0, 1000, 0]
    assert entropy_bits(58_203, 582_026) / 8 == pytest.approx(34_121, abs=1)


def test_bytes_come_back() -> None:
    for rank in (0, 2):
        matrix = Matrix(5, 6, 7)
        model = _model(matrix, rank, 3, 127)
        data = model.to_bytes()
        assert len(data) == model_bytes(matrix, rank) == (1 + rank) * 13
        back = from_bytes(matrix, rank, memoryview(data))
        assert np.array_equal(back.rows, model.rows)
        assert np.array_equal(back.columns, model.columns)


def test_parameters_with_many_elements_a_row_and_column_are_matrices() -> None:
    layout = Layout.of(
        [
            ("conv.weight", (64, 32, 5, 5), Role.PARAMETER),
            ("conv.bias", (64,), Role.PARAMETER),
            ("norm.mean", (64, 64), Role.STATISTIC),
            ("fc.weight", (512, 1024), Role.PARAMETER),
            ("fc.bias", (8192,), Role.PARAMETER),
            ("depthwise.weight", (512, 1, 3, 3), Role.PARAMETER),
            ("head.weight", (20, 21), Role.PARAMETER),
        ]
    )
    conv, fc, head = (layout.by_name[f"{name}.weight"].offset for name in ("conv", "fc", "head"))
    assert matrices(layout) == (
        Matrix(conv, 64, 800),
        Matrix(fc, 512, 1024),
        Matrix(head, 20, 21),
    )
    assert head + 420 == layout.size


def test_a_deep_network_has_no_more_matrices_than_a_byte_counts() -> None:
    layout = Layout.of([(f"w{i}", (64, 64), Role.PARAMETER) for i in range(300)])
    assert len(matrices(layout)) == MAX_MATRICES == 255


@pytest.mark.parametrize(
    "shapes",
    [
        [(Matrix(0, 0, 50), 0)],
        [(Matrix(0, 50, 0), 0)],
        [(Matrix(0, 20, 50), 0), (Matrix(999, 20, 50), 0)],
        [(Matrix(5000, 20, 50), 0), (Matrix(0, 20, 50), 0)],
        [(Matrix(99_001, 20, 50), 0)],
        [(Matrix(2**32 - 1, 1, 1), 0)],
        [(Matrix(0, 2**32 - 1, 2**32 - 1), 0)],
        [(Matrix(0, 20, 50), 9)],
    ],
    ids=["no rows", "no columns", "overlap", "descend", "past n", "far", "huge", "rank"],
)
def test_matrices_that_cannot_be_are_refused(shapes: list[tuple[Matrix, int]]) -> None:
    check_matrices([(Matrix(0, 20, 50), 8), (Matrix(99_000, 20, 50), 0)], 100_000)
    matrix, rank = shapes[-1]
    with pytest.raises(CodecError, match=re.escape(f"at {matrix.offset} of rank {rank}")):
        check_matrices(shapes, 100_000)


def test_models_have_a_byte_for_eight_elements() -> None:
    """So no few bytes make a receiver take many times the memory, or the time, of an honest vector."""
    check_matrices([(Matrix(0, 1, 49_999), 0)], 400_000)
    with pytest.raises(CodecError, match="models of 50001 bytes, the limit is 50000"):
        check_matrices([(Matrix(0, 1, 50_000), 0)], 400_000)
    thin = [(Matrix(1000 * place, 1, 1000), 8) for place in range(255)]
    with pytest.raises(CodecError, match="the limit is 31875"):
        check_matrices(thin, 255_000)
