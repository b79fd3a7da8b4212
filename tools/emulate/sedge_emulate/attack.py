"""Hostile devices of an emulated fleet: they train like all others and falsify their updates.

Otherwise they are devices like any other: the agent's own code makes, codes and sends their updates.
"""

from dataclasses import replace
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from sedge_edge.rounds.storage import WholeBlobs
from sedge_edge.training.job import Outcome
from sedge_edge.training.local_training import LocalResult
from sedge_protocol.layout import Theta
from sedge_protocol.wire.update import decode_update, encode_update


class AttackConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[attack]: the first ``devices`` of the fleet are hostile.

    They send ``scale`` times their change (-1 reverses it) and claim to hold ``claim`` examples, also in
    their HELLO; 0 states the true number.
    """

    devices: Annotated[int, Meta(ge=0, le=100_000)] = 0
    scale: Annotated[float, Meta(ge=-1e6, le=1e6)] = 1.0
    claim: Annotated[int, Meta(ge=0, lt=2**53)] = 0

    def of(self, number: int) -> "AttackConfig | None":
        """The attack of the ``number``-th device, counted from 0; None for an honest one."""
        return self if number < self.devices else None

    def claimed(self, number: int, held: int) -> int:
        """How many examples a device that has ``held`` of them claims."""
        return self.claim if number < self.devices and self.claim else held


NOBODY = AttackConfig()


def turned(learned: LocalResult, base: Theta, scale: float) -> LocalResult:
    """What a device learned, with its change from base (n,) multiplied by ``scale``."""
    with np.errstate(over="ignore"):  # found when it is coded
        theta = base + np.float32(scale) * (learned.trained.theta - base)
    return replace(learned, trained=replace(learned.trained, theta=theta))


def claiming(outcome: Outcome, blobs: WholeBlobs, claim: int) -> Outcome:
    """The same outcome, its update with another number of examples."""
    report, payload = decode_update(blobs.read(outcome.update))
    report = msgspec.structs.replace(report, num_examples=claim)
    return replace(
        outcome, report=report, update=blobs.write(encode_update(report, bytes(payload)))
    )
