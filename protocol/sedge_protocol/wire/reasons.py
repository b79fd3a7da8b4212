"""Reasons for people, such as HELLO's ``waits`` or DECLINE's ``detail``, compared by programs."""

import re

_NUMBER = re.compile(r"[0-9]+(?:[.,][0-9]+)*")


def without_numbers(reason: str) -> str:
    """The reason with "#" for each number.

    "temperature 71.3 °C, limit 70" is the same reason half a degree later.
    """
    return _NUMBER.sub("#", reason)
