"""Axes: which are refused, and the narrower forms that they describe."""

import pytest

from sedge_protocol.axes import FIXED, Axes, kept
from sedge_protocol.errors import CodecError
from sedge_protocol.layout import Layout, Role

# A convolution of 6 channels, normalised, flattened with 4 positions each, and a classifier.
SHAPES = {"conv": (6, 1, 3, 3), "mean": (6,), "fc": (8, 24), "head": (3, 8), "bias": (3,)}
LAYOUT = Layout.of(
    (name, shape, Role.STATISTIC if name == "mean" else Role.PARAMETER)
    for name, shape in SHAPES.items()
)
DIMS = ((0, FIXED, FIXED, FIXED), (0,), (1, 0), (FIXED, 1), (FIXED,))
AXES = Axes((6, 8), DIMS)


@pytest.mark.parametrize(
    ("channels", "dropped", "expected"),
    [
        (64, 0.0, 64),
        (64, 0.25, 48),
        (64, 0.75, 16),
        (6, 0.25, 5),
        (5, 0.5, 3),
        (10, 0.7, 3),  # (1 - 0.7) * 10 is a little more than 3
        (10, 0.9, 1),  # and (1 - 0.9) * 10 a little less than 1
        (1, 0.75, 1),
        (1, 0.999999999999, 1),
        (3, 0.999999999999, 1),
    ],
)
def test_channels_that_are_kept(channels: int, dropped: float, expected: int) -> None:
    assert kept(channels, dropped) == expected


def test_these_are_axes_of_the_layout() -> None:
    AXES.check(LAYOUT)
    assert AXES.used == (((0, 0), (1, 0), (2, 1)), ((2, 0), (3, 1)))


def test_a_narrower_form() -> None:
    narrower = AXES.narrowed(0.5)
    assert narrower == Axes((3, 4), DIMS)
    layout = AXES.layout(LAYOUT, narrower)
    shapes = {tensor.name: tensor.shape for tensor in layout.tensors}
    assert shapes == {
        "conv": (3, 1, 3, 3),
        "mean": (3,),
        "fc": (4, 12),
        "head": (3, 4),
        "bias": (3,),
    }
    assert layout.statistics == ("mean",)
    narrower.check(layout)
    assert AXES.layout(LAYOUT, AXES.narrowed(0)) == LAYOUT


WRONG: list[tuple[str, Axes]] = [
    ("4 tensors, expected 5", Axes((6, 8), DIMS[:-1])),
    (r"'mean': \(0, 0\), expected 1", Axes((6, 8), (DIMS[0], (0, 0), *DIMS[2:]))),
    (r"'bias': axis 2 of extent 3", Axes((6, 8), (*DIMS[:-1], (2,)))),
    (r"'bias': axis -2 of extent 3", Axes((6, 8), (*DIMS[:-1], (-2,)))),
    (r"'bias': axis 0 of extent 3", Axes((6, 8), (*DIMS[:-1], (0,)))),
    (r"'conv': axis 0 of extent 6", Axes((4, 8), DIMS)),
    ("axis 1 of 0 channels", Axes((6, 0), DIMS)),
    ("axis 1 of -8 channels", Axes((6, -8), DIMS)),
    ("axis 2 belongs to no tensor", Axes((6, 8, 1), DIMS)),
    ("axis 0 of extent 6", Axes((10**18, 8), DIMS)),
]


@pytest.mark.parametrize(("message", "axes"), WRONG)
def test_axes_of_another_layout(message: str, axes: Axes) -> None:
    with pytest.raises(CodecError, match=message):
        axes.check(LAYOUT)
