"""A device's order as it goes on the wire: what it gets in a round, and how it codes what it sends.

Made again from the same rows and the same hello, it is the same but for the time that is left.
"""

from collections.abc import Callable, Iterator

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.devices.downloads import Served
from sedge_cloud.rounds.client_models import Hellos
from sedge_cloud.rounds.lifecycle import OpenRound, order_seed
from sedge_cloud.store.runs import Run
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import LocalError
from sedge_protocol.wire.frame import MAX_BODY_BYTES
from sedge_protocol.wire.messages import EVALUATE, Codec, Hello, Order, Step, encode_body
from sedge_protocol.wire.transfer import Manifest

# What every device decodes and codes; other value codings it must announce.
COMMON_VALUES = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.INT8)

# What an order may have: its codec and the time left may take more bytes when it is made again.
MAX_ORDER_BYTES = MAX_BODY_BYTES - 512

Describe = Callable[[bytes], Manifest]


def make_order(
    run: Run, current: OpenRound, name: str, hello: Hello | None, manifest: Describe, now: float
) -> Order:
    """The order of a device of the round; ``manifest`` describes a stored blob."""
    row, given = current.row, current.orders[name]
    details = given.read_details()
    steps = () if given.model else current.steps
    return Order(
        run=row.run,
        round=row.round,
        task="evaluate" if row.task == EVALUATE else "train",
        bundle=run.bundles[given.width],
        model=manifest(given.model or row.model),
        model_hash=given.model_hash or row.model_hash,
        steps=tuple(Step(step.base_hash, manifest(step.blob)) for step in steps),
        patch=given.patch,
        patch_blob=manifest(given.patch_blob) if given.patch_blob else None,
        patch_hash=given.patch_hash,
        patch_context=manifest(given.patch_context) if given.patch_context else None,
        keep=msgspec.msgpack.decode(given.keep, type=tuple[str, ...]),
        upload=given.upload,
        training=details.training or run.config.training,
        then=details.then,
        personal=details.personal,
        select=details.select,
        own=details.own,
        choice=details.choice,
        remember=details.remember,
        codec=codec_for(run.config, hello),
        context=given.context,
        seed=order_seed(run.config.seed, row.round, name),
        deadline_ms=max(0, int((current.deadline - now) * 1000)),
    )


def require_sendable(run: Run, coming: OpenRound, hello: Hellos, manifest: Describe) -> None:
    """Raise ``LocalError`` for a round with an order that is larger than a frame.

    To be asked before the round is stored: one that is can only end with its run.
    """
    for name in coming.orders:
        order = make_order(run, coming, name, hello(name), manifest, 0.0)
        size = len(encode_body(order))
        if size > MAX_ORDER_BYTES:
            sizes = {
                key: len(msgspec.msgpack.encode(getattr(order, key)))
                for key in order.__struct_fields__
            }
            largest = max(sizes, key=sizes.__getitem__)
            raise LocalError(
                f"{run.strategy.name}, {name}: an order of {size} bytes, of which {largest} takes "
                f"{sizes[largest]}, expected at most {MAX_ORDER_BYTES}"
            )


def served(run: Run, current: OpenRound, name: str, manifest: Describe) -> Iterator[Served]:
    """What a device of the round may ask for: what the round's orders have in common, then its own."""
    given, waiting = current.orders[name], max(1, len(current.present))
    yield Served(run.bundles[given.width], min(waiting, current.widths[given.width]))
    if not given.model:
        users = min(waiting, current.users[current.row.model])
        for blob in (current.row.model, *(step.blob for step in current.steps)):
            yield Served(manifest(blob), users)
    for blob in (given.model, given.patch_blob, given.patch_context):
        if blob:
            users = current.users[blob]
            yield Served(manifest(blob), min(users, waiting) if users > 1 else 0)


def codec_for(config: RunConfig, hello: Hello | None) -> Codec:
    """How a device codes its update: as the run says, or the nearest that the device can."""
    codec: Codec = config.codec
    if hello is None:
        return codec
    known = {*hello.compressions, Compression.NONE}
    wanted = (codec.compression, Compression.ZSTD, Compression.ZLIB, Compression.NONE)
    values_known = codec.values in COMMON_VALUES or codec.values in hello.codecs
    return msgspec.structs.replace(
        codec,
        values=codec.values if values_known else ValueCoding.INT8,
        compression=next(compression for compression in wanted if compression in known),
    )
