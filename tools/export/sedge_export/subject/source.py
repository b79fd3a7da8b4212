"""Describes briefly where in the user's source an error or an operator comes from."""

import re
import traceback
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import nn
from torch._ops import OpOverload

import sedge_edge
import sedge_export

_TORCH = str(Path(torch.__file__).parent)
_OURS = (*sedge_edge.__path__, *sedge_export.__path__)
_PYTHON = str(Path(traceback.__file__).parent)


def bare_name(operator: OpOverload) -> str:
    """Return the operator's name without overload, leading or trailing underscores and ``_backward``."""
    name = operator._schema.name.rpartition("::")[2]
    return re.sub(r"_backward.*$", "", name).strip("_")


def users(frames: Iterable[traceback.FrameSummary]) -> traceback.FrameSummary | None:
    """Return the innermost frame in the user's code: outside Python's library, torch and Sedge."""
    for frame in reversed(list(frames)):
        standard = frame.filename.startswith(_PYTHON) and "site-packages" not in frame.filename
        if not standard and not frame.filename.startswith((_TORCH, *_OURS, "<")):
            return frame
    return None


def here() -> str:
    """Return the line of user code now executing, as ``net.py:31``; "" if there is none."""
    frame = users(traceback.extract_stack())
    return f"{Path(frame.filename).name}:{frame.lineno}" if frame else ""


def place(exc: BaseException) -> str:
    """Return where an error was raised, as `` in Net at net.py:31, `x = x.view(-1, 1024)` ``."""
    module = ""
    for entry, _ in traceback.walk_tb(exc.__traceback__):
        owner = entry.f_locals.get("self")
        if entry.f_code.co_name == "_call_impl" and isinstance(owner, nn.Module):
            module = f" in {type(owner).__name__}"
    frame = users(traceback.extract_tb(exc.__traceback__))
    line = f" at {Path(frame.filename).name}:{frame.lineno}, `{frame.line}`" if frame else ""
    return module + line


def reason(exc: BaseException) -> str:
    """Return the class name of an error and the first line of its message."""
    return f"{type(exc).__name__}: {str(exc).strip().partition(chr(10))[0]}"
