"""Adds a device's class shares, as a prior, to a model that has never seen the device's labels.

    bias_c  <-  bias_c + log((count_c + 1) / (N + C) * C)        N labels, classes c = 1 ... C

By Bayes' rule this turns a classifier that assumes balanced classes into one that assumes the device's
shares. Because of the added 1, classes without labels remain possible.
"""

import numpy as np

from sedge_edge.training.examples import Inputs
from sedge_protocol.layout import Theta
from sedge_protocol.wire.objective import IGNORED


def with_prior(theta: Theta, bias: slice, labels: Inputs) -> Theta:
    """Return a copy of theta (n,) whose ``bias`` (C,) includes the class shares of these labels.

    The labels (N,) or (N, ...) are below C, or ``IGNORED``.
    """
    classes = bias.stop - bias.start
    counts = np.bincount(labels[labels != IGNORED], minlength=classes)  # (C,)
    logits = np.log((counts + 1.0) * classes / (counts.sum() + classes))
    informed = theta.copy()
    informed[bias] += logits.astype(np.float32)
    return informed
