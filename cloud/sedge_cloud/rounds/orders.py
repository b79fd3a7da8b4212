"""A device's order as it goes on the wire: what it gets in a round, and how it codes what it sends.

Made again from the same rows and the same hello, it is the same but for the time that is left.
"""

from collections.abc import Callable, Sequence

import msgspec

from sedge_cloud.devices.capabilities import codec_for, decodes
from sedge_cloud.devices.downloads import Describe
from sedge_cloud.rounds.plans import order_seed
from sedge_cloud.store.broadcast import steps_since
from sedge_cloud.store.rows import OrderRow, RoundRow
from sedge_cloud.store.runs import Run
from sedge_cloud.store.schema import StepRow
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.frame import MAX_BODY_BYTES
from sedge_protocol.wire.messages import EVALUATE, Hello, Order, Step, encode_body

# What an order may have: its codec and the time left may take more bytes when it is made again.
MAX_ORDER_BYTES = MAX_BODY_BYTES - 512
# A step up to this size travels inside the orders, to each device alone. Asking for it costs a device 500
# bytes and a round trip.
INLINE_STEP_BYTES = 4096


def make_order(
    run: Run,
    row: RoundRow,
    steps: Sequence[StepRow],
    given: OrderRow,
    hello: Hello | None,
    describe: Describe,
    left_s: float,
) -> Order:
    """A device's order of a round with ``left_s`` seconds left; ``steps`` are the round's, decoded."""
    work = given.read_work()
    if given.model or (hello is not None and not decodes(hello, run.config.broadcast.values)):
        steps = ()
    elif given.step:
        steps = (StepRow(given.holds, given.step, 0),)
    return Order(
        run=row.run,
        round=row.round,
        task="evaluate" if row.task == EVALUATE else "train",
        bundle=run.bundles[given.width],
        model=describe(given.model or row.model),
        model_hash=given.model_hash or row.model_hash,
        steps=tuple(
            Step(step.base_hash, describe(step.blob)) for step in steps_since(steps, given.holds)
        ),
        patch=given.patch,
        patch_blob=describe(given.patch_blob) if given.patch_blob else None,
        patch_hash=given.patch_hash,
        patch_context=describe(given.patch_context) if given.patch_context else None,
        correction=describe(given.correction) if given.correction else None,
        work=msgspec.structs.replace(work, training=work.training or run.config.training),
        codec=codec_for(run.config, hello),
        context=given.context,
        seed=order_seed(run.config.seed, row.round, given.device),
        deadline_ms=max(0, int(left_s * 1000)),
    )


def with_step(order: Order, read: Callable[[bytes], bytes]) -> Order:
    """The order with its last step inside, where that is all that its device lacks, and small."""
    if len(order.steps) != 1 or order.steps[0].blob.size > INLINE_STEP_BYTES:
        return order
    found = msgspec.structs.replace(order, step=read(order.steps[0].blob.sha256))
    return found if len(encode_body(found)) <= MAX_ORDER_BYTES else order


def require_sendable(run: Run, order: Order, device: str) -> Order:
    """The same order. Raises ``LocalError`` for one that is larger than a frame."""
    size = len(encode_body(order))
    if size > MAX_ORDER_BYTES:
        sizes = {
            key: len(msgspec.msgpack.encode(getattr(order, key))) for key in order.__struct_fields__
        }
        largest = max(sizes, key=sizes.__getitem__)
        raise LocalError(
            f"{run.config.strategy}, {device}: an order of {size} bytes, of which {largest} takes "
            f"{sizes[largest]}, expected at most {MAX_ORDER_BYTES}"
        )
    return order
