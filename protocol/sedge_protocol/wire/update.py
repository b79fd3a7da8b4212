"""The blob that a device sends at the end of a round: a report and the coded delta.

u32 header length | MessagePack ``Report`` | coded vector (codec/vector.py), empty if none was ordered
"""

import struct
from typing import Annotated

import msgspec
from msgspec import Meta

from sedge_protocol.errors import CodecError
from sedge_protocol.wire.messages import Count, Hash, Id, Round, Share, Task

_LENGTH = struct.Struct("<I")
# A report has some 300 bytes; 4 KiB leave room for later versions.
MAX_REPORT_BYTES = 4096
# A coded vector is at most its float32 values and a bitmap: a 32nd more. A sixteenth covers headers too.
DENSE_SLACK = 16
# The largest binary32: devices compute losses in float32, and sums over any fleet stay finite.
LARGEST = (2 - 2**-23) * 2.0**127


class Metrics(msgspec.Struct, frozen=True):
    """An evaluation over ``num_examples``: the mean loss, and the mean of the bundle's metric."""

    loss: float
    metric: float
    num_examples: Count


class Report(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A device's report on one order.

    ``model_hash`` and ``patch_hash`` repeat the order's and identify the start vector. ``train_loss`` is
    the mean over the last epoch's batches, for the model that is sent; ``steps`` and ``seconds`` are totals
    over all trainings. ``mix`` is an APFL mixture's last alpha. ``sparse`` evaluates the trained model with
    every element set to zero that ``select`` could have chosen and did not. ``patched`` is whether
    the device has chosen to apply its patch, if the order has a ``choice``. ``step_s`` is the time of a
    training step, ``temperature_c`` the highest that the device has seen meanwhile, and ``energy_j`` an
    estimate of what the work took. ``http_bytes`` came over HTTP since the last report.
    """

    run: Id
    round: Round
    task: Task
    layout_hash: Hash
    model_hash: Hash
    patch_hash: Annotated[bytes, Meta(max_length=32)] = b""
    num_examples: Count
    before: Metrics
    after: Metrics
    train_loss: float
    steps: Count
    seconds: Annotated[float, Meta(ge=0)]
    mix: Share | None = None
    sparse: Metrics | None = None
    patched: bool | None = None
    step_s: Annotated[float, Meta(ge=0)] | None = None
    temperature_c: float | None = None
    energy_j: Annotated[float, Meta(ge=0)] | None = None
    http_bytes: Count = 0


def max_coded_bytes(size: int) -> int:
    """The most bytes that an update, or any blob with one coded vector of ``size`` elements, may have."""
    return MAX_REPORT_BYTES + 4 * size * (DENSE_SLACK + 1) // DENSE_SLACK


def encode_update(report: Report, payload: bytes) -> bytes:
    """The update blob."""
    header = msgspec.msgpack.encode(report)
    return _LENGTH.pack(len(header)) + header + payload


def decode_update(blob: bytes) -> tuple[Report, memoryview]:
    """The report and the payload, still coded. Raises ``CodecError`` for a malformed blob."""
    if len(blob) < _LENGTH.size:
        raise CodecError(f"update of {len(blob)} bytes has no header")
    (length,) = _LENGTH.unpack_from(blob)
    end = _LENGTH.size + length
    if length > MAX_REPORT_BYTES or end > len(blob):
        raise CodecError(f"update.header_len: {length}, limit {MAX_REPORT_BYTES}, blob {len(blob)}")
    try:
        report = msgspec.msgpack.decode(blob[_LENGTH.size : end], type=Report)
    except (ValueError, RecursionError) as exc:  # msgspec's errors, bad UTF-8, deep nesting
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
