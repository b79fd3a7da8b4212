"""Loads onnxruntime and opens programs in it. No other module imports it.

Since 1.29 the package sends telemetry to its vendor, even on Linux: it looks up a telemetry host and writes
a device id and a queue of events to the user's cache folder. Only the environment variable set here, before
the import, prevents all of that; ``disable_telemetry_events`` comes too late.
"""

import os
from types import ModuleType
from typing import Any

from sedge_protocol.wire.program import check_program


def library() -> ModuleType:
    """Import onnxruntime with telemetry off. Raises ``ImportError`` if it is missing or broken."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    module: ModuleType = onnxruntime
    return module


def open_session(program: bytes, options: Any) -> Any:
    """Open an ``InferenceSession`` for a program on the CPU, with the given ``SessionOptions``.

    Raises ``CodecError`` for a program that ``check_program`` refuses, and whatever onnxruntime raises.
    """
    check_program(program)
    # Without this option bytes 4 to 7 select the format: with "ORTM" it would be one that ``check_program``
    # has not checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return library().InferenceSession(program, options, providers=["CPUExecutionProvider"])
