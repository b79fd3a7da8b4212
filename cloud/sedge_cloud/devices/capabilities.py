"""What devices can do, as announced in their hellos, and what a run's work needs."""

from collections.abc import Callable

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.store.runs import Run
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.messages import Codec, Hello, Training, Work

# Every device supports these value codings; it must announce all others.
COMMON_VALUES = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.INT8)

# In a hello's codecs: the device adds a vector to its gradients.
CORRECTION = "correction"


def capable(run: Run) -> Callable[[Hello], bool]:
    """Whether a device can do a run's work.

    It must run one of its programs, and decode the bundle, broadcasts and patches.
    """
    backends = {program.backend for program in run.manifest.programs}
    broadcast, patch = run.config.broadcast, run.config.patch
    # Bundles are always zstd, and no compression needs no announcement.
    compressions = {Compression.ZSTD, broadcast.compression, patch.compression}
    compressions.discard(Compression.NONE)
    codings = {broadcast.values, patch.values}.difference(COMMON_VALUES)

    def able(hello: Hello) -> bool:
        return (
            bool(backends.intersection(hello.backends))
            and compressions.issubset(hello.compressions)
            and codings.issubset(hello.codecs)
        )

    return able


def needed_features(work: Work, training: Training) -> frozenset[str]:
    """The features that a device must announce for this work; ``training`` is the run's."""
    wanted = {
        "freeze": any(phase.freeze for phase in (work.training or training, *work.trainings)),
        "phases": bool(work.then),
        "own_model": work.own_model is not None,
        "select": work.select is not None,
        "scoring": work.scoring is not None,
        "remember": work.remember,
        "choice": work.choice is not None,
    }
    return frozenset(feature for feature, is_wanted in wanted.items() if is_wanted)


def codec_for(config: RunConfig, hello: Hello | None) -> Codec:
    """How a device codes its update: as the run says, or the nearest coding that it supports."""
    codec: Codec = config.codec
    if hello is None:
        return codec
    supported = {*hello.compressions, Compression.NONE}
    wanted = (codec.compression, Compression.ZSTD, Compression.ZLIB, Compression.NONE)
    values_known = codec.values in COMMON_VALUES or codec.values in hello.codecs
    return msgspec.structs.replace(
        codec,
        values=codec.values if values_known else ValueCoding.INT8,
        compression=next(compression for compression in wanted if compression in supported),
    )
