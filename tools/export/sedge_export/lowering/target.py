"""The runtimes that programs are compiled for, by the name of the device's backend."""

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
    """One runtime: how programs are lowered to it, and run in it for verification."""

    @property
    def packages(self) -> tuple[str, ...]:
        """The packages whose versions the manifest records."""
        ...

    def check_installed(self) -> None:
        """Load the runtime. Raises ``ExportError``, saying what to install, if a package is missing."""
        ...

    def lower(
        self,
        graphs: Mapping[str, fx.GraphModule],
        signatures: Mapping[str, Signature],
        where: Where,
    ) -> dict[str, File]:
        """The file of each program, from traced graphs by program name; programs may share one.

        Raises ``ExportError`` naming the first operator that cannot be lowered; ``where`` says which module
        of the model it came from.
        """
        ...

    def load(self, data: bytes, signature: Signature) -> Program:
        """A program loaded from its file, as a function. Raises ``ExportError`` if it is refused."""
        ...


class _Onnx:
    """ONNX files, one for each program, in onnxruntime."""

    packages = ("onnx", "onnxruntime")

    def check_installed(self) -> None:
        """onnxruntime is required by the extra ``export``."""
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
        """``gradient.onnx`` and so on."""
        return {
            name: File(f"{name}.onnx", to_onnx(graph, *signatures[name], where))
            for name, graph in graphs.items()
        }

    def load(self, data: bytes, signature: Signature) -> Program:
        """The program in an onnxruntime session on one thread."""
        return load_program(signature.program, data)


class _Executorch:
    """One file with a method for each program, in ExecuTorch with XNNPACK."""

    packages = ("executorch",)

    def check_installed(self) -> None:
        """ExecuTorch has its own extra."""
        runtime.library()

    def lower(
        self,
        graphs: Mapping[str, fx.GraphModule],
        signatures: Mapping[str, Signature],
        where: Where,
    ) -> dict[str, File]:
        """``programs.pte`` for every program."""
        return dict.fromkeys(graphs, File("programs.pte", to_executorch(graphs, where)))

    def load(self, data: bytes, signature: Signature) -> Program:
        """The file's method of the program's name, on one thread."""
        return runtime.load(data, *signature)


TARGETS: dict[str, Target] = dict(zip(BACKENDS, (_Onnx(), _Executorch()), strict=True))
