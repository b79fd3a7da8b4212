"""The runtimes that programs are compiled for, by backend name."""

from collections.abc import Mapping
from typing import Protocol

from torch import fx

from sedge_export.defaults import BACKENDS
from sedge_export.lowering.executorch import runtime
from sedge_export.lowering.executorch.to_executorch import to_executorch
from sedge_export.lowering.onnx.runtime import load_program
from sedge_export.lowering.onnx.to_onnx import to_onnx
from sedge_export.programs import File, Program
from sedge_export.stages import Where
from sedge_protocol.errors import ExportError
from sedge_protocol.host import onnx_runtime
from sedge_protocol.wire.programs import Signature

_INSTALL = "pip install 'sedge-fl[export]'"


class Target(Protocol):
    """A runtime: compiles programs for it, and runs them for verification."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions the manifest records."""
        ...

    def check_installed(self) -> None:
        """Load the runtime. Raises ``ExportError`` with installation advice if a package is missing."""
        ...

    def lower(
        self,
        graphs: Mapping[str, fx.GraphModule],
        signatures: Mapping[str, Signature],
        where: Where,
    ) -> dict[str, File]:
        """Compile traced graphs. Returns each program's file, by program name; programs may share a file.

        Raises ``ExportError`` naming the first operator that cannot be lowered; ``where`` says which
        module of the model it came from.
        """
        ...

    def load(self, data: bytes, signature: Signature) -> Program:
        """Load a program from its file as a function. Raises ``ExportError`` if the runtime rejects it."""
        ...


class _Onnx:
    """onnxruntime, with one ONNX file for each program."""

    packages = ("onnx", "onnxruntime")

    def check_installed(self) -> None:
        """Load onnxruntime, which the extra ``export`` installs."""
        try:
            onnx_runtime.library()
        except ImportError as exc:
            raise ExportError(f"backend 'onnxruntime' needs: {_INSTALL} ({exc})") from exc

    def lower(
        self,
        graphs: Mapping[str, fx.GraphModule],
        signatures: Mapping[str, Signature],
        where: Where,
    ) -> dict[str, File]:
        """Compile each graph to its own file, such as ``gradient.onnx``."""
        return {
            name: File(f"{name}.onnx", to_onnx(graph, *signatures[name], where))
            for name, graph in graphs.items()
        }

    def load(self, data: bytes, signature: Signature) -> Program:
        """Load the program in an onnxruntime session on one thread."""
        return load_program(signature.program, data)


class _Executorch:
    """ExecuTorch with XNNPACK, with one file that has a method for each program."""

    packages = ("executorch",)

    def check_installed(self) -> None:
        """Load ExecuTorch, which the extra ``export-executorch`` installs."""
        runtime.library()

    def lower(
        self,
        graphs: Mapping[str, fx.GraphModule],
        signatures: Mapping[str, Signature],
        where: Where,
    ) -> dict[str, File]:
        """Compile all graphs to one file, ``programs.pte``."""
        return dict.fromkeys(graphs, File("programs.pte", to_executorch(graphs, where)))

    def load(self, data: bytes, signature: Signature) -> Program:
        """Load the method with the program's name, on one thread."""
        return runtime.load(data, *signature)


TARGETS: dict[str, Target] = dict(zip(BACKENDS, (_Onnx(), _Executorch()), strict=True))
