"""A job: an order with all its inputs, and its results."""

from dataclasses import dataclass

import msgspec

from sedge_protocol.errors import SedgeError
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.update import Report


class OutOfMemory(SedgeError):
    """A job needs more memory than the device has."""


class Kept(msgspec.Struct, frozen=True):
    """A run's state between orders on a device: the names of vectors, a mask and a patch.

    ``model`` is the device's last own model, which it predicts with, and ``part`` its own part of that
    model if it is a mixture. ``residual`` holds everything that its updates have left out so far, ``mask``
    the mask of its last update, ``gradient`` that of its last batch, and ``patch`` its last update, coded
    as a patch. ``moments`` is the state of its optimizer. ``start`` is the model that the device predicts
    with until it first trains, if its class shares improve the global model.
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
        """The names of all kept blobs."""
        return {name for name in msgspec.structs.astuple(self) if name is not None}


NOTHING = Kept()


@dataclass(frozen=True)
class Job:
    """An order whose blobs are all here, the state kept from its run, and a checkpoint of it.

    ``http_bytes`` have arrived over HTTP since the device's last report.
    """

    order: Order
    kept: Kept = NOTHING
    checkpoint: bytes | None = None
    http_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """A job's results: the update, a blob, and the state that the device keeps from now on."""

    run: str
    round: int
    update: bytes
    report: Report
    kept: Kept = NOTHING
