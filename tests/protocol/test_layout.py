"""Layouts: what is sound, what is refused, and vectors by name."""

import msgspec
import numpy as np
import pytest

from sedge_protocol.errors import CodecError
from sedge_protocol.layout import (
    MAX_NAME_CHARS,
    MAX_PARAMETERS,
    MAX_RANK,
    MAX_TENSORS,
    Layout,
    Role,
    Tensor,
)

P, S = Role.PARAMETER, Role.STATISTIC
LAYOUT = Layout.of(
    [
        ("conv.weight", (4, 3, 2), P),
        ("norm.mean", (4,), S),
        ("head.weight", (2, 4), P),
        ("head.bias", (2,), P),
        ("scale", (), S),
    ]
)


def test_tensors_lie_one_after_the_other() -> None:
    assert [(t.name, t.offset, t.size) for t in LAYOUT.tensors] == [
        ("conv.weight", 0, 24),
        ("norm.mean", 24, 4),
        ("head.weight", 28, 8),
        ("head.bias", 36, 2),
        ("scale", 38, 1),
    ]
    assert LAYOUT.size == 39
    assert LAYOUT.statistics == ("norm.mean", "scale")
    assert LAYOUT.head == ("head.weight", "head.bias")


REFUSED: list[tuple[str, list[Tensor]]] = [
    ("0 tensors", []),
    ("4097 tensors", [Tensor(f"t{i}", (1,), i) for i in range(MAX_TENSORS + 1)]),
    ("duplicate name 'a'", [Tensor("a", (1,), 0), Tensor("a", (1,), 1)]),
    ("0 characters", [Tensor("", (1,), 0)]),
    (f"{MAX_NAME_CHARS + 1} characters", [Tensor("x" * (MAX_NAME_CHARS + 1), (1,), 0)]),
    (f"{MAX_RANK + 1} extents", [Tensor("a", (1,) * (MAX_RANK + 1), 0)]),
    ("1000000 extents", [Tensor("a", (2,) * 10**6, 0)]),
    ("empty extent", [Tensor("a", (0,), 0)]),
    ("empty extent", [Tensor("a", (3, -1), 0)]),
    ("empty extent", [Tensor("a", (-2, -2), 0)]),
    ("offset 1, expected 0", [Tensor("a", (1,), 1)]),
    ("offset -1, expected 0", [Tensor("a", (1,), -1)]),
    ("offset 3, expected 2", [Tensor("a", (2,), 0), Tensor("gap", (1,), 3)]),
    ("offset 1, expected 2", [Tensor("a", (2,), 0), Tensor("overlap", (2,), 1)]),
    ("offset 0, expected 2", [Tensor("a", (2,), 0), Tensor("same", (2,), 0)]),
    ("more than", [Tensor("a", (MAX_PARAMETERS + 1,), 0)]),
    ("more than", [Tensor("a", (2**14, 2**14), 0), Tensor("b", (1,), 2**28)]),
    ("more than", [Tensor("a", (2**63 - 1,) * MAX_RANK, 0)]),
    ("more than", [Tensor("a", (2**32, 2**32), 0)]),  # 0 in 64 bits
]


@pytest.mark.parametrize(("message", "tensors"), REFUSED)
def test_unsound_layouts_are_refused_however_they_come(message: str, tensors: list[Tensor]) -> None:
    with pytest.raises(CodecError, match=message):
        Layout(tuple(tensors))
    coded = msgspec.msgpack.encode({"tensors": tensors})
    with pytest.raises(CodecError, match=message):
        msgspec.msgpack.decode(coded, type=Layout)


def test_the_limits_themselves_are_allowed() -> None:
    assert Layout.of([("x" * MAX_NAME_CHARS, (2**14, 2**14), P)]).size == MAX_PARAMETERS
    assert Layout.of([("a", (1,) * MAX_RANK, P)]).size == 1
    assert Layout.of([(f"t{i}", (), P) for i in range(MAX_TENSORS)]).size == MAX_TENSORS


def test_vectors_by_name_go_both_ways() -> None:
    theta = np.arange(39, dtype=np.float32)
    views = LAYOUT.views(theta)
    assert {name: view.shape for name, view in views.items()} == {
        "conv.weight": (4, 3, 2),
        "norm.mean": (4,),
        "head.weight": (2, 4),
        "head.bias": (2,),
        "scale": (),
    }
    assert LAYOUT.flatten(views).tobytes() == theta.tobytes()
    views["head.bias"][:] = -1
    assert theta[36:38].tolist() == [-1, -1]


def test_flatten_refuses_what_does_not_fit() -> None:
    views = dict(LAYOUT.views(np.zeros(39, np.float32)))
    with pytest.raises(CodecError, match=r"'scale' has shape \(1,\), expected \(\)"):
        LAYOUT.flatten({**views, "scale": np.zeros(1, np.float32)})
    del views["scale"]
    with pytest.raises(CodecError, match="'scale' is missing"):
        LAYOUT.flatten(views)


def test_masks() -> None:
    assert np.flatnonzero(LAYOUT.mask(["norm.mean", "scale"])).tolist() == [24, 25, 26, 27, 38]
    assert not LAYOUT.mask([]).any()
    with pytest.raises(CodecError, match="no tensor named 'norm'"):
        LAYOUT.mask(["norm"])


@pytest.mark.parametrize(
    "theta",
    [
        np.zeros(38, np.float32),
        np.zeros(40, np.float32),
        np.zeros(39, np.float64),
        np.zeros((39, 1), np.float32),
    ],
)
def test_another_vector_is_refused(
    theta: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> None:
    with pytest.raises(CodecError, match=r"expected float32 \(39,\)"):
        LAYOUT.check(theta)


@pytest.mark.parametrize(
    ("names", "head"),
    [
        (["a", "b"], ("a", "b")),
        (["body.a", "x"], ("x",)),
        (["0.weight", "0.bias", "2.weight", "2.bias"], ("2.weight", "2.bias")),
        (["m.fc.weight", "m.fc.bias", "m.fc.bias2"], ("m.fc.weight", "m.fc.bias", "m.fc.bias2")),
    ],
)
def test_the_head_is_the_last_module(names: list[str], head: tuple[str, ...]) -> None:
    assert Layout.of([(name, (1,), P) for name in names]).head == head


@pytest.mark.parametrize(
    ("statistic", "normalisation"),
    [
        ("bn.running_mean", ("bn.weight", "bn.running_mean")),
        ("block.bn.var", ("block.bn.weight", "block.bn.var")),
        ("mean", ("bare", "mean")),
    ],
)
def test_a_module_with_statistics_is_a_normalisation(
    statistic: str, normalisation: tuple[str, ...]
) -> None:
    names = ["bn.weight", "bn1.weight", "block.weight", "block.bn.weight", "bare"]
    layout = Layout.of([*((name, (2,), P) for name in names), (statistic, (), S)])
    assert layout.normalisation == normalisation
    assert Layout.of([(name, (2,), P) for name in names]).normalisation == ()
