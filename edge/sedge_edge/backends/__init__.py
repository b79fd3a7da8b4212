"""The runtimes that train with a bundle, and how one of them is chosen.

A backend imports its library only when it is opened, so importing the agent does not load any.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sedge_edge.backends.trial import fault
from sedge_edge.training.trainer import Trainer
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.memory_limit import memory_mb
from sedge_protocol.wire.bundle import (
    EXECUTORCH,
    FUNCTION,
    ONNXRUNTIME,
    TORCH,
    WITHOUT_PROGRAMS,
    Bundle,
)
from sedge_protocol.wire.programs import GUIDED
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Work

AUTO = "auto"
# The number of vectors in memory while training with Adam, which needs the most. Which optimizer the orders
# use is not known yet when a bundle is opened.
_VECTORS = Work().vectors(Training(optimizer="adam"))

# The abilities of an agent that trains with the user's own function.
_FOR_FUNCTIONS = frozenset({"settings", "arrays"})


class UserCode(NamedTuple):
    """The device's own code, for backends without programs: its folder and, for torch, the model
    function.
    """

    folder: Path = Path()
    model: str = ""


NO_CODE = UserCode()


class Backend(NamedTuple):
    """A runtime: its package and distribution, how to install it, and the function that opens a bundle.

    ``open`` takes the bundle, the setting ``backend.name``, the number of threads, and the user's code. It
    raises ``ImportError`` if the package is broken, ``CodecError`` if a program of the bundle cannot be
    loaded, and ``ConfigError`` if user code fails.
    """

    package: str
    distribution: str
    install: str
    open: Callable[[Bundle, str, int, UserCode], Trainer]


def _onnxruntime(bundle: Bundle, backend: str, threads: int, code: UserCode) -> Trainer:
    from sedge_edge.backends.bundle_trainer import BundleTrainer, bundled
    from sedge_edge.backends.onnx_runtime import OnnxProgram, binding

    load = bundled(bundle, ONNXRUNTIME, OnnxProgram, threads)
    return BundleTrainer(bundle, load, binding(bundle, threads))


def _executorch(bundle: Bundle, backend: str, threads: int, code: UserCode) -> Trainer:
    from sedge_edge.backends.bundle_trainer import BundleTrainer, bundled
    from sedge_edge.backends.executorch import ExecutorchProgram

    return BundleTrainer(bundle, bundled(bundle, EXECUTORCH, ExecutorchProgram, threads))


def _torch(bundle: Bundle, backend: str, threads: int, code: UserCode) -> Trainer:
    from sedge_edge.backends.bundle_trainer import BundleTrainer
    from sedge_edge.backends.torch_module import torch_programs

    return BundleTrainer(bundle, torch_programs(bundle, code.model, code.folder, threads))


def _function(bundle: Bundle, backend: str, threads: int, code: UserCode) -> Trainer:
    from sedge_edge.backends.function import FunctionTrainer

    return FunctionTrainer(bundle, backend, code.folder, threads)


# First the backends that "auto" may choose, fastest first, then those that run the user's code.
BACKENDS = {
    ONNXRUNTIME: Backend(
        "onnxruntime", "onnxruntime", "pip install 'sedge-fl[onnx]'", _onnxruntime
    ),
    EXECUTORCH: Backend(
        "sedge_executorch",
        "sedge-executorch",
        "pip install 'sedge-fl[executorch]'",
        _executorch,
    ),
    TORCH: Backend("torch", "torch", "pip install 'sedge-fl[torch]'", _torch),
    FUNCTION: Backend("numpy", "numpy", "pip install numpy", _function),
}


def installed_backends() -> dict[str, str]:
    """Return the installed backends and their versions, without loading them."""
    return {name: _version(BACKENDS[name].distribution) for name in _installed()}


def allowed_backends(backend: str) -> list[str]:
    """Return the backends that the setting ``backend.name`` allows, in order of preference."""
    if backend != AUTO:
        return [FUNCTION if ":" in backend else backend]
    return [name for name in BACKENDS if name not in WITHOUT_PROGRAMS]


def usable_backends(backend: str) -> tuple[str, ...]:
    """Return the installed backends that the setting allows.

    These are the backends that a device announces.
    """
    allowed = allowed_backends(backend)
    return tuple(name for name in _installed() if name in allowed)


def impossible_features(backend: str, folder: Path) -> frozenset[str]:
    """Return the optional abilities that the agent must not announce, because this backend lacks them.

    Raises ``ConfigError`` if the user's function cannot be imported.
    """
    if allowed_backends(backend) != [FUNCTION]:
        return _FOR_FUNCTIONS
    from sedge_edge.backends.function import HONOURABLE, NEVER, honours

    return NEVER | (set(HONOURABLE) - honours(backend, folder))


def _installed() -> list[str]:
    return [name for name, row in BACKENDS.items() if find_spec(row.package) is not None]


def _version(distribution: str) -> str:
    # Imported here, because the module takes a MiB of memory and the version is only shown to people.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(distribution)
    except PackageNotFoundError:  # onnxruntime has a separate distribution for each accelerator
        return "of unknown version"


def open_trainer(
    bundle: Bundle,
    backend: str,
    threads: int,
    code: UserCode = NO_CODE,
    state_dir: Path | None = None,
) -> Trainer:
    """Open a trainer for the bundle on ``backend``. "auto" chooses the fastest one that works and fits.

    A program runs in this process only after it has passed a trial in another one (trial.py). The verdict
    is stored in ``state_dir``, the agent's folder.

    A backend fits if, according to the bundle's figures, a training step with the more demanding
    optimizer fits into the device's memory. If none fits, "auto" chooses the one that needs the least
    memory.

    Raises ``ConfigError`` if no backend works or user code fails, and ``CodecError`` if a program cannot
    be loaded.
    """
    offered = (*bundle.backends(), *sorted(WITHOUT_PROGRAMS))
    allowed = allowed_backends(backend)
    known = [name for name in allowed if name in BACKENDS and name in offered]
    if not known:
        expected = f"one of those in the bundle: {', '.join(bundle.backends()) or 'none'}"
        raise ConfigError("backend.name", backend, expected)
    room = memory_mb()
    # Assume the more demanding optimizer, because orders may use it.
    program = "gradient" if bundle.manifest.guide is None else GUIDED
    needed = {name: bundle.manifest.memory_mb([name], _VECTORS, program) for name in known}
    if room:  # backends that fit keep their order
        known.sort(key=lambda name: needed[name] if needed[name] > room else 0)
    faults: list[str] = []
    for name in known:
        row = BACKENDS[name]
        tried = ""
        if name not in WITHOUT_PROGRAMS:
            tried = fault(name, row.package, bundle, threads, state_dir)
        try:
            if tried:
                faults.append(f"{name}: {tried}")
            else:
                return row.open(bundle, backend, threads, code)
        except ImportError as exc:
            faults.append(f"{name}: {exc} ({row.install})")
    raise ConfigError("backend.name", backend, f"a working backend; {'; '.join(faults)}")
