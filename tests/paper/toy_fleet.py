"""Five devices whose losses are quadratic, and a loop that does with them what any assignment says.

Device i's loss is F_i(w) = (w - c_i)' H_i (w - c_i) / 2, so an epoch is one exact gradient step and a slow
twin can be written with lists of numbers. Its BatchNorm statistics drift towards a value of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from tests.cloud.contexts import context_of, follow

from sedge_cloud.strategy import Assignment, ClientModel, State, Strategy, Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.arrays import Arrays
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import OwnModel

LAYOUT = Layout.of(
    [
        ("conv.weight", (2, 3), Role.PARAMETER),
        ("conv.bias", (2,), Role.PARAMETER),
        ("norm.weight", (2,), Role.PARAMETER),
        ("norm.bias", (2,), Role.PARAMETER),
        ("norm.running_mean", (2,), Role.STATISTIC),
        ("head.weight", (2, 2), Role.PARAMETER),
        ("head.bias", (2,), Role.PARAMETER),
    ]
)
N = LAYOUT.size
STATISTIC = [k for k in range(N) if LAYOUT.mask(LAYOUT.statistics)[k]]
SCORED = [k for k in range(N) if k not in STATISTIC]
DEVICES = 5
ROUNDS = 6
TRAINING = Training(local_epochs=3, learning_rate=0.1)

Vector = list[float]


@dataclass(frozen=True)
class Problem:
    """What the devices have: matrices (n, n), centres (n,), numbers of examples; and who is asked when."""

    matrices: NDArray[np.float64]
    centres: NDArray[np.float64]
    examples: list[int]
    cohorts: list[list[int]]
    first: Theta

    @classmethod
    def of(cls, seed: int) -> "Problem":
        """A problem by chance; statistics neither act on a loss nor have a gradient."""
        rng = np.random.default_rng(seed)
        roots = rng.normal(size=(DEVICES, N, N)) / 3
        matrices = roots @ roots.transpose(0, 2, 1)
        matrices[:, STATISTIC, :] = matrices[:, :, STATISTIC] = 0
        return cls(
            matrices,
            rng.normal(size=(DEVICES, N)),
            [int(m) for m in rng.integers(1, 50, DEVICES)],
            [sorted(int(i) for i in rng.permutation(DEVICES)[:3]) for _ in range(ROUNDS)],
            rng.normal(size=N).astype(np.float32),
        )

    @property
    def start(self) -> Vector:
        return [float(x) for x in self.first]

    def gradient(self, device: int, w: Sequence[float]) -> Vector:
        """The gradient of F_i at w, number by number."""
        away = [w[k] - float(self.centres[device, k]) for k in range(N)]
        rows = self.matrices[device].tolist()
        return [sum(h * a for h, a in zip(row, away, strict=True)) for row in rows]

    def of_everybody(self) -> "Problem":
        """The same devices, all alike, in every round, for long."""
        return replace(self, examples=[1] * DEVICES, cohorts=[list(range(DEVICES))] * 150)

    def slope(self, w: Vector) -> float:
        """The largest element of the gradient of the fleet's loss."""
        gradients = [self.gradient(i, w) for i in range(DEVICES)]
        return max(abs(sum(g[k] for g in gradients) / DEVICES) for k in SCORED)

    def drifted(self, device: int, w: Sequence[float]) -> Vector:
        """w with its statistics as an epoch leaves them."""
        after = list(w)
        for k in STATISTIC:
            after[k] = 0.9 * after[k] + 0.1 * float(self.centres[device, k])
        return after


def mean(problem: Problem, cohort: Sequence[int], models: Sequence[Vector], k: int) -> float:
    """sum_i m_i w_i / sum_i m_i of one element."""
    weights = [problem.examples[i] for i in cohort]
    return sum(m * w[k] for m, w in zip(weights, models, strict=True)) / sum(weights)


def descend(
    problem: Problem, device: int, w: Vector, epochs: int, trained: Sequence[int]
) -> Vector:
    """Gradient steps on the elements ``trained``; statistics drift."""
    for _ in range(epochs):
        g = problem.gradient(device, w)
        w = problem.drifted(
            device, [w[k] - TRAINING.learning_rate * g[k] * (k in trained) for k in range(N)]
        )
    return w


