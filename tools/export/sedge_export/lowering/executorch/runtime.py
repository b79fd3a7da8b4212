"""ExecuTorch's Python package: imports it on demand, silences it, and runs programs for verification.

The package is large and optional. Importing it adds a handler to the root logger, compiling raises
warnings, and its C++ side writes to Python's standard streams.
"""

import io
import logging
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sedge_export.programs import Array, Program
from sedge_protocol.errors import ExportError

INSTALL = "pip install 'sedge-fl[export-executorch]'"


@contextmanager
def quiet() -> Generator[None]:
    """Suppress warnings, log records and output within a ``with`` block; exceptions are raised as usual."""
    root, nowhere = logging.getLogger(), io.StringIO()
    handlers, disabled = root.handlers[:], root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(nowhere), redirect_stderr(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers


@cache
def library() -> Any:
    """Import the package's bindings of the runtime, set to one thread.

    Raises ``ExportError`` if the package is missing.
    """
    with quiet():
        try:
            bindings = import_module("executorch.extension.pybindings.portable_lib")
            import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
        except ImportError as exc:
            raise ExportError(f"backend 'executorch' needs: {INSTALL} ({exc})") from exc
        bindings._unsafe_reset_threadpool(1)
    return bindings


@cache
def kernels() -> frozenset[str]:
    """Return the names of all operators that the runtime has kernels for, such as ``aten::add``."""
    return frozenset(name.partition(".")[0] for name in library()._get_operator_names())


def load(data: bytes, method: str, inputs: Sequence[str], outputs: Sequence[str]) -> Program:
    """Load one method of a file as a function from named arrays to named arrays.

    Raises ``ExportError`` if the runtime rejects the file. The returned function raises it if a run
    fails.
    """
    bindings = library()
    try:
        with quiet():
            # The method is loaded from ``data`` only when it first runs, so ``data`` must outlive it.
            module = bindings._load_for_executorch_from_buffer(data)
    except RuntimeError as exc:
        raise ExportError(f"program {method!r}: executorch cannot load it: {exc}") from exc

    def run(feed: Mapping[str, Array]) -> dict[str, NDArray[np.float32]]:
        tensors = tuple(
            torch.from_numpy(np.require(feed[name], requirements="W")) for name in inputs
        )
        try:
            with quiet():
                results = module.run_method(method, tensors)
        except RuntimeError as exc:
            raise ExportError(f"program {method!r}: executorch cannot run it: {exc}") from exc
        assert data  # keeps a reference to the bytes, see above
        return {name: result.numpy() for name, result in zip(outputs, results, strict=True)}

    return run
