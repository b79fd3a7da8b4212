"""Derives what a run's work requires of devices, and adapts the work to what their hellos announce."""

from collections.abc import Collection

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.terms import Terms, without_memory
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.bundle import WITHOUT_PROGRAMS
from sedge_protocol.wire.extensions import COMMON_VALUES
from sedge_protocol.wire.message_limit import PACKET_SIZES
from sedge_protocol.wire.messages import Hello
from sedge_protocol.wire.programs import FROZEN
from sedge_protocol.wire.transfer import (
    DIGEST_BYTES,
    PACKET_OVERHEAD,
    chunk_size,
    fitting_chunk,
)
from sedge_protocol.wire.work import Codec, Work

# The work of a strategy that needs nothing beyond the run's training.
PLAIN_WORK = Work()
# The size of an order without the digests of its bundle and model: keys, work, one step, a small patch.
ORDER_BYTES = 2048


def outline(config: RunConfig) -> Terms:
    """Return the requirements that follow from a run's configuration alone."""
    return Terms(
        strategy=config.strategy,
        select=config.cohort.select,
        total_rounds=config.total_rounds,
        min_updates=config.min_updates,
        min_available_devices=config.min_available_devices,
    )


def terms_of(run: Run, work: Work = PLAIN_WORK) -> Terms:
    """Return a run's requirements on devices for this work, without the features that its orders need.

    Devices must be able to decode broadcasts and patches, and have memory for a job with the smallest form
    of the model that the run's strategy may give them.
    """
    config, manifest, frozen = run.config, run.manifest, run.manifest.frozen
    # Every device supports zlib, which bundles need, and uncompressed data, so neither is a requirement.
    compressions = {config.broadcast.compression, config.patch.compression}
    codings = {config.broadcast.values, run.patch_values}.difference(COMMON_VALUES)
    return msgspec.structs.replace(
        outline(config),
        backends=_sorted({program.backend for program in manifest.programs} | WITHOUT_PROGRAMS),
        compressions=_sorted(compressions - {Compression.NONE, Compression.ZLIB}),
        codecs=_sorted({*codings, *([] if frozen is None else [FROZEN])}),
        frozen_bytes=0 if frozen is None else frozen.memory_bytes,
        memory_mb=memory_of(run, len(run.manifests) - 1 if run.strategy.widths_vary else 0, work),
        packets=packets_for(run),
        tensors={tensor.name: tensor.size for tensor in manifest.layout.tensors},
    )


def _sorted(names: Collection[str]) -> tuple[str, ...]:
    return tuple(sorted(str(name) for name in names))


def memory_of(run: Run, width: int, work: Work = PLAIN_WORK) -> dict[str, int]:
    """Return the memory for work with one of the run's forms, in MB per backend; 0 if unknown."""
    form = run.manifests[width]
    backends = {program.backend for program in form.programs if program.name == work.program}
    vectors = work.vectors(run.config.training)
    return {backend: form.memory_mb([backend], vectors, work.program) for backend in backends}


def packets_for(run: Run) -> tuple[int, ...]:
    """Return the packet sizes that are large enough for the run's orders; an empty tuple if none is."""
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

    return tuple(limit for limit in PACKET_SIZES if fits(limit))


def widest(run: Run, hello: Hello) -> int:
    """Return the index of the run's widest form that fits in a device's memory; the last if none fits."""
    widths = range(len(run.manifests))
    fits = (width for width in widths if not without_memory(memory_of(run, width), hello))
    return next(fits, widths[-1])


def codec_for(codec: Codec, hello: Hello | None) -> Codec:
    """Return the run's codec, with the nearest alternative to anything the device does not support."""
    if hello is None:
        return codec
    is_known = codec.compression is not Compression.ZSTD or Compression.ZSTD in hello.compressions
    values_known = codec.values in COMMON_VALUES or codec.values in hello.codecs
    return msgspec.structs.replace(
        codec,
        values=codec.values if values_known else ValueCoding.INT8,
        compression=codec.compression if is_known else Compression.ZLIB,
    )
