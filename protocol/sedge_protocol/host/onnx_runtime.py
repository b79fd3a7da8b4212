"""The one place that loads onnxruntime and opens a program in it.

Since 1.29 the package sends telemetry to its maker, even on Linux: it looks up a telemetry host and writes
a device id and a queue of events to the user's cache folder. Only this variable, set before the import,
stops all of it; ``disable_telemetry_events`` comes too late.
"""

import os
from types import ModuleType
from typing import Any

from sedge_protocol.wire.program import check_program


def library() -> ModuleType:
    """Import onnxruntime with telemetry off. Raises ``ImportError`` when it is missing or broken."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    module: ModuleType = onnxruntime
    return module


def open_session(program: bytes, options: Any) -> Any:
    """An ``InferenceSession`` of a program with these ``SessionOptions``, on the CPU.

    Raises ``CodecError`` for a program that ``check_program`` refuses, and whatever onnxruntime raises.
    """
    check_program(program)
    # Otherwise bytes 4 to 7 decide: "ORTM" selects another format, which has not been checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return library().InferenceSession(program, options, providers=["CPUExecutionProvider"])
