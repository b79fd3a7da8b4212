"""Runs ONNX programs in onnxruntime, for their verification."""

from collections.abc import Mapping
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sedge_export.programs import Array, Program
from sedge_protocol.errors import ExportError
from sedge_protocol.host.onnx_runtime import library, open_session


def load_program(name: str, data: bytes) -> Program:
    """Load a program in onnxruntime, on one thread. Returns a function from named arrays to named arrays.

    Raises ``ExportError`` for a program that onnxruntime rejects.
    """
    options = library().SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    try:
        session = open_session(data, options)
    except Exception as exc:  # onnxruntime's exceptions have no common base class
        raise ExportError(f"program {name!r} cannot be loaded: {exc}") from exc
    names = [output.name for output in session.get_outputs()]

    def run(feed: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        try:
            outputs = session.run(names, dict(feed))
            return dict(zip(names, cast(list[NDArray[np.float32]], outputs), strict=True))
        except Exception as exc:
            raise ExportError(f"program {name!r}: onnxruntime cannot run it: {exc}") from exc

    return run
