"""What spec.json has of training: shuffles, batches, rates, and which elements a device sends."""

import numpy as np
from tests.vectors.make_rounds import Events, hexed

from sedge_edge.training.batches import batches, permutations
from sedge_edge.training.selection import select_elements
from sedge_protocol.codec import Compression, ValueCoding, decode, encode
from sedge_protocol.wire.training import LastBatch, Training
from sedge_protocol.wire.work import Codec


def shuffles() -> Events:
    return [
        {
            "seed": seed,
            "examples": count,
            "epochs": [p.tolist() for p in permutations(seed, count, 3)],
        }
        for seed, count in ((0, 1), (0, 5), (1, 10), (2**32, 7), (2**63 - 1, 40), (20457030, 300))
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
        for warmup, end, steps in ((0, 1.0, 2), (4, 1.0, 6), (0, 0.0, 5), (3, 0.25, 8), (9, 2.0, 4))
    ]  # fmt: skip


# With g = 4 five of the six largest are midway between two multiples.
TIES = np.array([6, -6, 2, -2, 2, 1, *[0.5] * 6], np.float32)


def feedback() -> Events:
    rng = np.random.default_rng(1)
    found: Events = []
    for values, fraction, threshold, ties in (
        (ValueCoding.FP32, 0.25, 0.0, False), (ValueCoding.BF16, 1.0, 0.0, False),
        (ValueCoding.INT8, 0.5, 0.0, False), (ValueCoding.FP16, 0.5, 0.02, False),
        (ValueCoding.FP32, 1.0, 0.0, False), (ValueCoding.FP32, 0.01, 0.0, False),
        (ValueCoding.BF16, 0.5, 0.0, False), (ValueCoding.BF16, 0.01, 0.0, False),
        (ValueCoding.BF16, 0.5, 0.0, True),
    ):  # fmt: skip
        codec = Codec(
            values=values, fraction=fraction, threshold=threshold, compression=Compression.NONE
        )
        owed, played = np.zeros(12, np.float32), Events()
        for _ in range(3):
            change = np.round(rng.normal(0, 0.05, 12), 3).astype(np.float32)
            change[3] = change[7]  # of equal magnitudes the lowest index first
            if threshold:  # rounded to binary32 it is in
                change[5] = threshold
            if ties:
                change = TIES
            delta = change + owed
            chosen = select_elements(delta, codec)
            coded = encode(chosen, values, Compression.NONE)
            owed = delta - decode(coded, 12).dense()
            played.append({"change": hexed(change), "coded": coded.hex(), "owed": hexed(owed)})
        found.append({
            "values": values, "fraction": fraction, "threshold": threshold, "size": 12, "rounds": played,
        })  # fmt: skip
    return found
