"""Measures the size and coding time of vectors sent in real training, coded as in the shipped examples.

deltas.py trains first if runs/deltas.npz is missing (ten minutes). Every row describes one whole coded
vector:

    update      a share of a device's change, with the residual of earlier rounds (error feedback)
    broadcast   the same for the global model
    snapshot    the whole global model after some rounds of broadcasts, as a newcomer fetches it
    patch       the elements in which FedOBP starts a device from its own model, in float32
    selection   the half that FedPURIN's order selects, coded against the device's previous mask
    next patch  new values for these elements, coded against that mask

"smaller" is relative to 4 bytes per element. "form" is how the mask is written, "mask" its bytes. Times are
the median of the repeats in ms, for the last round only.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from tools.bench.deltas import write_deltas
from tools.bench.harness import Figure, Result, at_most, bench, mid

from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.figures.numbers import percent, size
from sedge_cloud.runs.versions import first_version, next_version
from sedge_edge.training.critical_elements import critical
from sedge_edge.training.selection import select_elements
from sedge_export.models import avgcnn
from sedge_protocol.codec import SparseVector, ValueCoding, decode, encode, mask_bitmap, top_k
from sedge_protocol.codec.masks import MaskForm
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.wire.work import Codec, UpdateSelection

# The update codecs to measure: all elements, a device's default, those of compression.toml and
# thousand.toml.
UPDATES = (
    Codec(),
    Codec(ValueCoding.BF16, 0.04),
    Codec(ValueCoding.BF16, 0.12),
    Codec(ValueCoding.INT4, 0.04),
    Codec(ValueCoding.SIGN, 0.05),
    Codec(ValueCoding.BF16, 0.01),
)
BROADCASTS = (Codec(ValueCoding.BF16, 0.12), Codec(ValueCoding.BF16, 0.05))
# The rounds after which the model is measured.
SNAPSHOTS = (10, 40)
PERSONAL = 0.0005
SELECTION = UpdateSelection(0.5, gradient="delta")
# The coded vectors to report: the kind, the share of the elements, and the coding of their values.
CODED = {
    ("update", 1.0, "fp32"): "update of everything in fp32",
    ("update", 0.04, "bf16"): "update by default, the largest 4 % in bf16, with error feedback",
    ("update", 0.12, "bf16"): "update of the largest 12 % in bf16, with error feedback",
    ("update", 0.04, "int4"): "update of the largest 4 % in int4, with error feedback",
    ("update", 0.05, "sign"): "update of the largest 5 % in sign, with error feedback",
    ("update", 0.01, "bf16"): "update of the largest 1 % in bf16, with error feedback",
    ("selection", 0.5, "int8"): "update of the half that an order selects, in int8",
    ("next patch", 0.5, "int8"): "patch of what the device sent last, in int8",
    ("patch", 0.0005, "fp32"): "patch of a device's personal 0.05 %, in fp32",
    ("broadcast", 0.12, "bf16"): "broadcast of the largest 12 % in bf16",
    ("broadcast", 0.05, "bf16"): "broadcast of the largest 5 % in bf16",
}
# The targets: the time for encoding the update TIMED, and the bytes of the whole model for a newcomer.
TIMED, TARGET_ENCODE_MS = ("update", 0.12, "bf16"), 10.0
TARGET_NEWCOMER = 400_000
# A vector, how its values are coded, and the mask that it is coded against.
Sent = tuple[SparseVector, ValueCoding, bytes | None]
Row = dict[str, str | int | float]


class Training:
    """The global model and the models of some devices, round by round."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as file:
            self._vectors: dict[str, Theta] = {name: file[name] for name in file.files}
        names = [name.split("_") for name in self._vectors if name.startswith("local_")]
        self.devices = sorted({int(device) for _, device, _ in names})
        self.rounds = max(int(number) for *_, number in names)

    def shared(self, number: int) -> Theta:
        """Return the global model (n,) that a round starts from."""
        return self._vectors[f"global_{number}"]

    def own(self, device: int, number: int) -> Theta:
        """Return a device's model (n,) at the end of a round."""
        return self._vectors[f"local_{device}_{number}"]


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median time of one call."""
    times: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return round(1e3 * median(times), 3)


def fed_back(changes: Iterator[Theta], codec: Codec) -> Iterator[Sent]:
    """Yield the part of each change (n,) that is sent. Error feedback adds the rest to the next change."""
    residual: Theta | None = None
    for change in changes:
        whole = change if residual is None else change + residual
        vector = select_elements(whole, codec)
        yield vector, codec.values, None
        residual = whole - decode(encode(vector, codec.values), whole.size).dense()


def updates(training: Training, device: int, codec: Codec) -> Iterator[Sent]:
    """Yield a device's updates, round by round."""
    numbers = range(1, training.rounds + 1)
    changes = (training.own(device, number) - training.shared(number) for number in numbers)
    return fed_back(changes, codec)


def broadcasts(training: Training, codec: Codec) -> Iterator[Sent]:
    """Yield the broadcasts of the global model's changes, round by round."""
    numbers = range(1, training.rounds + 1)
    changes = (training.shared(number + 1) - training.shared(number) for number in numbers)
    return fed_back(changes, codec)


