"""Runs programs, as ONNX graphs, in the stock onnxruntime package. Inputs and outputs have names.

The settings are based on measurements. With onnxruntime's defaults, a whole round (4-layer CNN, 582,026
parameters, batch 32, 1 thread, onnxruntime 1.31, x86) takes 111 MiB of memory at its peak. It takes 102
MiB, at the same speed, without memory patterns and with a single arena for all sessions, which grows by the
requested amount instead of doubling. Without any arena, the steps of a small model (MLP, 159,010
parameters) take 1.2 times as long. Binding the gradient to a buffer (IOBinding) gains nothing: a copy of
2.3 MB is cheap compared with a step.
"""

from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sedge_edge.backends.bundle_trainer import Arrays, BindPredict, loading
from sedge_protocol.errors import CodecError
from sedge_protocol.host.memory_limit import memory_mb
from sedge_protocol.host.onnx_runtime import library, open_session
from sedge_protocol.layout import Theta
from sedge_protocol.wire.binding import bound_predict
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.programs import Signature, signatures


class _Named(Protocol):
    name: str


class _OnnxSession(Protocol):
    """The part of ``onnxruntime.InferenceSession`` that we use. The package has no types."""

    def run(
        self, outputs: tuple[str, ...], feeds: Arrays, options: object
    ) -> list[NDArray[np.float32]]: ...
    def get_inputs(self) -> list[_Named]: ...
    def get_outputs(self) -> list[_Named]: ...


@lru_cache(maxsize=1)
def _share_arena() -> None:
    """Create one memory arena for all sessions of the process. It grows by the requested amounts.

    It is limited to less than the device's memory, so that a program that needs more fails without
    affecting others.
    """
    ort = library()
    where = ort.OrtMemoryInfo(
        "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
    )
    same_as_requested = 1
    growth = {
        "max_mem": memory_mb() * 10**6 * 3 // 4,  # 0 (memory unknown) sets no limit
        "arena_extend_strategy": same_as_requested,
        "initial_chunk_size_bytes": 2**20,
        "max_dead_bytes_per_chunk": 2**20,
    }
    ort.create_and_register_allocator(where, ort.OrtArenaCfg(growth))


class OnnxProgram:
    """A ``LoadedProgram`` that runs in its own session.

    Raises ``ImportError`` if onnxruntime is missing.
    """

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        onnxruntime = library()
        options = onnxruntime.SessionOptions()
        options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Errors only, because nobody on a device could act on a warning.
        options.log_severity_level = 3
        options.enable_mem_pattern = False
        _share_arena()
        options.add_session_config_entry("session.use_env_allocators", "1")
        # Constants that are folded while loading are outside the arena, so fold only small ones.
        options.add_session_config_entry(
            "optimization.constant_folding_max_output_size_in_bytes", str(2**24)
        )
        # Spinning threads would take time and battery from the device's other work.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session: _OnnxSession = open_session(data, options)
        self._outputs = signature.outputs
        self._run_options = onnxruntime.RunOptions()
        self._last_run_options = onnxruntime.RunOptions()
        self._last_run_options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        takes = [node.name for node in self._session.get_inputs()]
        gives = [node.name for node in self._session.get_outputs()]
        if set(takes) != set(signature.inputs) or not set(signature.outputs) <= set(gives):
            expected = f"{', '.join(signature.inputs)} and {', '.join(signature.outputs)}"
            found = f"it has inputs {', '.join(takes)} and outputs {', '.join(gives)}"
            raise CodecError(f"{found}, expected {expected}")

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """Run the program. Returns its outputs in order.

        The ``last`` run of a call returns unused memory to the system.
        """
        options = self._last_run_options if last else self._run_options
        return self._session.run(self._outputs, feeds, options)


def binding(bundle: Bundle, threads: int) -> BindPredict:
    """Return a function that loads the bundle's ``predict`` with theta built in.

    Work that depends only on theta is then done only once.
    """

    def opened(theta: Theta) -> OnnxProgram:
        data = bound_predict(bundle, theta)
        with loading(bundle, "predict"):
            return OnnxProgram(data, signatures()["predict"]._replace(inputs=("x",)), threads)

    return opened
