"""What devices can do, as announced in their hellos, and what a run's work needs."""

from collections.abc import Callable, Sequence

import msgspec

from sedge_cloud.runs.run import Run
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.bundle import FROZEN, WITHOUT_PROGRAMS
from sedge_protocol.wire.extensions import COMMON_VALUES
from sedge_protocol.wire.frame import MAX_PACKET_BYTES
from sedge_protocol.wire.message_limit import PACKET_SIZES
from sedge_protocol.wire.messages import Codec, Hello
from sedge_protocol.wire.transfer import (
    DIGEST_BYTES,
    PACKET_OVERHEAD,
    chunk_size,
    fitting_chunk,
)

# What an order takes besides its digests of bundle and model: keys, work, one step, a small patch.
ORDER_BYTES = 2048


def lacking(run: Run) -> Callable[[Hello], list[str]]:
    """What a device lacks to do a run's work.

    It must run one of the run's programs, or need none, decode broadcasts and patches, and have memory for
    the bundle's frozen data and for a step of the smallest form that the run's strategy may give it.
    """
    backends = {program.backend for program in run.manifest.programs} | WITHOUT_PROGRAMS
    broadcast, patch = run.config.broadcast, run.config.patch
    # Every device has zlib, bundles included, and what is not compressed needs no announcement.
    compressions = {broadcast.compression, patch.compression} - {Compression.NONE, Compression.ZLIB}
    frozen = run.manifest.frozen
    codings = {broadcast.values, run.patch_values}.difference(COMMON_VALUES)
    narrowest = len(run.manifests) - 1 if run.strategy.widths_vary else 0
    needed = packets_for(run)
    words: set[str] = {*codings, *([] if frozen is None else [FROZEN])}

    def missing(hello: Hello) -> list[str]:
        too_large: list[str] = []
        if frozen is not None and not frozen.fits(hello.memory_mb):
            too_large.append(f"memory for {frozen.blob.size / 1e6:.0f} MB of frozen data")
        runs = backends.intersection(hello.backends)
        return [
            *([] if runs else [f"a backend of {', '.join(sorted(backends))}"]),
            *sorted(compressions.difference(hello.compressions)),
            *sorted(words.difference(hello.codecs)),
            *(too_large or without_memory(run, hello, narrowest)),
            *without_link(needed, hello),
        ]

    return missing


def without_memory(run: Run, hello: Hello, width: int) -> list[str]:
    """The memory that a device lacks for a step of one of the run's forms, in words; nothing if it fits."""
    needed = run.manifests[width].memory_mb(hello.backends)
    if not 0 < hello.memory_mb < needed:
        return []
    return [f"memory for a step: {needed} MB, of which it has {hello.memory_mb}"]


def packets_for(run: Run) -> list[int]:
    """The packet sizes that have room for the run's orders; none where not even a frame has."""
    frozen = run.manifest.frozen
    sizes = [run.bundles[0].size, run.model_bytes()]

    def fits(limit: int) -> bool:
        chunk_bytes, named = fitting_chunk(limit), sizes
        if (
            frozen is not None
            and chunk_size(frozen.blob.size, chunk_bytes) != frozen.blob.chunk_bytes
        ):
            named = [*sizes, frozen.blob.size]
        cuts = [chunk_size(size, chunk_bytes) for size in named]
        digests = sum(-(-size // cut) for size, cut in zip(named, cuts, strict=True))
        is_room_for_chunks = max(cuts) <= limit - PACKET_OVERHEAD
        return is_room_for_chunks and ORDER_BYTES + digests * DIGEST_BYTES <= limit

    return [limit for limit in PACKET_SIZES if fits(limit)]


def without_link(needed: Sequence[int], hello: Hello) -> list[str]:
    """The broker that a device lacks for a run's orders, in words; nothing if they fit.

    ``needed`` are the packet sizes that do (``packets_for``).
    """
    limit = hello.max_packet or MAX_PACKET_BYTES
    if not needed or limit >= needed[0]:
        return []
    return [f"a broker that takes messages of {needed[0]} bytes, {its_limit(limit)}"]


def its_limit(limit: int) -> str:
    """How large messages may be, and what sets it, for people."""
    return f"this one takes {limit} (Mosquitto: message_size_limit or max_packet_size)"


def widest(run: Run, hello: Hello) -> int:
    """The widest of the run's forms that fits into a device's memory; the last where none does."""
    fits = (width for width in range(len(run.manifests)) if not without_memory(run, hello, width))
    return next(fits, len(run.manifests) - 1)


def codec_for(codec: Codec, hello: Hello | None) -> Codec:
    """How a device codes its update: as the run wants it, or the nearest coding that it supports."""
    if hello is None:
        return codec
    is_known = codec.compression is not Compression.ZSTD or Compression.ZSTD in hello.compressions
    values_known = codec.values in COMMON_VALUES or codec.values in hello.codecs
    return msgspec.structs.replace(
        codec,
        values=codec.values if values_known else ValueCoding.INT8,
        compression=codec.compression if is_known else Compression.ZLIB,
    )
