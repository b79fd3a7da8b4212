"""Size and speed of coded vectors, on the deltas of a real training.

    python tools/bench/codec.py [--deltas runs/deltas.npz] [--repeats 20]

deltas.py writes the file, and is run first where there is none (some minutes). A mask keeps the top share
(tau) of a device's delta; its context is the same device's mask of the round before. "x nH" is a mask
section against n·H(tau)/8, the entropy of a random mask. "alone", "context" and "factors" (a codec with
factors = true, without a context) are what the encoder sends; the times beside are those of whole vectors
in bf16 with factors. The other forms are there for comparison. "smaller" is the whole coded vector, with
the context, against what papers count: a bit for each element and a float32 for each one kept. Times are
the median of the repeats in ms, MB/s dense float32 bytes over that time. The last line is JSON.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from sedge_protocol.mask_model import Matrix, entropy_bits, matrices

from sedge_export.models import avgcnn
from sedge_protocol.bitmaps import changed_ranks, to_bitmap
from sedge_protocol.compression import shrink
from sedge_protocol.gaps import rice_parameter, to_gaps, to_rice, to_varints
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.positions import MaskForm
from sedge_protocol.sparse import (
    Compression,
    SparseVector,
    ValueCoding,
    decode,
    encode,
    mask_bitmap,
    top_k,
)

SHARES = (0.5, 0.12, 0.1, 0.01, 0.0005)
Row = dict[str, str | int | float]


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """The median time of one call."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(1e3 * median(times), 3)


def deltas(path: Path) -> list[tuple[int, int, Theta, Theta]]:
    """Device, round, its delta (n,) and the one of the round before."""
    with np.load(path, allow_pickle=False) as file:
        vectors: dict[str, Theta] = {name: file[name] for name in file.files}
    names = [name.split("_") for name in vectors if name.startswith("local_")]
    pairs = sorted((int(device), int(number)) for _, device, number in names)

    def delta(device: int, number: int) -> Theta:
        difference: Theta = vectors[f"local_{device}_{number}"] - vectors[f"global_{number}"]
        return difference

    return [
        (device, number, delta(device, number), delta(device, number - 1))
        for device, number in pairs
        if (device, number - 1) in pairs
    ]


def mask_bytes(data: bytes) -> int:
    """The length of the mask section of a coded vector."""
    return int.from_bytes(data[12:16], "little")


def model_matrices() -> tuple[Matrix, ...]:
    """The matrices of the model that the deltas are of."""
    named = avgcnn().named_parameters()
    layout = Layout.of((name, tuple(tensor.shape), Role.PARAMETER) for name, tensor in named)
    return matrices(layout)


def mask_row(vector: SparseVector, context: bytes, layers: tuple[Matrix, ...], repeats: int) -> Row:
    """The mask in every form, in units of the entropy of a random mask."""
    assert vector.indices is not None
    n, indices = vector.size, vector.indices
    entropy = entropy_bits(vector.count, n) / 8
    bitmap = to_bitmap(indices, n)
    ranks = changed_ranks(context, bitmap)
    rice = rice_parameter(indices, n)
    alone, coded = encode(vector), encode(vector, context=context)
    with_model = partial(encode, vector, matrices=layers)
    factors = with_model()
    forms = {
        "bitmap": len(shrink(bitmap, Compression.ZSTD)),
        "gaps": len(shrink(to_varints(to_gaps(indices)), Compression.ZSTD)),
        "rice": n // 8 if rice is None else len(to_rice(to_gaps(indices), rice)),
        "changes": len(shrink(to_varints(to_gaps(ranks)), Compression.ZSTD)),
        "alone": mask_bytes(alone),
        "context": mask_bytes(coded),
        "factors": mask_bytes(factors),
    }
    earlier = np.unpackbits(np.frombuffer(context, np.uint8)).sum(dtype=np.int64)
    added = np.count_nonzero(ranks >= earlier)
    row: Row = {"nH": round(entropy), "overlap": round(1 - added / vector.count, 3)}
    for name, length in forms.items():
        row[name] = round(length / entropy, 3)
    row["form"] = MaskForm(coded[1] & 15).name.lower()
    row["factors_encode_ms"] = milliseconds(with_model, repeats)
    row["factors_decode_ms"] = milliseconds(partial(decode, factors, n), repeats)
    return row


def vector_row(
    delta: Theta, vector: SparseVector, context: bytes, coding: ValueCoding, repeats: int
) -> Row:
    """The whole coded vector, and how long it takes."""
    n = vector.size
    alone, coded = encode(vector, coding), encode(vector, coding, context=context)
    counted = n / 8 + 4 * vector.count
    encode_ms = milliseconds(partial(encode, vector, coding), repeats)
    decode_ms = milliseconds(partial(decode, alone, n), repeats)
    with_context = partial(encode, vector, coding, context=context)
    return {
        "bytes": len(alone),
        "context": len(coded),
        "smaller": round(counted / len(coded), 2),
        "top_k_ms": milliseconds(partial(top_k, delta, vector.count), repeats),
        "encode_ms": encode_ms,
        "decode_ms": decode_ms,
        "context_encode_ms": milliseconds(with_context, repeats),
        "context_decode_ms": milliseconds(partial(decode, coded, n, context), repeats),
        "encode_mb_s": round(4e-3 * n / encode_ms),
        "decode_mb_s": round(4e-3 * n / decode_ms),
    }


def print_row(row: Row, heads: bool) -> None:
    """One line of a table, below the names of its columns when it is the first."""
    if heads:
        print("  ".join(f"{name:>7}" for name in row))
    print("  ".join(f"{value:>{max(len(name), 7)}}" for name, value in row.items()), flush=True)


def main() -> None:
    """Measure, print the two tables, and end with JSON."""
    parser = argparse.ArgumentParser(description="Size and speed of coded vectors.")
    parser.add_argument("--deltas", type=Path, default=Path("runs/deltas.npz"))
    parser.add_argument("--repeats", type=int, default=20)
    arguments = parser.parse_args()
    if not arguments.deltas.exists():
        script = Path(__file__).with_name("deltas.py")
        subprocess.run([sys.executable, script, "--out", arguments.deltas], check=True)
    masks: list[Row] = []
    vectors: list[Row] = []
    measured, layers = deltas(arguments.deltas), model_matrices()
    for device, number, delta, before in measured:
        for share in SHARES:
            count = round(share * delta.size)
            row: Row = {"device": device, "round": number, "tau": share}
            context = mask_bitmap(top_k(before, count))
            row.update(mask_row(top_k(delta, count), context, layers, arguments.repeats))
            print_row(row, heads=not masks)
            masks.append(row)
    for device, number, delta, before in measured:
        for share in SHARES:
            vector = top_k(delta, round(share * delta.size))
            context = mask_bitmap(top_k(before, vector.count))
            for coding in ValueCoding:
                row = {"device": device, "round": number, "tau": share, "values": coding.value}
                row.update(vector_row(delta, vector, context, coding, arguments.repeats))
                print_row(row, heads=not vectors)
                vectors.append(row)
    print(json.dumps({"n": measured[0][2].size, "masks": masks, "vectors": vectors}))


if __name__ == "__main__":
    main()
