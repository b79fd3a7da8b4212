"""When two reasons are the same."""

import pytest

from sedge_protocol.wire.reasons import without_numbers


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("temperature 71.3 °C, limit 70", "temperature 9 °C, limit 70", True),
        ("disk full: 1,234 bytes", "disk full: 99 bytes", True),
        ("load 1.25, limit 1", "load 1.25, limit 1; memory 9 MB, limit 100", False),
        ("", "0", False),
    ],
)
def test_numbers_make_no_other_reason(one: str, other: str, same: bool) -> None:
    assert (without_numbers(one) == without_numbers(other)) is same
