"""The blob that a device sends at the end of a round: a report and the coded delta.

u32 header length | MessagePack ``Report`` | the arrays that it names, in order, float32 little endian |
coded vector (codec/vector.py), empty if none was ordered
"""

import struct
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.arrays import Arrays, pack_array, unpack_array
from sedge_protocol.wire.messages import Count, Id, Round, Task
from sedge_protocol.wire.work import MAX_ARRAY_BYTES, Hash, Lengths, Share, Work

_LENGTH = struct.Struct("<I")
# A report takes about 300 bytes. 4 KiB leaves room for additions in later versions.
MAX_REPORT_BYTES = 4096
# A coded vector is at most as long as its float32 values plus a bitmap, which adds 1/32 of their size.
# Allowing 1/16 also covers the headers.
DENSE_SLACK = 16
# The largest float32: devices compute losses in float32, and sums over any fleet stay finite.
LARGEST = (2 - 2**-23) * 2.0**127


class Metrics(msgspec.Struct, frozen=True):
    """The mean loss and the mean of the bundle's metric in an evaluation of ``num_examples`` examples."""

    loss: float
    """The mean loss over the examples."""
    metric: float
    """The mean of the bundle's ``metric`` over the examples; from 0 to 1 if the metric is a share."""
    num_examples: Count
    """The number of test examples."""


class Report(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A device's report on one order. ``model_hash`` and ``patch_hash`` identify the start vector."""

    run: Id
    """The run of the order."""
    round: Round
    """The round of the order."""
    task: Task
    """The task of the order."""
    layout_hash: Hash
    """The hash of the bundle's layout (B8)."""
    model_hash: Hash
    """The model hash of the order."""
    patch_hash: Annotated[bytes, Meta(max_length=32)] = b""
    """The patch hash of the order."""
    num_examples: Count
    """The number of training examples (5.28)."""
    before: Metrics
    """The evaluation of the start vector."""
    after: Metrics
    """The evaluation of the trained model."""
    train_loss: float
    """The mean loss of the model that is sent, over the last epoch's batches (T5)."""
    steps: Count
    """The number of steps of all training phases (T5)."""
    seconds: Annotated[float, Meta(ge=0)]
    """Seconds from the start of the work to the report, for people."""
    mix: Share | None = None
    """Extension ``own_model`` (X3): the final share of the personal component in the mixture."""
    sparse: Metrics | None = None
    """Extension ``select`` (X5): the evaluation after setting to 0 each element that ``select`` could have
    chosen but did not."""
    patched: bool | None = None
    """Extension ``choice`` (X9): whether the device chose to apply its patch."""
    step_s: Annotated[float, Meta(ge=0)] | None = None
    """The mean duration of a training step in seconds, without evaluation."""
    temperature_c: float | None = None
    """The highest temperature during the work, in °C."""
    energy_j: Annotated[float, Meta(ge=0)] | None = None
    """An estimate of the energy used by the work, in joules."""
    http_bytes: Count = 0
    """Extension ``places``: bytes of blobs received over HTTP since the last report, as far as the device
    knows."""
    arrays: Lengths = {}
    """Extension ``arrays``: the arrays between report and payload, in order, each with its number of
    elements."""


def max_coded_bytes(size: int) -> int:
    """Return the maximum size in bytes of a blob with one coded vector of ``size`` elements."""
    return MAX_REPORT_BYTES + 4 * size * (DENSE_SLACK + 1) // DENSE_SLACK


def max_update_bytes(size: int, work: Work) -> int:
    """Return the maximum size in bytes of a device's update for a model of ``size`` elements."""
    return max_coded_bytes(size) + 4 * sum(work.returns.values())


def encode_update(report: Report, payload: bytes, arrays: Arrays | None = None) -> bytes:
    """Encode an update, with the ``arrays`` that ``report.arrays`` names."""
    header = msgspec.msgpack.encode(report)
    packed = b"".join(pack_array((arrays or {})[name]) for name in report.arrays)
    return _LENGTH.pack(len(header)) + header + packed + payload


def decode_update(blob: bytes) -> tuple[Report, memoryview]:
    """Return the report and the payload (a coded vector). Raises ``CodecError`` for a malformed blob."""
    report, rest = _head(blob)
    return report, rest[_array_bytes(report, rest) :]


def decode_arrays(blob: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the named arrays (m,) in an update.

    Raises ``CodecError`` for a malformed blob, NaN or infinity.
    """
    report, rest = _head(blob)
    packed, arrays, start = rest[: _array_bytes(report, rest)], dict[str, NDArray[np.float32]](), 0
    for name, length in report.arrays.items():
        end = start + 4 * length
        arrays[name] = unpack_array(f"update.arrays.{name}", packed[start:end])
        start = end
    return arrays


def _array_bytes(report: Report, rest: memoryview) -> int:
    """Return how many bytes after the report belong to its arrays."""
    size = 4 * sum(report.arrays.values())
    if size > min(MAX_ARRAY_BYTES, len(rest)):
        expected = f"at most {MAX_ARRAY_BYTES} of the {len(rest)} that follow the report"
        raise CodecError(f"update.arrays: {size} bytes, expected {expected}")
    return size


def _head(blob: bytes) -> tuple[Report, memoryview]:
    """Decode the report. Returns the report and all bytes after it."""
    if len(blob) < _LENGTH.size:
        raise CodecError(f"update of {len(blob)} bytes has no header")
    (length,) = _LENGTH.unpack_from(blob)
    end = _LENGTH.size + length
    if length > MAX_REPORT_BYTES or end > len(blob):
        raise CodecError(f"update.header_len: {length}, limit {MAX_REPORT_BYTES}, blob {len(blob)}")
    try:
        report = msgspec.msgpack.decode(blob[_LENGTH.size : end], type=Report)
    except (ValueError, RecursionError) as exc:  # from msgspec: bad schema, UTF-8 or nesting
        raise CodecError(f"update: {exc}") from exc
    numbers = {"train_loss": report.train_loss, "seconds": report.seconds, "mix": report.mix or 0.0}
    for name in ("step_s", "temperature_c", "energy_j"):
        numbers[name] = getattr(report, name) or 0.0
    evaluations = {"before": report.before, "after": report.after, "sparse": report.sparse}
    for name, metrics in evaluations.items():
        if metrics is not None:
            numbers |= {f"{name}.loss": metrics.loss, f"{name}.metric": metrics.metric}
    for name, value in numbers.items():
        if not abs(value) <= LARGEST:  # nor NaN
            raise CodecError(f"update.{name}: {value}, expected at most {LARGEST:.8g} in magnitude")
    return report, memoryview(blob)[end:]
