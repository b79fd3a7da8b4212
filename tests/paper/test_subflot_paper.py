"""SubFLOT against a slow twin that reads like the method: layer by layer, neuron by neuron.

The twin is loops over float64. Its transport problems are solved by cancelling negative cycles (emd), by
trying every pairing (assign), and by the textbook's alternation (sinkhorn).
"""

from itertools import permutations
from math import ceil, exp, sqrt

import numpy as np
import pytest
from tests.cloud.contexts import follow
from tests.cloud.forms import context_of

from sedge_cloud.strategies.subflot import SubFLOT
from sedge_cloud.strategy import ClientModel, Update
from sedge_protocol.axes import Axes
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.training import Training

F, P = -1, 2  # a fixed dimension; positions behind the flattened image
WIDTHS = (4, 6, 5)
AXES = Axes(WIDTHS, ((0, F, F), (0,), (1, 0, F), (1,), (2, 1), (2,), (F, 2), (F,)))
LAYOUT = Layout.of(
    [
        ("conv1.weight", (4, 2, 3), Role.PARAMETER),
        ("conv1.bias", (4,), Role.PARAMETER),
        ("conv2.weight", (6, 4, 3), Role.PARAMETER),
        ("conv2.bias", (6,), Role.PARAMETER),
        ("fc.weight", (5, 6 * P), Role.PARAMETER),
        ("fc.bias", (5,), Role.PARAMETER),
        ("classifier.weight", (3, 5), Role.PARAMETER),
        ("classifier.bias", (3,), Role.PARAMETER),
    ]
)
DROPPED = (0.0, 0.25, 0.5, 0.75)

Matrix = list[list[float]]
# A layer: weight[out][in][position], bias[out].
Layer = tuple[list[Matrix], list[float]]


# The twin -----------------------------------------------------------------------------------------


def channels(dropped: float) -> list[int]:
    return [ceil((1 - dropped) * width) for width in WIDTHS]


def layers(theta: Theta, dropped: float) -> list[Layer]:
    """A flat model that lacks this share, as the twin's layers."""
    c, d, e = channels(dropped)
    values = iter(float(x) for x in theta)
    found: list[Layer] = []
    for out, into, positions in ((c, 2, 3), (d, c, 3), (e, d, P), (3, e, 1)):
        weight = [
            [[next(values) for _ in range(positions)] for _ in range(into)] for _ in range(out)
        ]
        found.append((weight, [next(values) for _ in range(out)]))
    return found


def flat(model: list[Layer]) -> list[float]:
    """The other way round."""
    found: list[float] = []
    for weight, bias in model:
        found += [x for row in weight for taken in row for x in taken] + bias
    return found


def twin_emd(cost: Matrix) -> Matrix:
    """argmin <C, T>: any plan of whole units, improved along negative cycles while there are some."""
    sources, targets = len(cost), len(cost[0])
    units = [[0] * targets for _ in range(sources)]
    supply, demand = [targets] * sources, [sources] * targets
    j = k = 0
    while j < sources and k < targets:  # the north-west corner rule
        moved = min(supply[j], demand[k])
        units[j][k] += moved
        supply[j] -= moved
        demand[k] -= moved
        j, k = (j + 1, k) if supply[j] == 0 else (j, k + 1)
    while (cycle := twin_cycle(cost, units)) is not None:
        back = [(k, j) for j, k in zip(cycle, [*cycle[1:], cycle[0]], strict=True) if j >= sources]
        amount = min(units[j][k - sources] if j < sources else units[k][j - sources] for j, k in
                     [(j, k) if j < sources else (k, j) for k, j in back])  # fmt: skip
        for j, k in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
            if j < sources:
                units[j][k - sources] += amount
            else:
                units[k][j - sources] -= amount
    return [[moved / (sources * targets) for moved in row] for row in units]


def twin_cycle(cost: Matrix, units: list[list[int]]) -> list[int] | None:
    """Nodes of a cycle of negative cost in the residual graph: sources, then targets (Bellman, Ford)."""
    sources, targets = len(cost), len(cost[0])
    nodes = sources + targets
    edges: list[tuple[int, int, float]] = []
    for j in range(sources):
        for k in range(targets):
            edges.append((j, sources + k, cost[j][k]))
            if units[j][k] > 0:
                edges.append((sources + k, j, -cost[j][k]))
    distance, before, last = [0.0] * nodes, [-1] * nodes, -1
    for _ in range(nodes):
        last = -1
        for a, b, price in edges:
            if distance[a] + price < distance[b] - 1e-12:
                distance[b], before[b], last = distance[a] + price, a, b
    if last < 0:
        return None
    for _ in range(nodes):
        last = before[last]
    cycle = [last]
    while before[cycle[-1]] != last:
        cycle.append(before[cycle[-1]])
    return cycle[::-1]


