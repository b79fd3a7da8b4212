"""Numbers as people read them: every boundary at which the wording changes."""

import pytest

from sedge_cloud.figures.numbers import duration, listed, percent, size


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (9994, "9.99 kB"), (9996, "10.0 kB"),
        (99_949, "99.9 kB"), (99_951, "100 kB"), (999_499, "999 kB"), (999_501, "1.00 MB"),
        (2_328_104, "2.33 MB"), (3.2e9, "3.20 GB"), (5e15, "5000 TB"),
    ],
)  # fmt: skip
def test_size(num_bytes: float, text: str) -> None:
    assert size(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-0.1, "0.0 s"), (4.24, "4.2 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1:00"),
        (75, "1:15"), (3599.7, "1:00:00"), (3700, "1:01:40"), (36_000, "10:00:00"),
        (172_799.4, "47:59:59"), (172_799.6, "2 d 0 h"), (200_000, "2 d 8 h"),
        (864_000, "10 d 0 h"),
    ],
)  # fmt: skip
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_percent_and_listed() -> None:
    assert (percent(0.93125), percent(1, 0), percent(0)) == ("93.1 %", "100 %", "0.0 %")
    found = [listed(["a", "b", "c"][:count]) for count in range(4)]
    assert found == ["", "a", "a and b", "a, b and c"]
