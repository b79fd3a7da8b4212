"""A second reader of training.md, rule by rule, in plain loops over lists of binary32."""

import math
import struct
from collections.abc import Iterator
from typing import Any

from tests.protocol.slow_decoder import decode_slowly

Case = dict[str, Any]
Vector = list[float]
M32, M64 = 2**32 - 1, 2**64 - 1


class Declined(Exception):
    """The order is answered with DECLINE and this reason."""


def binary32(value: float) -> float:
    """The nearest binary32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def floats(text: str) -> Vector:
    return list(struct.unpack(f"<{len(text) // 8}f", bytes.fromhex(text)))


# Shuffles and batches.


def word(key: int, i: int) -> int:
    """T6: a word of 64 bits."""
    z = key + (i + 1) * 0x9E3779B97F4A7C15 & M64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & M64
    z = (z ^ z >> 27) * 0x94D049BB133111EB & M64
    return z ^ z >> 31


def permutation(seed: int, epoch: int, count: int) -> list[int]:
    """T6: the rows of an epoch, in order."""
    key = word(word(seed, 0), epoch)
    u = [word(key, i // 2) >> 32 * (i % 2) & M32 for i in range(count)]
    return sorted(range(count), key=lambda i: (u[i], i))


def shuffled(case: Case) -> list[list[int]]:
    """T6: the epochs' permutations."""
    return [permutation(case["seed"], e, case["examples"]) for e in range(len(case["epochs"]))]


def further_seed(seed: int, k: int) -> int:
    """T6: the seed of the k-th further training."""
    return word(word(seed, 2), k) >> 1


