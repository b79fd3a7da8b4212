"""FedProx pulls every step towards a model.

Ditto does the same to its own model, towards the round's start.

Sources: Li et al. 2020, Federated Optimization in Heterogeneous Networks, equation 2; Li et al. 2021,
Ditto, algorithm 1.
"""

from sedge_protocol.layout import Theta


class Prox:
    """The ``Term`` of FedProx: the gradient of mu / 2 |theta - anchor|^2. ``anchor`` is (..., n)."""

    def __init__(self, mu: float, anchor: Theta) -> None:
        self._mu, self._anchor = mu, anchor

    def add(self, gradient: Theta, theta: Theta) -> None:
        """Add the term at theta (..., n) to a gradient (..., n), in place."""
        pull = theta - self._anchor
        pull *= self._mu
        gradient += pull
