"""The hello that an emulated device announces, except for the sizes of its data and its memory."""

from pathlib import Path

from sedge_edge.backends import AUTO, impossible_features
from sedge_edge.training.job import CODECS
from sedge_protocol.wire.bundle import FUNCTION, ONNXRUNTIME
from sedge_protocol.wire.messages import Hello


def announced(backend: str, base: Path) -> Hello:
    """Build the hello of a device that trains with ``backend``. User code is looked up in ``base``.

    Raises ``ConfigError`` for a function that cannot be imported.
    """
    is_function = ":" in backend
    missing = impossible_features(backend if is_function else AUTO, base)
    codecs = tuple(codec for codec in CODECS if codec not in missing)
    backends = (FUNCTION if is_function else ONNXRUNTIME,)
    return Hello(bytes(16), "emulated", backends, ("zstd", "zlib", "none"), codecs)


PROGRAMS = announced(AUTO, Path())
