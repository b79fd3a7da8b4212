"""FedProx: every step is pulled towards a model. So is Ditto's own model, towards the round's start.

Sources: Li et al. 2020, Federated Optimization in Heterogeneous Networks, equation 2; Li et al. 2021,
Ditto, algorithm 1.
"""

from sedge_protocol.layout import Theta


class Prox:
    """A ``Term``: the gradient of mu / 2 |theta - anchor|^2, towards ``anchor`` (..., n)."""

    def __init__(self, mu: float, anchor: Theta) -> None:
        self._mu, self._anchor = mu, anchor

    def add(self, gradient: Theta, theta: Theta) -> None:
        """Add to a gradient (..., n) at theta (..., n), in place."""
        pull = theta - self._anchor
        pull *= self._mu
        gradient += pull
