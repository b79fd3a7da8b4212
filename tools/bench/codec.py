"""Size and speed of coded vectors.

    python tools/bench/codec.py [--delta delta.npy] [--size 582026] [--repeats 20]

Each vector is the top share (tau) of a delta: the one in a file (float32, shape (n,)), or two made up
ones, "random" (equal normal values: no structure to find) and "rows" (rows of 1024 with very different
scales, as a hidden layer's are). One thread. Sizes are bytes of the whole coded vector; "x nH" is its
mask section against n·H(tau)/8, the entropy of a random mask, and "smaller" the whole against what
papers count, a bitmap and float32 values. Times are the median of the repeats in ms; MB/s are dense
float32 bytes over that time. The last line is JSON.
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from sedge_protocol.layout import Theta
from sedge_protocol.positions import MaskForm
from sedge_protocol.sparse import Compression, ValueCoding, decode, encode, top_k

SHARES = (0.5, 0.1, 0.01, 0.0005)
Row = dict[str, str | int | float]


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of one call."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


def made_up(size: int) -> dict[str, Theta]:
    """Deltas (n,) without and with structure."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 1e-3, size).astype(np.float32)
    scales = rng.lognormal(0, 1, -(-size // 1024)).astype(np.float32)
    return {"random": noise, "rows": noise * np.repeat(scales, 1024)[:size]}


def entropy_bytes(size: int, count: int) -> float:
    """n·H(k/n)/8 for 0 < k < n."""
    share = count / size
    return -(share * math.log2(share) + (1 - share) * math.log2(1 - share)) * size / 8


def measure(name: str, delta: Theta, share: float, repeats: int) -> list[Row]:
    """One row for each value coding and compression."""
    n = delta.size
    count = max(1, round(share * n))
    vector = top_k(delta, count)
    select_ms = milliseconds(partial(top_k, delta, count), repeats)
    rows: list[Row] = []
    for coding in ValueCoding:
        for compression in Compression:
            data = encode(vector, coding, compression)
            encode_ms = milliseconds(partial(encode, vector, coding, compression), repeats)
            decode_ms = milliseconds(partial(decode, data, n), repeats)
            mask_bytes = int.from_bytes(data[12:16], "little")
            row: Row = {
                "delta": name,
                "tau": share,
                "values": coding.value,
                "compression": compression.value,
                "form": MaskForm(data[1] & 15).name.lower(),
                "mask_bytes": mask_bytes,
                "mask_of_entropy": round(mask_bytes / entropy_bytes(n, vector.count), 3),
                "bytes": len(data),
                "smaller_than_bitmap_fp32": round((n / 8 + 4 * vector.count) / len(data), 2),
                "top_k_ms": round(select_ms, 2),
                "encode_ms": round(encode_ms, 2),
                "decode_ms": round(decode_ms, 2),
                "encode_mb_s": round(4e-3 * n / encode_ms),
                "decode_mb_s": round(4e-3 * n / decode_ms),
            }
            rows.append(row)
            print("  ".join(f"{row[key]:>{width}}" for key, _, width in COLUMNS))
    return rows


COLUMNS = (
    ("delta", "delta", 7),
    ("tau", "tau", 6),
    ("values", "values", 6),
    ("compression", "compr.", 6),
    ("form", "mask", 6),
    ("mask_bytes", "mask B", 7),
    ("mask_of_entropy", "x nH", 6),
    ("bytes", "bytes", 8),
    ("smaller_than_bitmap_fp32", "smaller", 7),
    ("top_k_ms", "top_k", 6),
    ("encode_ms", "enc ms", 6),
    ("decode_ms", "dec ms", 6),
    ("encode_mb_s", "MB/s", 6),
    ("decode_mb_s", "MB/s", 6),
)


def main() -> None:
    """Measure, print the table, and end with JSON."""
    parser = argparse.ArgumentParser(description="Size and speed of coded vectors.")
    parser.add_argument("--delta", type=Path, help="a float32 .npy file of shape (n,)")
    parser.add_argument("--size", type=int, default=582_026, help="n of the made up deltas")
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    path: Path | None = arguments.delta
    deltas = made_up(arguments.size) if path is None else {path.stem: np.load(path)}
    print("  ".join(f"{title:>{width}}" for _, title, width in COLUMNS))
    rows: list[Row] = []
    for name, delta in deltas.items():
        for share in SHARES:
            rows += measure(name, delta, share, arguments.repeats)
    print(json.dumps({"n": max(delta.size for delta in deltas.values()), "rows": rows}))


if __name__ == "__main__":
    main()
