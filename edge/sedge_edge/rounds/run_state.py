"""What a device keeps of one run, whichever version of the run's bundle it was made with."""

import msgspec

from sedge_edge.jobs.job import Kept
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.work import Step


class RunState(msgspec.Struct, frozen=True):
    """One run on the device: its bundle, its global model ``base``, and the state kept.

    Without ``steps`` the global model is a vector; otherwise they lead to it from a vector. ``origin`` is
    the first version of the bundle, and ``layout`` the hash of its layout.
    """

    bundle: bytes
    base: bytes
    round: int = 0
    kept: Kept = Kept()
    steps: tuple[Step, ...] = ()
    origin: bytes = b""
    layout: bytes = b""

    def goes_on(self, order: Order) -> bool:
        """Whether an order of the run has the same bundle, or another version of it."""
        return self.bundle == order.bundle.sha256 or self.origin == order.first_bundle
