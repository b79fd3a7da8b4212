"""What plots have in common: the ticks and units of the axes, and data as pixels."""

import pytest

from sedge_cloud.figures import drawing
from sedge_cloud.figures.drawing import HEIGHT, LEFT, TOP, WIDTH, Axis, Plot, ticks


@pytest.mark.parametrize(
    ("longest_s", "name", "last", "text"),
    [
        (0.0, "seconds", 0.001, "0.001"), (119, "seconds", 120, "120"), (120, "minutes", 120, "2"),
        (7199, "minutes", 7200, "120"), (7200, "hours", 7200, "2"),
        (172_799, "hours", 172_800, "48"), (172_800, "days", 172_800, "2"),
    ],
)  # fmt: skip
def test_time_is_in_a_unit_that_gives_small_numbers(
    longest_s: float, name: str, last: float, text: str
) -> None:
    axis = drawing.time_axis(longest_s)
    assert axis.label == name
    assert (axis.low, axis.ticks[0]) == (0, (0, "0"))
    assert axis.high >= longest_s
    at, written = axis.ticks[-1]
    assert at <= axis.high
    if at == pytest.approx(last):
        assert written == text
    assert 3 <= len(axis.ticks) <= 10


@pytest.mark.parametrize(
    ("low", "high", "names"),
    [
        (0, 0, ["1 B", "10 B"]),
        (1000, 1000, ["1 kB", "10 kB"]),
        (1000, 9000, ["1 kB", "10 kB", "100 kB"]),  # room above the highest
        (20_000, 4_000_000, ["10 kB", "100 kB", "1 MB", "10 MB"]),
    ],
)
def test_sizes_stand_between_powers_of_ten(low: float, high: float, names: list[str]) -> None:
    axis = drawing.bytes_axis(low, high)
    assert [text for _, text in axis.ticks] == names
    assert axis.share([at for at, _ in axis.ticks]) == pytest.approx(
        [i / (len(names) - 1) for i in range(len(names))]
    )


def test_accuracy_begins_at_a_tenth() -> None:
    for values, low, first in (
        ([0.57, 0.9], 0.495, "50 %"),
        ([0.97], 0.895, "90 %"),
        ([], -0.005, "0 %"),
    ):
        axis = drawing.metric_axis(values)
        assert (axis.low, axis.high) == pytest.approx((low, 1.005))
        assert (axis.ticks[0][1], axis.ticks[-1][1]) == (first, "100 %")


def test_ticks_are_round_numbers_within_the_range() -> None:
    assert ticks(0, 10, 5) == [0, 2, 4, 6, 8, 10]
    assert ticks(0.5, 1, 6) == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    assert ticks(3, 3, 5) == pytest.approx([3])
    assert [text for _, text in drawing.count_axis(1, 3).ticks] == ["1", "2", "3"]
    assert [text for _, text in drawing.round_axis([]).ticks] == ["1"]
    assert [text for _, text in drawing.round_axis(list(range(1, 301))).ticks][:2] == ["50", "100"]


def a_plot() -> Plot:
    """From the left below (0, 0) to the right above (10, 100)."""
    return Plot("p", Axis(0, 10, []), Axis(0, 100, []))


def test_data_become_pixels() -> None:
    plot = a_plot()
    plot.line([0, 10], [0, 100], "s1")
    [path] = plot.paths
    assert path.d == f"M{LEFT:g} {HEIGHT - drawing.BOTTOM:g} {WIDTH - drawing.RIGHT:g} {TOP:g}"
    upside_down = Plot("p", Axis(0, 10, []), Axis(100, 0, []))
    assert upside_down.py(100) == HEIGHT - drawing.BOTTOM


def test_many_strokes_are_one_path_and_none_is_none() -> None:
    plot = a_plot()
    plot.strokes(([1, 2], [0, 0]), ([1, 2], [50, 0]), "s1", 2, 0.5)
    [path] = plot.paths
    assert path.d.count("M") == 2
    assert path.d.endswith("h0")  # both ends meet: a dot
    plot.strokes(([], []), ([], []), "s1", 2)
    plot.line([], [], "s1")
    assert len(plot.paths) == 1


def test_an_area_goes_along_one_line_and_back_along_the_other() -> None:
    plot = a_plot()
    plot.area([0, 10], [0, 0], [50, 100], "s2", 0.25)
    [path] = plot.paths
    assert (path.width, path.d[-1], len(path.d.split())) == (0, "z", 8)


def test_texts_stand_beside_their_point() -> None:
    plot = a_plot()
    plot.text(0, 0, "here", (3, -4))
    plot.rule(100, "all")
    here, above = plot.labels
    assert (here.x, here.y) == (LEFT + 3, HEIGHT - drawing.BOTTOM - 4)
    assert (above.y, above.anchor, plot.paths[0].dashed) == (TOP - 6, "end", True)
