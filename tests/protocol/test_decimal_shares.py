"""Shares of counts: a share is a decimal."""

from sedge_protocol.decimal_shares import ceil_of, floor_of


def test_a_share_is_a_decimal() -> None:
    assert (floor_of(0.29, 100), ceil_of(0.29, 100)) == (29, 29)  # .29 * 100 is 28.999999999999996
    assert (floor_of(0.07, 100), ceil_of(0.07, 100)) == (7, 7)  # .07 * 100 is 7.000000000000001
    assert (floor_of(0.01, 582_026), ceil_of(0.01, 582_026)) == (5820, 5821)
    assert (floor_of(0.01, 99), ceil_of(0.01, 99), floor_of(1, 7), ceil_of(0, 7)) == (0, 1, 7, 0)
