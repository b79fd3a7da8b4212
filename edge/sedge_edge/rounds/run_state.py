"""The state that a device keeps for one run. It stays valid for all versions of the run's bundle."""

import msgspec

from sedge_edge.jobs.job import Kept
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.work import Step


class RunState(msgspec.Struct, frozen=True):
    """One run on the device: its bundle, its global model ``base``, and the kept state.

    Without ``steps``, the global model is stored as a vector. Otherwise it results from applying ``steps``
    to an older version of it. ``origin`` is the first version of the bundle, and ``layout`` is the hash of
    its layout.
    """

    bundle: bytes
    base: bytes
    round: int = 0
    kept: Kept = Kept()
    steps: tuple[Step, ...] = ()
    origin: bytes = b""
    layout: bytes = b""

    def goes_on(self, order: Order) -> bool:
        """Return True if an order of the run uses the same bundle or another version of it."""
        return self.bundle == order.bundle.sha256 or self.origin == order.first_bundle
