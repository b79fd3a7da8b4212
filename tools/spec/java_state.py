"""The structs that the Java agent stores on disk.

Where the Python agent stores the same data, its struct is used.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from sedge_edge.rounds.budget import Spent
from sedge_edge.rounds.state import Attempt, Stopped
from sedge_edge.rounds.taken_policies import MAX_POLICIES, TakenPolicy
from sedge_protocol.wire.messages import MAX_RUNS, Count, Id, Order, Round
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.settings import MAX_SETTINGS_BYTES
from sedge_protocol.wire.signing_keys import MAX_REPLACED
from sedge_protocol.wire.transfer import DEFAULT_CHUNK_BYTES, MAX_CHUNK_BYTES, MIN_CHUNK_BYTES
from sedge_protocol.wire.work import Hash

# A limit above the number of entries that a device can have for its runs.
_MAX_ENTRIES = 4 * MAX_RUNS


class Kept(msgspec.Struct, frozen=True, omit_defaults=True):
    """The hashes of the blobs that the device keeps for one run."""

    bundle: Hash
    """The bundle."""
    base: Hash
    """The global model of the run's last order."""
    model: Hash | None = None
    """The device's last trained model."""
    residual: Hash | None = None
    """Everything that the device's updates have left out so far."""
    moments: Hash | None = None
    """The state of the device's optimizer."""
    start: Hash | None = None
    """The model to predict with before the first training, if class shares improve the global model."""
    origin: Hash | None = None
    """The first version of the bundle."""
    layout: Hash | None = None
    """The hash of the bundle's layout."""


class Pending(msgspec.Struct, frozen=True):
    """An update that the coordinator has not acknowledged yet."""

    run: Id
    """The order's run."""
    round: Round
    """The order's round."""
    blob: Hash
    """The update."""
    metric: Metric
    """The metric to show to the user."""
    before: float
    """The metric's value before training."""
    after: float
    """The metric's value after training."""


class State(msgspec.Struct, frozen=True):
    """The durable state of a device, which is committed atomically."""

    incarnation: Count = 0
    """The device's start count."""
    coordinator: Count = 0
    """The newest start count received from the coordinator."""
    key: Annotated[bytes, Meta(max_length=16)] = b""
    """The fingerprint of the keys to which both start counts belong."""
    chunk_bytes: Annotated[int, Meta(ge=MIN_CHUNK_BYTES, le=MAX_CHUNK_BYTES)] = DEFAULT_CHUNK_BYTES
    """The last chunk size that the link could carry."""
    runs: Annotated[dict[str, Kept], Meta(max_length=_MAX_ENTRIES)] = msgspec.field(
        default_factory=dict[str, Kept]
    )
    """The state of each run."""
    orders: Annotated[dict[str, Order], Meta(max_length=_MAX_ENTRIES)] = msgspec.field(
        default_factory=dict[str, Order]
    )
    """The orders to work on, keyed by run."""
    outbox: Annotated[tuple[Pending, ...], Meta(max_length=2**20)] = ()
    """The updates to send."""
    recent: Annotated[tuple[Id, ...], Meta(max_length=MAX_RUNS)] = ()
    """The runs of the last orders, oldest first."""
    attempts: Annotated[dict[str, Attempt], Meta(max_length=_MAX_ENTRIES)] = msgspec.field(
        default_factory=dict[str, Attempt]
    )
    """The unfinished jobs, keyed by run."""
    stopped: Annotated[dict[str, Stopped], Meta(max_length=_MAX_ENTRIES)] = msgspec.field(
        default_factory=dict[str, Stopped]
    )
    """The jobs that can continue from a checkpoint, keyed by run."""
    spent: Spent = Spent()
    """The usage that counts towards the device's limits."""
    policies: Annotated[dict[str, TakenPolicy], Meta(max_length=MAX_POLICIES)] = msgspec.field(
        default_factory=dict[str, TakenPolicy]
    )
    """The policies of the last accepted orders, keyed by run."""
    settings: Annotated[bytes, Meta(max_length=MAX_SETTINGS_BYTES)] = b""
    """The settings from the coordinator, as it sent them."""
    replaced: Annotated[dict[str, Hash], Meta(max_length=MAX_REPLACED)] = msgspec.field(
        default_factory=dict[str, Hash]
    )
    """The public keys that have replaced signing keys, keyed by the ids of the old keys."""


# The classes nested in State.java.
WITHIN = (Pending, Attempt, Stopped, Spent, TakenPolicy)