@dataclass
class Home:
    """What one device holds: its last model, and the own one that it trains beside it."""

    model: Theta | None = None
    own: NDArray[np.float64] | None = None
    mix: float | None = None
    known: ClientModel = field(default_factory=ClientModel)


def play(
    strategy: Strategy, problem: Problem, training: Training = TRAINING
) -> tuple[State, list[Home]]:
    """All rounds; the last state, and what the devices have in the end."""
    context = context_of(LAYOUT, problem.first, training=training, devices=DEVICES)
    state = strategy.init(context)
    homes = [Home() for _ in range(DEVICES)]
    for number, cohort in enumerate(problem.cohorts, start=1):
        updates: list[Update] = []
        for device in cohort:
            home = homes[device]
            plan = strategy.plan(context, home.known)
            update = perform(problem, device, home, plan, context.theta, training)
            remember(home, plan.arrays, update, number)
            updates.append(update)
        state = strategy.apply(context, updates)
        context = follow(context, state)
    return state, homes


def remember(home: Home, arrays: Arrays, update: Update, number: int) -> None:
    """What the cloud knows of a device after its update."""
    home.known = ClientModel(
        update.trained,
        number,
        arrays,
        update.device,
        update.delta,
        mix=home.mix,
        steps=update.steps,
    )


def perform(
    problem: Problem, device: int, home: Home, plan: Assignment, theta: Theta, run: Training
) -> Update:
    """A device's round, as an order tells it."""
    start = theta.copy()
    if plan.patch is not None:
        plan.patch.scatter_into(start)
    kept = LAYOUT.mask((*LAYOUT.statistics, *plan.work.keep))
    if home.model is not None:
        start[kept] = home.model[kept]
    w: Vector = [float(x) for x in start]
    phases, mine = [plan.work.training or run, *plan.work.then], plan.work.own_model
    if mine is not None and mine.mix < 1:
        w = _mixed(problem, device, home, mine, w)
        phases = []
    for phase in phases:
        w = _trained(problem, device, w, phase, start, plan.correction)
    if mine is not None and mine.mix == 1:
        first = [float(x) for x in (start if home.own is None else home.own)]
        home.own = np.array(_trained(problem, device, first, mine.training, start))
    home.model = np.array(w, np.float32)
    delta = home.model - start
    delta[kept] = 0
    sent = SparseVector(N, None, delta) if plan.work.upload else None
    steps = sum(phase.local_epochs for phase in phases)
    return Update(f"d{device}", problem.examples[device], theta, plan.patch, sent, steps=steps)


def _trained(
    problem: Problem,
    device: int,
    w: Vector,
    phase: Training,
    anchor: Mapping[int, float] | Theta,
    correction: Theta | None = None,
) -> Vector:
    frozen = LAYOUT.mask(phase.freeze)
    for _ in range(phase.local_epochs):
        g = problem.gradient(device, w)
        if correction is not None:
            g = [g[k] + float(correction[k]) for k in range(N)]
        step = [g[k] + phase.prox * (w[k] - float(anchor[k])) for k in range(N)]
        moved = [w[k] - phase.learning_rate * (0 if frozen[k] else step[k]) for k in range(N)]
        w = problem.drifted(device, [w[k] if k in STATISTIC else moved[k] for k in range(N)])
    return w


def _mixed(problem: Problem, device: int, home: Home, mine: OwnModel, w: Vector) -> Vector:
    """APFL's two models, step by step; the sent one is given back."""
    own = list(w) if home.own is None else [float(x) for x in home.own]
    rate, mix = mine.training.learning_rate, mine.mix
    for _ in range(mine.training.local_epochs):
        g_sent = problem.gradient(device, w)
        g_mixed = problem.gradient(device, [mix * own[k] + (1 - mix) * w[k] for k in range(N)])
        g_mix = sum((own[k] - w[k]) * g_mixed[k] for k in range(N))
        w = problem.drifted(device, [w[k] - rate * g_sent[k] for k in range(N)])
        own = [own[k] - rate * mix * g_mixed[k] for k in range(N)]
        if mine.adaptive:
            mix = min(1.0, max(0.0, mix - rate * g_mix))
    home.own, home.mix = np.array(own), mix
    return w