def noise(seed: int, step: int, count: int) -> Vector:
    """T12: a step's random numbers."""
    key = word(word(seed, 1), step)
    return [(word(key, i // 4) >> 16 * (i % 4) & 0xFFFF) / 65536 for i in range(count)]


def batches(case: Case, epochs: int = 2) -> Iterator[list[Any]]:
    """T4: epoch, rows and weights of each batch."""
    count, size, last = case["examples"], case["batch_size"], case["last_batch"]
    if last == "pad" and case["uses_batch_statistics"]:
        last = "fill"
    if last == "drop" and count < size:
        last = "fill"
    for epoch in range(epochs):
        p = permutation(case["seed"], epoch, count)
        for start in range(0, count, size):
            rows = p[start : start + size]
            missing = size - len(rows)
            if not missing or last == "fill":
                around = [p[(start + i) % count] for i in range(len(rows), size)]
                yield [epoch, rows + around, [1.0] * size]
            elif last == "pad":
                yield [epoch, rows + [0] * missing, [1.0] * len(rows) + [0.0] * missing]


# What is sent, and what is owed.


def rates(case: Case) -> Vector:
    """X18, before it is rounded."""
    found: Vector = []
    for t in range(case["steps"]):
        rate = case["learning_rate"] * (1 + (case["end_factor"] - 1) * t / case["steps"])
        if t < case["warmup_steps"]:
            rate *= (t + 1) / case["warmup_steps"]
        found.append(rate)
    return found


def chosen(delta: Vector, codec: Case) -> dict[int, float]:
    """T10: the elements to send and their values."""
    size = len(delta)
    k = max(1, round(codec["fraction"] * size))
    largest = sorted(range(size), key=lambda i: (-abs(delta[i]), i))[:k]
    kept = sorted(i for i in largest if abs(delta[i]) >= binary32(codec["threshold"]))
    rounds = codec["values"] == "bf16" and codec["fraction"] < 1 and not codec["threshold"]
    if not rounds or not codec.get("error_feedback", True):
        return {i: delta[i] for i in kept}
    values = multiples([delta[i] for i in kept], max(1, 3 * k // 4))
    return {i: value for i, value in zip(kept, values, strict=True) if value}


def multiples(values: Vector, r: int) -> Vector:
    """T10: the multiples of g."""
    least = sorted(map(abs, values))[len(values) - r]
    g = max(m * 2.0**e for m in (4, 5, 6, 7) for e in range(-60, 9) if m * 2.0**e <= 2 * least)
    return [math.copysign(math.floor(abs(v) / g + 0.5) * g, v) for v in values]


def sent(delta: Vector, codec: Case, payload: str) -> dict[int, float]:
    """What the receiver decodes, which must be what T10 chooses; a coding may round it."""
    positions, coded = decode_slowly(bytes.fromhex(payload), len(delta))
    wanted = chosen(delta, codec)
    assert positions == list(wanted)
    values = [float(struct.unpack("<f", value)[0]) for value in coded]
    if codec["values"] == "fp32" or (codec["values"] == "bf16" and codec["fraction"] < 1):
        assert values == list(wanted.values())
    return dict(zip(positions, values, strict=True))


def after_sending(delta: Vector, got: dict[int, float]) -> Vector:
    """T11: what is owed."""
    return [binary32(value - got.get(i, 0.0)) for i, value in enumerate(delta)]


def owed_after(case: Case) -> list[Vector]:
    """T9 to T11: what is owed after each round of a case."""
    owed, found = [0.0] * case["size"], list[Vector]()
    for played in case["rounds"]:
        pairs = zip(floats(played["change"]), owed, strict=True)
        delta = [binary32(change + debt) for change, debt in pairs]
        owed = after_sending(delta, sent(delta, case, played["coded"]))
        found.append(owed)
    return found


# Whole rounds of the line, T13.

TENSORS = {"slope": (0, 1, 2), "offset": (3,), "seen": (4,)}
Row = tuple[Vector, float, float]  # x, y, w


def examples(given: Case) -> list[tuple[Vector, float]]:
    x, y = floats(given["x"]), floats(given["y"])
    return [(x[3 * i : 3 * i + 3], y[i]) for i in range(len(y))]


def error_of(theta: Vector, x: Vector, y: float) -> float:
    total = binary32(x[0] * theta[0])
    for j in (1, 2):
        total = binary32(total + binary32(x[j] * theta[j]))
    return binary32(binary32(total + theta[3]) - y)


def gradient(theta: Vector, rows: list[Row]) -> tuple[Vector, float, float]:
    """T13: gradient, loss and the statistic after it."""
    sums, loss, seen, total = [0.0] * 5, 0.0, 0.0, 0.0
    for x, y, w in rows:
        e = error_of(theta, x, y)
        total = binary32(total + w)
        loss = binary32(loss + binary32(w * binary32(e * e)))
        seen = binary32(seen + binary32(w * x[0]))
        for j, factor in enumerate((*x, 1.0)):
            part = binary32(w * binary32(binary32(2 * e) * factor))
            sums[j] = binary32(sums[j] + part)
    mean = [binary32(value / total) for value in sums]
    moved = binary32(binary32(0.5 * theta[4]) + binary32(0.5 * binary32(seen / total)))
    return mean, binary32(loss / total), moved


def evaluated(theta: Vector, rows: list[tuple[Vector, float]], size: int) -> list[float]:
    """T7: mean loss, mean metric, and how many examples."""
    loss_sum = metric_sum = weight_sum = 0.0
    for start in range(0, len(rows), size):
        loss = metric = 0.0
        for x, y in rows[start : start + size]:
            e = error_of(theta, x, y)
            loss, metric = binary32(loss + binary32(e * e)), binary32(metric + abs(e))
        loss_sum, metric_sum = loss_sum + loss, metric_sum + metric
        weight_sum += len(rows[start : start + size])
    return [*finite([loss_sum / weight_sum, metric_sum / weight_sum]), len(rows)]


def finite(values: Vector) -> Vector:
    """T8."""
    if not all(map(math.isfinite, values)):
        raise Declined("TrainingDiverged")
    return values


def trained(case: Case, order: Case, start: Vector) -> tuple[Vector, float, int]:
    """T5: the trained vector, train_loss and steps."""
    training, rows = order["training"], examples(case["train"])
    rate, momentum, prox = (
        binary32(training.get(key, default))
        for key, default in (("learning_rate", 0.01), ("momentum", 0.0), ("prox", 0.0))
    )
    epochs = training.get("local_epochs", 1)
    cut = {**case, "examples": len(rows), "seed": order["seed"],
           "last_batch": training.get("last_batch", "pad")}  # fmt: skip
    theta, velocity, losses, steps = [*start], [0.0] * 5, list[tuple[int, float, float]](), 0
    for epoch, places, weights in batches(cut, epochs):
        batch = [(*rows[place], w) for place, w in zip(places, weights, strict=True)]
        g, loss, seen = gradient(theta, batch)
        steps += 1
        losses.append((epoch, finite([loss])[0], sum(weights)))
        for i in range(4):
            if prox:
                g[i] = binary32(g[i] + binary32(prox * binary32(theta[i] - start[i])))
            velocity[i] = binary32(binary32(momentum * velocity[i]) + g[i])
            theta[i] = binary32(theta[i] - binary32(rate * velocity[i]))
        theta[4] = seen
    finite(theta)
    last = [(loss, weight) for epoch, loss, weight in losses if epoch == epochs - 1]
    mean = sum(loss * weight for loss, weight in last) / sum(weight for _, weight in last)
    return theta, mean, steps


def done(case: Case, order: Case, kept: Case) -> Case:
    """T1 to T3 and T9: an order's report and what it leaves in ``kept``."""
    rows, tests, size = examples(case["train"]), examples(case["test"]), case["batch_size"]
    if not rows or not tests:
        raise Declined("DataError")
    if not set(order["keep"]) <= TENSORS.keys():
        raise Declined("CodecError")
    if kept.get("bundle") != order["bundle"]:
        kept = kept if order["task"] == "train" else {}
        kept.clear()
    start = floats(order["model"])
    if order["patch"]:
        positions, values = decode_slowly(bytes.fromhex(order["patch"]), 5)
        for p, value in zip(positions, values, strict=True):
            start[p] = struct.unpack("<f", value)[0]
    stays = [i for name in order["keep"] for i in TENSORS[name]]
    for i in stays:
        start[i] = kept["model"][i] if "model" in kept else start[i]
    before = evaluated(start, tests, size)
    theta, loss, steps = trained(case, order, start)
    report = {
        "before": before, "after": evaluated(theta, tests, size), "train_loss": loss, "steps": steps,
        "num_examples": len(rows),
    }  # fmt: skip
    if order["task"] == "evaluate":
        return report
    kept |= {"bundle": order["bundle"], "model": theta}
    if order["upload"]:
        kept["owed"] = update(order, start, theta, stays, kept.get("owed", [0.0] * 5))
    return report


def update(order: Case, start: Vector, theta: Vector, stays: list[int], owed: Vector) -> Vector:
    """T3 and T9 to T11: what is owed once the payload is sent."""
    delta = [binary32(b - a) for a, b in zip(start, theta, strict=True)]
    feeds = order["codec"]["error_feedback"]
    if feeds:
        delta = [binary32(value + debt) for value, debt in zip(delta, owed, strict=True)]
    for i in stays:
        delta[i] = 0.0
    got = sent(delta, order["codec"], order["payload"])
    return after_sending(delta, got) if feeds else [0.0] * 5


def played(case: Case) -> Iterator[Case]:
    """Each order of a case: its report and what is owed afterwards, or why it is declined."""
    kept: Case = {}
    for order in case["orders"]:
        try:
            report = done(case, order, kept)
        except Declined as exc:
            yield {"declined": str(exc)}
            continue
        yield {**report, "owed": kept.get("owed", [0.0] * 5)}
