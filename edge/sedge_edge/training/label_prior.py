"""A device's class shares as a prior, which it can add to a model that has never seen its labels.

    bias_c  <-  bias_c + log((count_c + 1) / (N + C) * C)        c = 1 ... C classes of N labels

By Bayes' rule this turns a classifier of balanced classes into one that knows the device's shares. The
added 1 keeps a class without labels possible.
"""

import numpy as np

from sedge_edge.training.examples import Inputs
from sedge_protocol.layout import Theta
from sedge_protocol.wire.objective import IGNORED


def with_prior(theta: Theta, bias: slice, labels: Inputs) -> Theta:
    """A copy of theta (n,) whose ``bias`` (C,) includes the shares of these labels (N,) or (N, ...).

    The labels are below C, or ``IGNORED``.
    """
    classes = bias.stop - bias.start
    counts = np.bincount(labels[labels != IGNORED], minlength=classes)  # (C,)
    logits = np.log((counts + 1.0) * classes / (counts.sum() + classes))
    informed = theta.copy()
    informed[bias] += logits.astype(np.float32)
    return informed
