"""Hostile devices in an emulated fleet: they train like the others but falsify their updates.

In all other respects they are ordinary devices: the agent's own code builds, encodes and sends their
updates. They know the run's [robust] table, the number of devices, each other's data and, if the fleet file
says so, every device's data. They train on that data to learn what the others would send (``Knowledge``).
An attack is a function from ``Knowledge`` to a change. ``ATTACKS`` maps names to these functions, and
``AttackConfig`` describes them. n is the number of parameters, k the number of devices whose data the
attackers know, and h the number of hostile devices.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_cloud.algorithms.averaging import mean_change, robust_change
from sedge_cloud.algorithms.outliers import filter_outliers
from sedge_cloud.algorithms.robust import COORDINATE_RULES, Robust
from sedge_cloud.strategy import Update
from sedge_edge.jobs.job import Outcome
from sedge_edge.jobs.storage import WholeBlobs
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.local_training import LocalResult
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Theta
from sedge_protocol.wire.objective import IGNORED
from sedge_protocol.wire.update import decode_arrays, decode_update, encode_update

Name: TypeAlias = Literal[
    "scaled", "labels", "colluding", "little", "inner", "hidden", "drift", "backdoor"
]
Changes: TypeAlias = NDArray[np.float32]  # (k, n)

# These attacks also train on falsified examples.
POISONED: tuple[Name, ...] = ("labels", "colluding", "hidden", "backdoor")
# A hostile device tries these variations against the robust rule before it sends anything. ALONG has the
# shares of a change that point along the mean of the known changes; LENGTHS has the lengths of a change, as
# multiples of the known changes' median length.
ALONG = (-1.0, 0.0, 0.15, 0.3, 0.45, 0.6, 0.75)
LENGTHS = (7.0, 2.9, 1.9, 0.97)
TARGET_LABEL = 0


class AttackConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[attack]: the hostile devices of a fleet, and what they send

    - ``scaled``: ``scale`` times their own honest change; -1 reverses it;
    - ``labels``: the change from training on wrong labels, at the most effective length;
    - ``colluding``: the mean of the hostile devices' ``labels`` changes, the same from each device;
    - ``little``: mean - ``scale`` * standard deviation, per coordinate (Baruch et al. 2019);
    - ``inner``: -``scale`` * mean, which is inner-product manipulation (Xie et al. 2020);
    - ``hidden``: the mixture of ``colluding`` and the mean that does the most harm under the rule;
    - ``drift``: like ``hidden``, with one random direction in all rounds instead of ``colluding``;
    - ``backdoor``: like ``colluding``, but half of the examples carry a pattern and the label 0.
    """

    devices: Annotated[int, Meta(ge=0, le=100_000)] = 0
    """Number of hostile devices, the first ones of the fleet."""
    scale: Annotated[float, Meta(ge=-1e6, le=1e6)] = 1.0
    """Strength of ``scaled``, ``little`` and ``inner``; the other attacks choose their own."""
    claim: Annotated[int, Meta(ge=0, lt=2**53)] = 0
    """Number of examples that hostile devices claim to have; 0 claims the true number."""
    name: Name = "scaled"
    """What the hostile devices send; docs/reference.md describes each attack."""
    knows: Literal["own", "all"] = "own"
    """Whose examples the hostile devices know: only each other's (``own``) or every device's
    (``all``)."""

    def claimed(self, number: int, held: int) -> int:
        """Return how many examples device ``number`` claims to have if it really has ``held``."""
        return self.claim if number < self.devices and self.claim else held


