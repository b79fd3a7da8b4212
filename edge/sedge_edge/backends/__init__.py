"""The runtimes that execute a bundle's programs, and the choice of one.

A backend loads its library when it is opened, so importing the agent loads none.
"""

from importlib.util import find_spec

from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle

AUTO = "auto"
# The backends of this version, and the command that installs each.
INSTALL = {ONNXRUNTIME: "pip install 'sedge-fl[onnx]'"}


def open_trainer(bundle: Bundle, backend: str, threads: int) -> Trainer:
    """A trainer for the bundle on ``backend``; "auto" takes the first of the bundle's that is installed.

    Raises ``ConfigError`` when there is none, ``CodecError`` for a program that cannot be loaded.
    """
    offered = bundle.backends()
    wanted = offered if backend == AUTO else (backend,)
    for name in wanted:
        if name in offered and name in INSTALL and find_spec(name) is not None:
            from sedge_edge.backends.onnx_runtime import OnnxTrainer

            return OnnxTrainer(bundle, threads)
    ways = [f"{name} ({INSTALL[name]})" for name in wanted if name in INSTALL and name in offered]
    expected = " or ".join(ways) or f"one of those in the bundle: {', '.join(offered)}"
    raise ConfigError("backend.name", backend, f"an installed backend: {expected}")
