"""Builds a device's order in its wire form: the blobs it gets in a round, and how it encodes its update.

The same rows and the same hello always give the same order. A patch is sent inside the order if it fits,
but a step of the global model never is: as a blob it leaves the coordinator once for the whole fleet, and
sending it inside the order would save a device only 1.7 % of its traffic.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress

import msgspec

from sedge_cloud.runs.asked import AskedRound
from sedge_cloud.runs.capabilities import codec_for
from sedge_cloud.runs.named_blobs import Cut, Describe, NamedBlob
from sedge_cloud.runs.run import Run, order_seed
from sedge_cloud.runs.terms import its_limit, packet_limit
from sedge_cloud.runs.versions import steps_since
from sedge_cloud.store.contract import Public
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_cloud.store.schema import StepRow
from sedge_protocol.errors import StorageError, StrategyError
from sedge_protocol.wire.frame import HEADER, MAX_BODY_BYTES, MAX_PACKET_BYTES, PUBLISH_BYTES
from sedge_protocol.wire.messages import EVALUATE, Hello, Order, encode_body
from sedge_protocol.wire.places import MAX_URL, Place
from sedge_protocol.wire.transfer import Manifest, fitting_chunk
from sedge_protocol.wire.work import Step

# Less than a frame can hold, as an order that is rebuilt may need a few more bytes for its codec.
MAX_ORDER_BYTES = MAX_BODY_BYTES - 512
# From this size on, a separate connection for a blob pays off: TLS and HTTP take 2.3 kB with one short
# certificate (tools/bench/large_base.py), and a typical certificate chain takes about 4 kB more, together 2
# % of the blob.
PUBLIC_BYTES = 2**18
# The bytes of an order's MQTT packet outside its body: MQTT's own, the longest topic, the frame's header.
AROUND_BYTES = PUBLISH_BYTES + 128 + HEADER.size


def make_order(
    run: Run,
    row: RoundRow,
    steps: Sequence[StepRow],
    given: OrderRow,
    hello: Hello | None,
    describe: Describe,
    public: Public | None = None,
) -> Order:
    """Build a device's order for a round; ``steps`` are the decoded ``row.steps``.

    ``public`` returns the URL at which devices find a blob.
    """
    work = given.read_work()
    if given.model:
        steps = ()
    elif given.step:
        steps = (StepRow(given.holds, given.step, 0),)
    frozen = run.manifest.frozen
    cut = None if frozen is None else describe(frozen.blob.sha256)
    bundle, model = describe(bundle_of(run, given)), describe(given.model or row.model)
    shared = [bundle, *([] if given.model else [model]), *([] if cut is None else [cut])]
    leads = given.holds == row.model_hash or any(step.base_hash == given.holds for step in steps)
    return Order(
        run=row.run,
        round=row.round,
        task="evaluate" if row.task == EVALUATE else "train",
        bundle=bundle,
        model=model,
        model_hash=given.model_hash or row.model_hash,
        steps=tuple(
            Step(step.base_hash, describe(step.blob)) for step in steps_since(steps, given.holds)
        ),
        patch=given.patch,
        patch_blob=describe(given.patch_blob) if given.patch_blob else None,
        patch_hash=given.patch_hash,
        patch_context=describe(given.patch_context) if given.patch_context else None,
        correction=describe(given.correction) if given.correction else None,
        frozen=None if frozen is None or cut == frozen.blob else cut,
        places=() if public is None or leads else places(shared, public),
        work=msgspec.structs.replace(
            work, training=work.training or run.config.training_in(row.round)
        ),
        codec=codec_for(run.config.codec.completed(run.codec, run.layout(given.width).size), hello),
        context=given.context,
        seed=order_seed(run.config.seed, row.round, given.device),
        policy=run.state.policy,
        origin=run.bundles[given.width].sha256 if given.bundle else b"",
    )


def places(shared: Iterable[Manifest], public: Public) -> tuple[Place, ...]:
    """Return the HTTP locations from which devices can fetch the large blobs among ``shared``.

    Blobs for a single device have none. If a URL is too long for an order, or the store cannot sign one
    now, the blob is sent over MQTT.
    """
    found: list[Place] = []
    with suppress(StorageError):
        for blob in shared:
            if blob.size >= PUBLIC_BYTES and len(url := public(blob.sha256)) <= MAX_URL:
                found.append(Place(blob.sha256, url))
    return tuple(found)


class OrderBuilder:
    """Builds the devices' orders. ``cut`` divides their blobs into chunks that fit each device's link.

    ``last_hello`` returns a device's last hello, or None if there is none. ``public`` returns the URL of a
    large blob, for a device that must fetch the whole model.
    """

    def __init__(
        self, last_hello: Callable[[str], Hello | None], cut: Cut, public: Public | None
    ) -> None:
        self._hello, self._cut, self._public = last_hello, cut, public

    def all(self, run: Run, current: AskedRound) -> dict[str, Order]:
        """Build the orders of a new round in their wire form. Raises ``StrategyError`` if one is too large.

        All orders are built before the round is stored, as a round with an order that is too large could
        only fail.
        """
        return {
            name: require_sendable(run, self.one(run, current, given), name)
            for name, given in current.orders.items()
        }

    def one(self, run: Run, current: AskedRound, given: OrderRow) -> Order:
        """Build a device's order in its wire form."""
        name = given.device
        hello, describe = self._hello(name), self.describe(name)
        order = make_order(run, current.row, current.steps, given, hello, describe, self._public)
        return trimmed(order, packet_limit(hello))

    def served(self, run: Run, current: AskedRound, device: str) -> Iterator[NamedBlob]:
        """Return the blobs that a device of the round may request."""
        return named_blobs(run, current, device, self.describe(device))

    def describe(self, device: str) -> Describe:
        """Return a function that returns a blob's manifest, with chunks that suit the device."""
        chunk_bytes = fitting_chunk(packet_limit(self._hello(device)))
        return lambda blob: self._cut(blob, chunk_bytes)


