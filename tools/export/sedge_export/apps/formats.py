"""The file formats for models in apps, by file extension. Each format has a compiler and a runtime.

A model maps x (B, ...) to logits (B, C). Its weights are constants in the file.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sedge_edge.backends.rows import CLASSIFICATION
from sedge_export.apps.quantize import quantized_module, quantized_onnx
from sedge_export.lowering.executorch import runtime
from sedge_export.lowering.onnx.inference import PLAIN_LOWERINGS, fold_batch_norms
from sedge_export.lowering.onnx.to_onnx import to_onnx
from sedge_export.stages import Where
from sedge_export.subject.network import Network
from sedge_export.tracing.trace import trace
from sedge_protocol.errors import ExportError, SedgeError
from sedge_protocol.host.onnx_runtime import library

Array: TypeAlias = NDArray[np.generic]
Run: TypeAlias = Callable[[Array], NDArray[np.float32]]


class Format(Protocol):
    """A file format. Every method raises ``ExportError`` if the format's tools reject the model."""

    name: str

    def check_installed(self) -> None:
        """Raise ``ExportError``, saying what to install, if a package is missing."""
        ...

    def compiled(self, model: nn.Module, x: Tensor, where: Where) -> bytes:
        """Compile a model in evaluation mode, for batches like ``x``. Returns the content of the file.

        ``where`` says which module an operator came from, for error messages.
        """
        ...

    def quantized(
        self, model: nn.Module, x: Tensor, where: Where, batches: Iterable[Tensor]
    ) -> bytes:
        """Compile the model in int8. ``batches`` are used to find the ranges of its activations."""
        ...

    def load(self, data: bytes) -> Run:
        """Load a file in its own runtime, on one thread.

        Returns a function from x (B, ...) to logits (B, C).
        """
        ...


class _OnnxFormat:
    name = "ONNX Runtime"

    def check_installed(self) -> None:
        """Do nothing: the extra ``export`` installs onnxruntime."""

    def compiled(self, model: nn.Module, x: Tensor, where: Where) -> bytes:
        network = Network(model, CLASSIFICATION)
        network.model.eval()
        values = network.split(torch.from_numpy(network.theta))

        def predict(rows: Tensor) -> Tensor:
            return network.output(values, rows)[0]

        with network.unchanged():
            graph = trace(predict, [x])
        fold_batch_norms(graph)
        program = to_onnx(graph, "predict", ["x"], ["logits"], where, PLAIN_LOWERINGS)
        with _refused(self.name):
            return _constants_folded(program)

    def quantized(
        self, model: nn.Module, x: Tensor, where: Where, batches: Iterable[Tensor]
    ) -> bytes:
        program = self.compiled(model, x, where)
        with _refused(self.name):
            return quantized_onnx(program, batches)

    def load(self, data: bytes) -> Run:
        with _refused(self.name):
            session = library().InferenceSession(data, _options(), ["CPUExecutionProvider"])

        def run(x: Array) -> NDArray[np.float32]:
            with _refused(self.name):
                return cast(NDArray[np.float32], session.run(["logits"], {"x": x})[0])

        return run


def _options() -> Any:
    options = library().SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _constants_folded(program: bytes) -> bytes:
    """Fold constants with onnxruntime's basic optimisation, which uses only standard ONNX operators."""
    options, ort = _options(), library()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        options.optimized_model_filepath = str(path)
        ort.InferenceSession(program, options, ["CPUExecutionProvider"])
        model = onnx.load(path)
    # onnxruntime declares every domain that it knows, not only those in use.
    domains = {node.domain for node in model.graph.node}
    kept = [opset for opset in model.opset_import if opset.domain in domains]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    folded: bytes = model.SerializeToString()
    return folded


class _ExecutorchFormat:
    name = "ExecuTorch"

    def check_installed(self) -> None:
        runtime.library()

    def compiled(self, model: nn.Module, x: Tensor, where: Where) -> bytes:
        with _refused(self.name):
            return _pte(model, x)

    def quantized(
        self, model: nn.Module, x: Tensor, where: Where, batches: Iterable[Tensor]
    ) -> bytes:
        with _refused(self.name):
            return _pte(quantized_module(model, x, batches), x)

    def load(self, data: bytes) -> Run:
        program = runtime.load(data, "forward", ("x",), ("logits",))
        return lambda x: program({"x": x})["logits"]


def _pte(model: nn.Module, x: Tensor) -> bytes:
    """Compile the model to a file with one method, ``forward``, using ExecuTorch's standard steps."""
    exir: Any = import_module("executorch.exir")
    xnnpack: Any = import_module("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    program = torch.export.export(model, (x,))
    edge = exir.to_edge_transform_and_lower(program, partitioner=[xnnpack.XnnpackPartitioner()])
    return bytes(edge.to_executorch().buffer)


@contextmanager
def _refused(name: str) -> Generator[None]:
    """Turn any exception raised by a runtime's tools into an ``ExportError``; they share no base class."""
    try:
        with runtime.quiet():
            yield
    except SedgeError:
        raise
    except Exception as exc:
        reason = str(exc).strip().partition("\n")[0]
        raise ExportError(f"{name} refuses the model: {type(exc).__name__}: {reason}") from exc


FORMATS: dict[str, Format] = {".onnx": _OnnxFormat(), ".pte": _ExecutorchFormat()}
