"""The guided losses that a bundle can have by name, and the user's own."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor

from sedge_edge.backends.guided import GuidedLoss, Pass, Seen
from sedge_edge.backends.rows import cross_entropy
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.user_code import imported
from sedge_protocol.wire.objective import CONSTANTS, COUNTS, Guide


def moon(own: Tensor, now: Pass, y: Tensor, seen: Seen) -> Tensor:
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


def fedlc(own: Tensor, now: Pass, y: Tensor, seen: Seen) -> Tensor:
    """FedLC's loss (B,): cross entropy of logits (B, C) less tau n_c^(-1/4), of n_c examples of a class.

    A class that the device does not have is out of the sum. Source: Zhang et al. 2022, Federated Learning
    with Label Distribution Skew via Logits Calibration, equation 8.
    """
    margin = seen.arrays[COUNTS].clamp_min(1e-8) ** -0.25
    return cross_entropy(now.outputs - seen.arrays[CONSTANTS] * margin, y)


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosine (B,) between rows (B, d); 0 with a row of zeros, as a dead ReLU leaves it."""
    lengths = a.square().sum(1) * b.square().sum(1)
    return (a * b).sum(1) * lengths.clamp_min(1e-12).rsqrt()


GUIDED_LOSSES = {
    loss.guide.name: loss
    for loss in (
        GuidedLoss(Guide("fedlc", constants=1, counts=True), fedlc),
        GuidedLoss(Guide("moon", ("start", "previous"), 2), moon),
    )
}


def guided_loss(name: str, folder: Path, key: str) -> GuidedLoss | None:
    """A built-in guided loss by name, or the result of the user's "module:function" in ``folder``.

    None for no name. Raises ``ConfigError``, which names ``key``.
    """
    if not name or name in GUIDED_LOSSES:
        return GUIDED_LOSSES.get(name)
    expected = f"one of {', '.join(GUIDED_LOSSES)}, or module:function that returns a GuidedLoss"
    if ":" not in name:
        raise ConfigError(key, name, expected)
    try:
        found: object = imported(name, folder, key)()
    except (Exception, SystemExit) as exc:  # whatever the user's own code raises
        raise ConfigError(key, name, f"{expected} ({type(exc).__name__}: {exc})") from exc
    if not isinstance(found, GuidedLoss):
        raise ConfigError(key, name, expected)
    return found._replace(guide=msgspec.structs.replace(found.guide, name=name))
