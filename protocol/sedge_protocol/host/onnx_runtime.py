"""The one place that loads onnxruntime and opens a program in it.

From 1.29 on the package reports to its maker, also on Linux: it looks up a telemetry host, writes a device
id and a spool of events below the user's cache folder. Only this variable, set before the import, stops
all of it; ``disable_telemetry_events`` comes too late.
"""

import os
from types import ModuleType
from typing import Any

from sedge_protocol.wire.program import check_program


def library() -> ModuleType:
    """The package, silenced. Raises ``ImportError`` when it is not installed or broken."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    found: ModuleType = onnxruntime
    return found


def open_session(program: bytes, options: Any) -> Any:
    """An ``InferenceSession`` of a program with these ``SessionOptions``, on the CPU.

    Raises ``CodecError`` for a program that ``check_program`` refuses, else what onnxruntime raises.
    """
    check_program(program)
    # Otherwise bytes 4 to 7 decide: "ORTM" makes it another format, which nobody has checked.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    return library().InferenceSession(program, options, providers=["CPUExecutionProvider"])
