"""MOON's loss (Li, He and Song 2021) as a guided loss of one's own: it needs two more models."""

import torch
from torch import Tensor

from sedge_edge.backends.guided import GuidedLoss, GuideInputs, Pass
from sedge_protocol.wire.objective import CONSTANTS, Guide


def moon(own: Tensor, now: Pass, y: Tensor, seen: GuideInputs) -> Tensor:
    """MOON's loss (B,): the bundle's own, plus mu times the model-contrastive loss; constants (mu, tau).

    With z the features, z_s and z_p those of start and previous: -log(e^(cos(z, z_s) / tau) / (e^(cos(z,
    z_s) / tau) + e^(cos(z, z_p) / tau))). Source: Li, He and Song 2021, Model-Contrastive Federated
    Learning, equations 3 and 4.
    """
    mu, tau = seen.arrays[CONSTANTS].unbind()
    nearer = _cosine(now.features, seen.models["start"].features)
    farther = _cosine(now.features, seen.models["previous"].features)
    similar = torch.stack((nearer, farther), 1) / tau
    return own - similar.log_softmax(1)[:, 0] * mu


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine (B,) between rows (B, d); 0 with a row of zeros, as a dead ReLU leaves it."""
    lengths = a.square().sum(1) * b.square().sum(1)
    return (a * b).sum(1) * lengths.clamp_min(1e-12).rsqrt()


MOON = GuidedLoss(Guide("moon", ("start", "previous"), 2), moon)