def twin_assign(cost: Matrix) -> Matrix:
    """The cheapest of all pairings of the fewer with some of the many."""
    sources, targets = len(cost), len(cost[0])
    few, many = min(sources, targets), max(sources, targets)

    def total(chosen: tuple[int, ...]) -> float:
        return sum(cost[i][c] if sources <= targets else cost[c][i] for i, c in enumerate(chosen))

    best = min(permutations(range(many), few), key=total)
    plan = [[0.0] * targets for _ in range(sources)]
    for i, c in enumerate(best):
        j, k = (i, c) if sources <= targets else (c, i)
        plan[j][k] = 1 / few
    return plan


def twin_sinkhorn(cost: Matrix, reg: float) -> Matrix:
    """u = mu / K v, v = nu / K^T u, with K = exp(-C / (reg max C))."""
    sources, targets = len(cost), len(cost[0])
    highest = max(map(max, cost))
    kernel = [[exp(-c / (reg * highest)) for c in row] for row in cost]
    u, v = [1.0] * sources, [1.0] * targets
    for _ in range(600):
        u = [1 / sources / sum(kernel[j][k] * v[k] for k in range(targets)) for j in range(sources)]
        v = [1 / targets / sum(kernel[j][k] * u[j] for j in range(sources)) for k in range(targets)]
    return [[u[j] * kernel[j][k] * v[k] for k in range(targets)] for j in range(sources)]


def twin_plan(cost: Matrix, options: SubFLOT) -> Matrix:
    if options.solver == "emd":
        return twin_emd(cost)
    return twin_assign(cost) if options.solver == "assign" else twin_sinkhorn(cost, options.reg)


def twin_distance(
    w: list[Matrix], b: list[float], j: int, v: list[Matrix], a: list[float], k: int
) -> float:
    """|| [W_j | b_j] - [V_k | a_k] ||"""
    total = (b[j] - a[k]) ** 2
    for x, y in zip(w[j], v[k], strict=True):
        total += sum((p - q) ** 2 for p, q in zip(x, y, strict=True))
    return sqrt(total)


def twin_transport(
    source: list[Layer], target: list[Layer], options: SubFLOT
) -> tuple[list[Layer], list[list[bool]]]:
    """The progressive layer-wise transport, and which of each layer's neurons some source became."""
    made: list[Layer] = []
    reached: list[list[bool]] = []
    previous: Matrix | None = None
    for number, ((weight, bias), (other, other_bias)) in enumerate(
        zip(source, target, strict=True)
    ):
        # W^ = W T^(l-1): the inputs of this layer are the neurons that the last plan made.
        if previous is not None:
            taken = twin_taken(previous, options)
            weight = [
                [
                    [
                        sum(row[j][p] * taken[j][k] for j in range(len(row)))
                        for p in range(len(row[0]))
                    ]
                    for k in range(len(taken[0]))
                ]
                for row in weight
            ]
        if number == len(source) - 1:  # classes stay where they are
            made.append((weight, bias))
            return made, reached
        cost = [
            [twin_distance(weight, bias, j, other, other_bias, k) for k in range(len(other))]
            for j in range(len(weight))
        ]
        plan = twin_plan(cost, options)
        # W_al = (T diag(1 / nu))^T W^
        merged: list[Matrix] = []
        merged_bias: list[float] = []
        for k in range(len(other)):
            column = sum(row[k] for row in plan)
            share = [row[k] / column if column else 0.0 for row in plan]
            merged.append(
                [
                    [
                        sum(share[j] * weight[j][i][p] for j in range(len(weight)))
                        for p in range(len(weight[0][0]))
                    ]
                    for i in range(len(weight[0]))
                ]
            )
            merged_bias.append(sum(share[j] * bias[j] for j in range(len(bias))))
        made.append((merged, merged_bias))
        reached.append([sum(row[k] for row in plan) > 0 for k in range(len(other))])
        previous = plan
    return made, reached


def twin_taken(plan: Matrix, options: SubFLOT) -> Matrix:
    """How a source's outgoing weights go to targets: shared out by rows, or by columns as printed."""
    columns = [sum(row[k] for row in plan) for k in range(len(plan[0]))]
    found: Matrix = []
    for row in plan:
        whole = sum(row)
        if options.normalisation == "mass":
            found.append([x / whole if whole else 0.0 for x in row])
        else:
            found.append([x / c if c else 0.0 for x, c in zip(row, columns, strict=True)])
    return found