def named_blobs(
    run: Run, current: AskedRound, device: str, describe: Describe
) -> Iterator[NamedBlob]:
    """Yield the blobs that a device's order in an open round names: first the shared ones, then its own."""
    given, waiting = current.orders[device], max(1, len(current.present - current.excused))
    versions, bundle = bundle_users(run, current), bundle_of(run, given)
    yield NamedBlob(describe(bundle), min(waiting, versions[bundle]), "the bundle")
    users = min(waiting, current.widths[given.width])
    if run.manifest.frozen is not None:
        yield NamedBlob(describe(run.manifest.frozen.blob.sha256), users, "the frozen data")
    if not given.model:
        users = min(waiting, current.users[current.row.model])
        yield NamedBlob(describe(current.row.model), users, "the model")
        for step in current.steps:
            yield NamedBlob(describe(step.blob), users, "changes to the model")
    own = {
        given.model: "its start",
        given.patch_blob: "its personal parameters",
        given.patch_context: "its mask",
        given.correction: "its correction",
        given.step: "changes to the model",
    }
    for blob, what in own.items():
        if blob:
            users = current.users[blob]
            yield NamedBlob(describe(blob), min(users, waiting) if users > 1 else 0, what)


def bundle_of(run: Run, given: OrderRow) -> bytes:
    """Return the blob of the bundle that an order names."""
    return given.bundle or run.bundles[given.width].sha256


def bundle_users(run: Run, current: AskedRound) -> Counter[bytes]:
    """Count the orders of a round that name each bundle."""
    users = Counter[bytes]()
    for (width, bundle), count in current.bundles.items():
        users[bundle or run.bundles[width].sha256] += count
    return users


def receivers_of(run: Run, current: AskedRound, blob: bytes) -> int | None:
    """Return how many devices a round sends this blob to; None if the blob is not shared."""
    named = dict(bundle_users(run, current))
    if run.manifest.frozen is not None:
        named[run.manifest.frozen.blob.sha256] = len(current.orders)
    for one in (current.row.model, *(step.blob for step in current.steps)):
        named[one] = current.users[current.row.model]
    return named.get(blob, current.users[blob] if current.users[blob] > 1 else None)


def packet_of(order: Order) -> int:
    """Return the size of an order's MQTT packet, in bytes."""
    return len(encode_body(order)) + AROUND_BYTES


def too_large(order: Order, max_packet: int) -> str:
    """Explain why an order does not fit in packets of ``max_packet`` bytes. Returns "" if it fits."""
    if max_packet >= MAX_PACKET_BYTES or (packet := packet_of(order)) <= max_packet:
        return ""
    return f"MessageTooLarge: its order takes {packet} bytes; {its_limit(max_packet)}"


def trimmed(order: Order, max_packet: int) -> Order:
    """Return the order, shortened to fit in a packet: its oldest steps are dropped first, then its places.

    A device whose model is older than the remaining steps fetches the whole model.
    """
    while order.steps and packet_of(order) > max_packet:
        order = msgspec.structs.replace(order, steps=order.steps[1:])
    if packet_of(order) > max_packet:
        order = msgspec.structs.replace(order, places=())
    return order


def require_sendable(run: Run, order: Order, device: str) -> Order:
    """Return the order. Raises ``StrategyError`` if it does not fit in a frame."""
    size = len(encode_body(order))
    if size > MAX_ORDER_BYTES:
        sizes = {
            key: len(msgspec.msgpack.encode(getattr(order, key))) for key in order.__struct_fields__
        }
        largest = max(sizes, key=sizes.__getitem__)
        raise StrategyError(
            f"{run.config.strategy}, {device}: an order of {size} bytes, of which {largest} takes "
            f"{sizes[largest]}, expected at most {MAX_ORDER_BYTES}"
        )
    return order
