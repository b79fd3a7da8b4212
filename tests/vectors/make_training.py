"""What spec.json has of training: shuffles, batches, rates, random numbers, elements to send."""

from typing import Any

import numpy as np
from tests.vectors.make_rounds import Events, hexed

from sedge_edge.training.batches import batches, permutations
from sedge_edge.training.local_training import phase_seed
from sedge_edge.training.noise import noise
from sedge_edge.training.selection import select_elements, subtract_sent
from sedge_protocol.codec import Compression, ValueCoding, encode
from sedge_protocol.wire.training import LastBatch, Training
from sedge_protocol.wire.work import Codec

Event = dict[str, Any]


def shuffles() -> Events:
    return [
        {
            "seed": seed,
            "examples": count,
            "epochs": [p.tolist() for p in permutations(seed, count, 3)],
        }
        for seed, count in (
            (0, 1),
            (0, 5),
            (1, 10),
            (2**53 + 1, 7),
            (2**63 - 1, 40),
            (20457030, 300),
        )
    ]


def batch_cases() -> Events:
    cases: list[tuple[int, int, LastBatch, bool]] = [
        (8, 4, "pad", True), (7, 4, "pad", True), (7, 4, "pad", False), (7, 4, "fill", True),
        (7, 4, "drop", True), (3, 4, "drop", True), (2, 5, "fill", True), (1, 3, "pad", True),
    ]  # fmt: skip
    found: Events = []
    for count, size, last, safe in cases:
        made = batches(count, size, 2, last, 5, safe)
        rows = [[b.epoch, b.indices.tolist(), b.weights.tolist()] for b in made]
        found.append({
            "seed": 5, "examples": count, "batch_size": size, "last_batch": last,
            "uses_batch_statistics": not safe, "batches": rows,
        })  # fmt: skip
    return found


def rates() -> Events:
    return [
        {
            "learning_rate": 0.1, "warmup_steps": warmup, "end_factor": end, "steps": steps,
            "rates": [Training(learning_rate=0.1, warmup_steps=warmup, end_factor=end).rate(t, steps)
                      for t in range(steps)],
        }
        for warmup, end, steps in ((0, 1.0, 2), (4, 1.0, 6), (0, 0.0, 5), (3, 0.1, 7), (9, 2.0, 4))
    ]  # fmt: skip


# With g = 4 five of the six largest are midway between two multiples.
TIES = [6, -6, 2, -2, 2, 1, *[0.5] * 6]
BELOW = float(np.nextafter(np.float32(0.02), np.float32(0)))
# Codings, fractions and thresholds with changes of a few elements: what is at a bound.
BOUNDS: list[tuple[str, float, float, list[list[float]]]] = [
    ("fp32", 0.625, 0, [[1, 2, -3, -2]]),  # k = 2.5, to even
    ("fp32", 0.375, 0, [[1, 2, -3, -2]]),  # k = 1.5, to even
    ("fp32", 0.3749999999, 0, [[1, 2, -3, -2]]),  # 1.5 in binary32
    ("fp32", 0.75, 0, [[0, 5, -0.0, 0], [0, 0, 0, 0]]),
    # 0.02 is larger than the binary32; then nothing is sent, then what is owed.
    ("fp32", 1, 0.02, [[0.02, BELOW, -0.5, 0], [0, 0, 0.001, 0], [0, 0.001, 0, 0]]),
    ("bf16", 0.5, 0.5, [[6, 5, 0.25, -0.375]]),  # with a threshold not rounded to multiples
    (
        "bf16",
        0.75,
        0,
        [[16, -12, 8, 5, 3.25, 0, 0, 0]],
    ),  # r from k, not from the five that are not 0
    ("bf16", 0.75, 0, [[17, -12, 8, 0, 0, 0, 0, 0]]),  # a is 0
    ("bf16", 0.5, 0, [[3e-31, 0], [3e30, 0]]),  # a is too small, a is too large
    (
        "fp16",
        1,
        0,
        [[1 + 2**-11, -1 - 3 * 2**-11, 2**-25, 3 * 2**-25]],
    ),  # from here on ties, to even
    ("bf16", 1, 0, [[1 + 2**-8, -1 - 3 * 2**-8]]),
    ("int8", 1, 0, [[127, 0.5, -1.5, 2.5]]),
]


def feedback() -> Events:
    rng = np.random.default_rng(1)
    cases: list[tuple[str, float, float, list[list[float]]]] = []
    for values, fraction, threshold in (
        ("fp32", 0.25, 0.0), ("bf16", 1.0, 0.0), ("int8", 0.5, 0.0), ("fp16", 0.5, 0.02),
        ("fp32", 1.0, 0.0), ("fp32", 0.01, 0.0), ("bf16", 0.5, 0.0), ("bf16", 0.01, 0.0),
    ):  # fmt: skip
        changes = np.round(rng.normal(0, 0.05, (3, 12)), 3)
        changes[:, 3] = changes[:, 7]  # of equal magnitudes the lowest index first
        cases.append((values, fraction, threshold, changes.tolist()))
    cases.append(("bf16", 0.5, 0.0, [TIES] * 3))
    return [_fed_back(*case) for case in cases + BOUNDS]


def _fed_back(values: str, fraction: float, threshold: float, changes: list[list[float]]) -> Event:
    """What is sent and owed, round after round."""
    coding = ValueCoding(values)
    codec = Codec(coding, fraction, threshold, Compression.NONE)
    owed, played = np.zeros(len(changes[0]), np.float32), Events()
    for one in changes:
        change = np.array(one, np.float32)
        delta = change + owed
        chosen = select_elements(delta, codec)
        coded = encode(chosen, coding, Compression.NONE)
        subtract_sent(delta, chosen, coding)
        owed = delta
        played.append({"change": hexed(change), "coded": coded.hex(), "owed": hexed(owed)})
    return {
        "values": values, "fraction": fraction, "threshold": threshold, "size": owed.size,
        "rounds": played,
    }  # fmt: skip


def noises() -> Events:
    """T12: the random numbers of a step."""
    return [
        {"seed": seed, "step": step, "numbers": noise(seed, step, count).tolist()}
        for seed, step, count in (
            (0, 0, 4),
            (5, 0, 9),
            (5, 1, 9),
            (2**53 + 1, 70, 6),
            (7, 2**20, 1),
        )
    ]


def further_seeds() -> Events:
    """T6: the seeds of an order's further trainings."""
    return [
        {"seed": seed, "training": k, "further": phase_seed(seed, k)}
        for seed, k in ((0, 1), (0, 2), (20261123, 1), (2**53 + 1, 9))
    ]
