"""The built-in guided losses, and the loading of the user's own."""

from pathlib import Path

import msgspec
from torch import Tensor

from sedge_edge.backends.guided import GuidedLoss, GuideInputs, Pass
from sedge_edge.backends.rows import cross_entropy
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.user_code import imported
from sedge_protocol.wire.objective import CONSTANTS, COUNTS, Guide


def fedlc(own: Tensor, now: Pass, y: Tensor, seen: GuideInputs) -> Tensor:
    """FedLC's loss (B,): cross entropy of logits (B, C) minus tau n_c^(-1/4), with n_c examples of class c.

    Classes of which the device has no examples are left out of the sum. Source: Zhang et al. 2022,
    Federated Learning with Label Distribution Skew via Logits Calibration, equation 8.
    """
    margin = seen.arrays[COUNTS].clamp_min(1e-8) ** -0.25
    return cross_entropy(now.outputs - seen.arrays[CONSTANTS] * margin, y)


GUIDED_LOSSES = {"fedlc": GuidedLoss(Guide("fedlc", constants=1, counts=True), fedlc)}


def guided_loss(name: str, folder: Path, key: str) -> GuidedLoss | None:
    """Return the built-in guided loss ``name``, or the one that the user's "module:function" returns.

    Returns None if there is no name. Modules are also looked up in ``folder``. Raises a ``ConfigError``
    that names ``key`` if there is no such loss.
    """
    if not name or name in GUIDED_LOSSES:
        return GUIDED_LOSSES.get(name)
    expected = f"one of {', '.join(GUIDED_LOSSES)}, or module:function that returns a GuidedLoss"
    if ":" not in name:
        raise ConfigError(key, name, expected)
    try:
        found: object = imported(name, folder, key)()
    except (Exception, SystemExit) as exc:  # the user's code may raise anything
        raise ConfigError(key, name, f"{expected} ({type(exc).__name__}: {exc})") from exc
    if not isinstance(found, GuidedLoss):
        raise ConfigError(key, name, expected)
    return found._replace(guide=msgspec.structs.replace(found.guide, name=name))
