"""Defines a job, which is an order with all its inputs, and the results of a job."""

from dataclasses import dataclass

import msgspec

from sedge_protocol.errors import SedgeError
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.update import Report


class OutOfMemory(SedgeError):
    """A job needs more memory than the device has."""


class Kept(msgspec.Struct, frozen=True):
    """The state that a device keeps for a run between orders: names of vectors, a mask and a patch.

    ``model`` is the device's own latest model, for predictions. If that is a mixture, ``part`` is the
    device's own part of it. ``residual`` holds everything that its updates have left out so far, ``mask``
    is the mask of its last update, ``gradient`` is the gradient of its last batch, and ``patch`` is its
    last update, coded as a patch. ``moments`` is the state of its optimizer. ``start`` is its start
    vector with its class shares, if it predicts better with them; it uses this model until it first trains.
    """

    model: bytes | None = None
    residual: bytes | None = None
    mask: bytes | None = None
    part: bytes | None = None
    gradient: bytes | None = None
    patch: bytes | None = None
    moments: bytes | None = None
    start: bytes | None = None

    def names(self) -> set[bytes]:
        """Return the names of all kept blobs."""
        return {name for name in msgspec.structs.astuple(self) if name is not None}


NOTHING = Kept()


@dataclass(frozen=True)
class Job:
    """An order whose blobs are all on disk, the state kept from its run, and its checkpoint if it has one.

    ``http_bytes`` is the number of bytes received over HTTP since the device's last report.
    """

    order: Order
    kept: Kept = NOTHING
    checkpoint: bytes | None = None
    http_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """The results of a job: its update, which is a blob, and the run's state to keep."""

    run: str
    round: int
    update: bytes
    report: Report
    kept: Kept = NOTHING
