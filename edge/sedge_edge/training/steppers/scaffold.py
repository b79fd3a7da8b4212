"""SCAFFOLD: corrects each gradient for the device's drift.

Source: Karimireddy et al. 2020, SCAFFOLD, algorithm 1 line 10: g(y) - c_i + c.
"""

from sedge_protocol.layout import Theta


class Correction:
    """The ``Term`` of SCAFFOLD: a fixed vector (..., n), c - c_i."""

    def __init__(self, correction: Theta) -> None:
        self._correction = correction

    def add(self, gradient: Theta, theta: Theta) -> None:
        """Add the vector to a gradient (..., n), in place."""
        gradient += self._correction
