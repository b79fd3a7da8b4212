"""What devices can do, as they say in their hello, and what is asked only of those that can."""

from collections.abc import Callable

import msgspec

from sedge_cloud.config import RunConfig
from sedge_cloud.store.runs import Run
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.wire.messages import Codec, Hello, Training, Work

# What every device decodes and codes; other value codings it must announce.
COMMON_VALUES = (ValueCoding.FP32, ValueCoding.FP16, ValueCoding.BF16, ValueCoding.INT8)

# In a hello's codecs: the device adds a vector to its gradients.
CORRECTION = "correction"


def capable(run: Run) -> Callable[[Hello], bool]:
    """Whether a device can do a run's work.

    That is: run one of its programs, and decode what devices get, the bundle, models and patches.
    """
    backends = {program.backend for program in run.manifest.programs}
    broadcast, patch = run.config.broadcast, run.config.patch
    # A bundle is zstd, and nobody needs to announce what is not compressed.
    compressions = {Compression.ZSTD, broadcast.compression, patch.compression}
    compressions.discard(Compression.NONE)

    def able(hello: Hello) -> bool:
        return (
            bool(backends.intersection(hello.backends))
            and compressions.issubset(hello.compressions)
            and decodes(hello, patch.values)
        )

    return able


def decodes(hello: Hello, values: ValueCoding) -> bool:
    """Whether a device knows this precision."""
    return values in COMMON_VALUES or values in hello.codecs


def needed_features(work: Work, training: Training) -> frozenset[str]:
    """What a device must announce for this work; ``training`` is the run's."""
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
    """How a device codes its update: as the run says, or the nearest that the device can."""
    codec: Codec = config.codec
    if hello is None:
        return codec
    known = {*hello.compressions, Compression.NONE}
    wanted = (codec.compression, Compression.ZSTD, Compression.ZLIB, Compression.NONE)
    return msgspec.structs.replace(
        codec,
        values=codec.values if decodes(hello, codec.values) else ValueCoding.INT8,
        compression=next(compression for compression in wanted if compression in known),
    )
