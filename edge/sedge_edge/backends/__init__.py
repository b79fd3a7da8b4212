"""The runtimes that execute a bundle's programs, and the choice of one.

A backend loads its library when it is opened, so importing the agent loads none.
"""

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import NamedTuple

from sedge_edge.backends.trial import crash
from sedge_edge.memory_limit import memory_mb
from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import EXECUTORCH, ONNXRUNTIME, Bundle

AUTO = "auto"


class Backend(NamedTuple):
    """A runtime: its package and distribution, the command that installs it, and what opens a bundle.

    ``open`` raises ``ImportError`` when the package is broken, ``CodecError`` for a bundle's program that
    cannot be loaded. A trial run in another process comes first: once, or with ``tries_each`` for each
    program, where no check of ours says that it can do no harm.
    """

    package: str
    distribution: str
    install: str
    open: Callable[[Bundle, int], Trainer]
    tries_each: bool


def _onnxruntime(bundle: Bundle, threads: int) -> Trainer:
    from sedge_edge.backends.bundle_trainer import BundleTrainer
    from sedge_edge.backends.onnx_runtime import OnnxProgram

    return BundleTrainer(bundle, ONNXRUNTIME, OnnxProgram, threads)


def _executorch(bundle: Bundle, threads: int) -> Trainer:
    from sedge_edge.backends.bundle_trainer import BundleTrainer
    from sedge_edge.backends.executorch import ExecutorchProgram

    return BundleTrainer(bundle, EXECUTORCH, ExecutorchProgram, threads)


# The fastest first.
BACKENDS = {
    ONNXRUNTIME: Backend(
        "onnxruntime", "onnxruntime", "pip install 'sedge-fl[onnx]'", _onnxruntime, False
    ),
    EXECUTORCH: Backend(
        "sedge_executorch",
        "sedge-executorch",
        "pip install 'sedge-fl[executorch]'",
        _executorch,
        True,
    ),
}
# With less memory than this, "auto" takes the runtime that needs the least.
LITTLE_MEMORY_MB = 256


def installed_backends() -> dict[str, str]:
    """The installed backends and their versions, found without loading any."""
    found = {name: row for name, row in BACKENDS.items() if find_spec(row.package) is not None}
    return {name: _version(row.distribution) for name, row in found.items()}


def usable_backends(backend: str) -> tuple[str, ...]:
    """The installed backends that the setting ``backend`` allows: what a device announces."""
    return tuple(name for name in installed_backends() if backend in (AUTO, name))


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # onnxruntime has a distribution for each accelerator
        return "of unknown version"


def open_trainer(bundle: Bundle, backend: str, threads: int) -> Trainer:
    """A trainer for the bundle on ``backend``; "auto" takes the preferred one of those that work.

    Raises ``ConfigError`` when there is none, ``CodecError`` for a program that cannot be loaded.
    """
    offered = bundle.backends()
    wanted = _preferred() if backend == AUTO else [backend]
    known = [name for name in wanted if name in BACKENDS and name in offered]
    if not known:
        expected = f"one of those in the bundle: {', '.join(offered) or 'none'}"
        raise ConfigError("backend.name", backend, expected)
    faults: list[str] = []
    for name in known:
        row = BACKENDS[name]
        try:
            if fault := crash(name, bundle, threads, row.tries_each):
                faults.append(f"{name}: {fault}")
            else:
                return row.open(bundle, threads)
        except ImportError as exc:
            faults.append(f"{name}: {exc} ({row.install})")
    raise ConfigError("backend.name", backend, f"a working backend; {'; '.join(faults)}")


def _preferred() -> list[str]:
    little = 0 < memory_mb() < LITTLE_MEMORY_MB
    return list(reversed(BACKENDS)) if little else list(BACKENDS)