def snapshots(training: Training, layout: Layout, codec: Codec) -> Iterator[Row]:
    """Yield the coded size of the whole global model after each number of rounds in ``SNAPSHOTS``."""
    broadcast = BroadcastConfig(codec.values, codec.fraction)
    theta, owed = first_version(training.shared(1), layout, broadcast), None
    for number in range(1, max(SNAPSHOTS) + 1):
        change = training.shared(number + 1) - training.shared(number)
        wanted = (theta + change).astype(np.float32)
        version = next_version(wanted, theta, owed, broadcast)
        theta, owed = version.theta, version.owed
        if number in SNAPSHOTS:
            whole = SparseVector(theta.size, None, theta)
            coded = len(encode(whole, ValueCoding.FP32, broadcast.compression))
            yield {
                "what": "snapshot",
                "fraction": codec.fraction,
                "values": codec.values.value,
                "round": number,
                "bytes": coded,
                "smaller": round(4 * theta.size / coded, 2),
            }


def patches(training: Training, device: int) -> Iterator[Sent]:
    """Yield a device's patches: its personal elements, the ones farthest from the next global model."""
    for number in range(1, training.rounds + 1):
        own, shared = training.own(device, number), training.shared(number + 1)
        places = top_k(own - shared, round(PERSONAL * own.size)).indices
        assert places is not None
        yield SparseVector(own.size, places, own[places]), ValueCoding.FP32, None


def selections(training: Training, device: int, layout: Layout) -> Iterator[tuple[Sent, Sent]]:
    """Yield pairs: the selected elements that a device sends, and the patch that answers them."""
    context: bytes | None = None
    for number in range(1, training.rounds + 1):
        own, shared = training.own(device, number), training.shared(number)
        places = critical(own, own - shared, layout, (), SELECTION)
        sent = SparseVector(own.size, places, (own - shared)[places])
        update = (sent, ValueCoding.INT8, context)
        context = mask_bitmap(sent)
        merged: Theta = np.multiply(own + training.shared(number + 1), 0.5)[places]
        yield update, (SparseVector(own.size, places, merged), ValueCoding.INT8, context)


def measured(sent: Sent, repeats: int) -> Row:
    """Return one row. It has no times if ``repeats`` is 0."""
    vector, values, context = sent
    code = partial(encode, vector, values, context=context)
    coded = code()
    row: Row = {
        "bytes": len(coded),
        "smaller": round(4 * vector.size / len(coded), 2),
        "form": MaskForm(coded[1] & 15).name.lower(),
        "mask": int.from_bytes(coded[12:16], "little"),
    }
    if repeats:
        row["encode_ms"] = milliseconds(code, repeats)
        row["decode_ms"] = milliseconds(partial(decode, coded, vector.size, context), repeats)
    return row


def all_vectors(training: Training, layout: Layout) -> Iterator[tuple[Row, Iterator[Sent]]]:
    """Yield every kind of vector that is sent: a description, and the vectors round by round."""
    for codec in BROADCASTS:
        what: Row = {"what": "broadcast", "fraction": codec.fraction, "values": codec.values.value}
        yield what, broadcasts(training, codec)
    for device in training.devices:
        for codec in UPDATES:
            what = {"what": "update", "fraction": codec.fraction, "values": codec.values.value}
            yield {**what, "device": device}, updates(training, device, codec)
        what = {"what": "patch", "fraction": PERSONAL, "values": "fp32", "device": device}
        yield what, patches(training, device)
        for place, name in enumerate(("selection", "next patch")):
            what = {"what": name, "fraction": SELECTION.fraction, "values": "int8"}
            pairs = selections(training, device, layout)
            yield {**what, "device": device}, (pair[place] for pair in pairs)


def figures(found: Result) -> list[Figure]:
    """Return the means over all rounds and devices for each kind of vector, and a newcomer's download."""
    written: list[Figure] = []
    for key, what in CODED.items():
        rows = [r for r in found["rows"] if (r["what"], r["fraction"], r["values"]) == key]
        mean = sum(row["bytes"] for row in rows) / len(rows)
        timed = [row for row in rows if row["round"] == found["rounds"]]
        encode_ms, decode_ms = mid(timed, "encode_ms"), mid(timed, "decode_ms")
        measured = (
            f"{size(mean)}, {4 * found['n'] / mean:.1f} times smaller than dense float32; "
            f"encoded in {encode_ms:.1f} ms, decoded in {decode_ms:.1f} ms"
        )
        met = (at_most(TARGET_ENCODE_MS, encode_ms, "ms"),) if key == TIMED else ()
        written.append(Figure(what, measured, met))
    return written + [
        Figure(
            f"the whole model for a newcomer after {row['round']} rounds of broadcasts of "
            f"{percent(row['fraction'], 0)} in {row['values']}",
            f"{size(row['bytes'])}, {row['smaller']:.1f} times smaller than dense float32",
            ((f"at most {size(TARGET_NEWCOMER)}", row["bytes"] <= TARGET_NEWCOMER),),
        )
        for row in found["rows"]
        if row["what"] == "snapshot"
    ]


@bench("Codec: whole vectors", figures)
def measure(deltas: Path = Path("runs/deltas.npz"), repeats: int = 20) -> Result:
    """Measure every row. The vectors of the last round are timed ``repeats`` times."""
    if not deltas.exists():
        write_deltas(deltas)
    named = avgcnn().named_parameters()
    layout = Layout.of((name, tuple(tensor.shape), Role.PARAMETER) for name, tensor in named)
    training = Training(deltas)
    rows = [row for codec in BROADCASTS for row in snapshots(training, layout, codec)]
    for what, vectors in all_vectors(training, layout):
        for number, sent in enumerate(vectors, start=1):
            times = repeats if number == training.rounds else 0
            rows.append({**what, "round": number, **measured(sent, times)})
    return {"n": layout.size, "rounds": training.rounds, "rows": rows}
