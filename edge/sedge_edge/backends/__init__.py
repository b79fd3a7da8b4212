"""The runtimes that execute a bundle's programs, and the choice of one.

A backend loads its library when it is opened, so importing the agent loads none.
"""

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import NamedTuple

from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import ONNXRUNTIME, Bundle

AUTO = "auto"


class Backend(NamedTuple):
    """A runtime: its package and distribution, the command that installs it, and what opens a bundle.

    ``open`` raises ``ImportError`` when the package is broken, ``CodecError`` for a bundle's program that
    cannot be loaded.
    """

    package: str
    distribution: str
    install: str
    open: Callable[[Bundle, int], Trainer]

    @property
    def installed(self) -> bool:
        """Whether the package is there, found without loading it."""
        return find_spec(self.package) is not None


def _onnxruntime(bundle: Bundle, threads: int) -> Trainer:
    from sedge_edge.backends.bundle_trainer import BundleTrainer
    from sedge_edge.backends.onnx_runtime import OnnxProgram

    return BundleTrainer(bundle, ONNXRUNTIME, OnnxProgram, threads)


# In the order in which "auto" prefers them.
BACKENDS = {
    ONNXRUNTIME: Backend(
        "onnxruntime", "onnxruntime", "pip install 'sedge-fl[onnx]'", _onnxruntime
    ),
}


def installed_backends() -> dict[str, str]:
    """The installed backends and their versions."""
    return {name: version(row.distribution) for name, row in BACKENDS.items() if row.installed}


def open_trainer(bundle: Bundle, backend: str, threads: int) -> Trainer:
    """A trainer for the bundle on ``backend``; "auto" takes the preferred one of those that work.

    Raises ``ConfigError`` when there is none, ``CodecError`` for a program that cannot be loaded.
    """
    offered = bundle.backends()
    wanted = BACKENDS if backend == AUTO else (backend,)
    known = [name for name in wanted if name in BACKENDS and name in offered]
    if not known:
        expected = f"one of those in the bundle: {', '.join(offered) or 'none'}"
        raise ConfigError("backend.name", backend, expected)
    broken: ImportError | None = None
    for name in known:
        if BACKENDS[name].installed:
            try:
                return BACKENDS[name].open(bundle, threads)
            except ImportError as exc:
                broken = exc
    ways = " or ".join(f"{name} ({BACKENDS[name].install})" for name in known)
    raise ConfigError("backend.name", backend, f"a working backend: {ways}") from broken