def twin_mask(reached: list[list[bool]]) -> list[float]:
    """1 for every element whose neurons, on both sides, some source became."""
    found: list[float] = []
    before, positions = [True] * 2, (3, 3, P, 1)
    for out, count in zip([*reached, [True] * 3], positions, strict=True):
        for made in out:
            found += [float(made and taken) for taken in before for _ in range(count)]
        found += [float(made) for made in out]
        before = out
    return found


# The strategy against it --------------------------------------------------------------------------

OPTIONS = [
    SubFLOT(dropped=DROPPED),
    SubFLOT(dropped=DROPPED, normalisation="literal"),
    SubFLOT(dropped=DROPPED, solver="assign", mix=0.7),
    SubFLOT(dropped=DROPPED, solver="assign", normalisation="literal", weighting="width"),
    SubFLOT(dropped=DROPPED, solver="sinkhorn", reg=0.15, weighting="uniform"),
    SubFLOT(dropped=DROPPED, solver="sinkhorn", reg=0.3, normalisation="literal", pull=0.2),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("options", OPTIONS, ids=lambda o: f"{o.solver}-{o.normalisation}")
def test_plays_two_rounds_like_the_method(options: SubFLOT, seed: int) -> None:
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=LAYOUT.size).astype(np.float32)
    context = context_of(LAYOUT, AXES, theta, DROPPED[1:])
    clients = {f"d{number}": ClientModel(device=f"d{number}") for number in range(4)}
    for _ in range(2):
        updates: list[Update] = []
        for number, (device, client) in enumerate(clients.items()):
            dropped = DROPPED[number]
            plan = options.plan(context, client)
            start = context.theta if plan.start is None else plan.start
            if client.trained is not None:
                own = [float(x) for x in client.trained]
                whole, past = layers(context.theta, 0.0), layers(client.trained, dropped)
                aligned = flat(twin_transport(whole, past, options)[0])
                expected = [
                    options.mix * x + (1 - options.mix) * y
                    for x, y in zip(aligned, own, strict=True)
                ]
                np.testing.assert_allclose(start, expected, atol=2e-5)
            pull = (plan.work.training or Training()).prox
            kept = (1 - Training().learning_rate * pull) ** client.steps
            assert kept == pytest.approx((1 - options.pull) ** (dropped if client.steps else 0))
            trained = start + rng.normal(0, 0.5, start.size).astype(np.float32)
            updates.append(Update(device, 5 + number, trained, width=plan.width))
            clients[device] = ClientModel(
                trained, 1, plan.arrays, device, width=plan.width, steps=10 + number
            )
        after = options.apply(context, updates)
        expected = twin_aggregate(context.theta, updates, options)
        np.testing.assert_allclose(after.theta, expected, atol=2e-5)
        context = follow(context, after)


def twin_aggregate(theta: Theta, updates: list[Update], options: SubFLOT) -> list[float]:
    """W_G = sum p_i T_i(W_i), p_i over those who have the element."""
    total, weights = [0.0] * LAYOUT.size, [0.0] * LAYOUT.size
    for update in updates:
        dropped = DROPPED[update.width]
        model, reached = twin_transport(
            layers(update.trained, dropped), layers(theta, 0.0), options
        )
        weight = 1.0 if options.weighting == "uniform" else float(update.num_examples)
        if options.weighting == "width":
            weight *= 1 - dropped
        for i, (value, has) in enumerate(zip(flat(model), twin_mask(reached), strict=True)):
            total[i] += weight * has * value
            weights[i] += weight * has
    return [total[i] / weights[i] if weights[i] else float(theta[i]) for i in range(LAYOUT.size)]


# The formulas' own invariants ---------------------------------------------------------------------


def test_merging_loses_function_under_the_literal_rule_only() -> None:
    # A layer of two equal neurons into one, and the layer behind it: the sum of what they send counts.
    layout = Layout.of([("a.weight", (2, 1), Role.PARAMETER), ("b.weight", (1, 2), Role.PARAMETER)])
    axes = Axes((2,), ((0, F), (F, 0)))
    context = context_of(layout, axes, np.array([3, 3, 1, 4], np.float32), (0.5,))
    client = ClientModel(np.array([3, 5], np.float32), 1, device="d0", width=1)
    mass = SubFLOT(dropped=(0.5,), mix=1.0).plan(context, client).start
    printed = SubFLOT(dropped=(0.5,), mix=1.0, normalisation="literal").plan(context, client).start
    assert mass is not None
    assert printed is not None
    assert mass.tolist() == [3, 5]
    assert printed.tolist() == [3, 2.5]