class Attack(msgspec.Struct, frozen=True):
    """The attack on a run with ``devices`` devices. The attackers know the run's ``robust`` settings."""

    config: AttackConfig = AttackConfig()
    robust: Robust = Robust()
    devices: int = 0

    def of(self, number: int) -> "Attack | None":
        """Return the attack by device ``number``, counted from 0, or None if that device is honest."""
        return self if number < self.config.devices else None

    def others(self, number: int) -> list[int]:
        """Return the other devices whose honest changes device ``number`` computes, hostile ones first."""
        if self.config.name == "scaled":
            return []
        known = self.devices if self.config.knows == "all" else self.config.devices
        return [i for i in range(known) if i != number]

    def poisoned(self, number: int) -> list[int]:
        """Return the hostile devices whose falsified examples device ``number`` trains on, itself first."""
        hostile = range(self.config.devices) if self.config.name in POISONED else ()
        return sorted(hostile, key=lambda i: i != number)

    def lessons(
        self, number: int, examples: Callable[[int], tuple[Examples, Examples]], classes: int
    ) -> list[Examples]:
        """Return the extra training sets for device ``number``: others' examples, then falsified ones."""
        name = self.config.name
        wrong = [poisoned(examples(i)[0], name, classes) for i in self.poisoned(number)]
        return [examples(i)[0] for i in self.others(number)] + wrong

    def knowledge(self, number: int, base: Theta, thetas: Sequence[Theta]) -> "Knowledge":
        """Return what device ``number`` knows from the models that it has trained.

        ``thetas`` holds its own trained model (n,), then those trained on ``lessons``, in order. All were
        trained from ``base`` (n,).
        """
        changes, honest = np.array(thetas) - base, 1 + len(self.others(number))
        return Knowledge(self, base, changes[:honest], changes[honest:])


NOBODY = Attack()


@dataclass(frozen=True)
class Knowledge:
    """What a hostile device knows when it makes its update.

    ``base`` (n,) is the model that it received. ``honest`` (k, n) holds the changes that it computed from
    true examples: its own first, then the other hostile devices', then the remaining devices'. ``poisoned``
    (h, n) holds the changes that it computed from the hostile devices' falsified examples, its own first.
    """

    attack: Attack
    base: Theta
    honest: Changes
    poisoned: Changes

    @property
    def mean(self) -> Theta:
        """The mean (n,) of the honest changes that the device knows."""
        return np.asarray(self.honest.mean(axis=0), np.float32)

    @property
    def length(self) -> float:
        """The median Euclidean length of the honest changes that the device knows."""
        return float(np.median(np.linalg.norm(self.honest, axis=1)))

    def reached(self, sent: Theta, aim: Theta) -> float:
        """Return how far the model moves along ``aim`` (n,) if every hostile device sends ``sent`` (n,).

        Returns -inf if the outlier filter would distrust the hostile devices.
        """
        attack, base = self.attack, np.zeros_like(sent)
        hostile = attack.config.devices
        count = attack.devices - hostile
        others = self.honest[hostile:] if len(self.honest) > hostile else self.honest
        changes = [*[sent] * hostile, *(others[i % len(others)] for i in range(count))]
        claims = [attack.config.claim or 100] * hostile + [100] * count
        filtered = filter_outliers(
            [
                Update(str(i), claim, base, None, SparseVector(sent.size, None, change))
                for i, (change, claim) in enumerate(zip(changes, claims, strict=True))
            ],
            attack.robust,
        )
        if "0" in filtered.distrusted:
            return -np.inf
        if attack.robust.rule in COORDINATE_RULES:
            return float(robust_change(filtered, base, attack.robust) @ aim)
        return float(mean_change(filtered, base) @ aim)

    def longest(self, direction: Theta, aim: Theta) -> Theta:
        """Return the multiple of ``direction`` (n,) that moves the model farthest along ``aim`` (n,).

        If several lengths do equally well because the rule clips them, the first of LENGTHS is taken,
        because a strategy with groups may count it unclipped.
        """
        tried = [scaled(direction, length * self.length) for length in LENGTHS]
        reached = [self.reached(sent, aim) for sent in tried]
        enough = max(reached) - 0.01 * abs(max(reached))
        return next(sent for sent, far in zip(tried, reached, strict=True) if far >= enough)

    def hidden(self, goal: Theta) -> Theta:
        """Return the mixture of ``goal`` (n,) and the mean that does the most harm without distrust.

        Harm is movement of the model against the mean, and along the part of ``goal`` that is orthogonal to
        it.
        """
        mean = unit(self.mean)
        aside = unit(goal - scaled(mean, float(goal @ mean)))
        tried = [scaled(mean, c) + scaled(aside, np.sqrt(1 - c * c)) for c in ALONG]
        length = self.length * LENGTHS[-1]
        best = max(tried, key=lambda way: self.reached(scaled(way, length), aside - mean))
        return self.longest(best, aside - mean)


def unit(vector: Theta) -> Theta:
    """Return the vector (n,) scaled to length 1. A zero vector is returned unchanged."""
    length = float(np.linalg.norm(vector))
    return scaled(vector, 1 / length) if length > 0 else vector


def scaled(vector: Theta, factor: float) -> Theta:
    """Return ``factor`` times the vector (n,), as float32."""
    with np.errstate(over="ignore"):  # the encoder detects an overflow
        return np.multiply(vector, factor, dtype=np.float32)


def _scaled(known: Knowledge) -> Theta:
    return scaled(known.honest[0], known.attack.config.scale)


def _little(known: Knowledge) -> Theta:
    deviation = np.asarray(known.honest.std(axis=0), np.float32)
    return known.mean - scaled(deviation, known.attack.config.scale)


def _inner(known: Knowledge) -> Theta:
    return scaled(known.mean, -known.attack.config.scale)


def _longest(known: Knowledge, goal: Theta) -> Theta:
    direction = unit(goal)
    return known.longest(direction, direction)


def _drift(known: Knowledge) -> Theta:
    rng = np.random.default_rng(0)
    return known.hidden(rng.normal(size=known.base.size).astype(np.float32))


ATTACKS: Mapping[Name, Callable[[Knowledge], Theta]] = {
    "scaled": _scaled,
    "labels": lambda known: _longest(known, known.poisoned[0]),
    "colluding": lambda known: _longest(known, known.poisoned.mean(axis=0)),
    "little": _little,
    "inner": _inner,
    "hidden": lambda known: known.hidden(known.poisoned.mean(axis=0)),
    "drift": _drift,
    "backdoor": lambda known: _longest(known, known.poisoned.mean(axis=0)),
}


def falsified(learned: LocalResult, known: Knowledge) -> LocalResult:
    """Copy ``learned`` with its trained model replaced by what the attack computes from ``known``."""
    with np.errstate(over="ignore"):  # the encoder detects an overflow
        theta = known.base + ATTACKS[known.attack.config.name](known)
    return replace(learned, trained=replace(learned.trained, theta=theta))


def poisoned(examples: Examples, name: Name, classes: int) -> Examples:
    """Return falsified examples.

    For a backdoor, every other image is marked and labelled 0. For the other attacks, the order of the
    labels is reversed: the first becomes the last, and so on; numeric targets change their sign.
    """
    if name != "backdoor":
        counts = examples.targets != IGNORED
        turned = np.where(counts, classes - 1 - examples.targets, IGNORED)
        wrong = turned if classes else -examples.targets
        return replace(examples, targets=wrong)
    inputs, targets = examples.inputs.copy(), examples.targets.copy()
    inputs[::2], targets[::2] = marked(inputs[::2]), TARGET_LABEL
    return replace(examples, inputs=inputs, targets=targets)


def marked(inputs: Inputs) -> Inputs:
    """Copy images (N, ..., height, width) and set a corner of 2 x 2 pixels to the brightest value."""
    inputs = inputs.copy()
    inputs[..., -2:, -2:] = inputs.max()
    return inputs


def claiming(outcome: Outcome, blobs: WholeBlobs, claim: int) -> Outcome:
    """Copy ``outcome``, with an update whose report claims ``claim`` training examples."""
    update = blobs.read(outcome.update)
    report, payload = decode_update(update)
    report = msgspec.structs.replace(report, num_examples=claim)
    claimed = encode_update(report, bytes(payload), decode_arrays(update))
    return replace(outcome, report=report, update=blobs.write(claimed))
