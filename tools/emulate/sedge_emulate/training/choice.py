"""Chooses a run's trainer by rule, from the fleet file, the model and the device, never by a measurement.

    [trainer] backend    device    model                  trainer       devices at once
    auto                 cpu       without convolutions   onnx          1
    auto                 cpu       with convolutions      autograd      1
    auto                 cuda      any                    vectorised    ``fitting.fitting_width``
    a name               either    any                    that one      as above

A run's exact results thus depend only on settings that its result file names. The device "auto" means CUDA
if it can be used for the model, otherwise the CPU, and a line says why. A tensor with three or more axes
counts as a convolution. autograd replaces onnx if there are no exported programs, or if a replay shuffles
examples differently than devices do. tools/bench/RESULTS.md compares each trainer with autograd on the
shipped examples.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import nn

from sedge_edge.backends.rows import Objective
from sedge_edge.training.batches import Permutations, permutations
from sedge_edge.training.examples import Inputs
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import LABELS, TrainingProblem
from sedge_emulate.training.programs import OnnxFleet
from sedge_emulate.training.tasks import Convolutions, FleetTrainer, Precision, Unsupported
from sedge_emulate.training.vectorised import VectorisedTrainer
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.bundle import Bundle, TensorSpec
from sedge_protocol.wire.parts import InputPart

AUTO = "auto"
NAMES = ("autograd", "vectorised", "onnx")


def open_trainer(
    module: nn.Module,
    objective: Objective,
    batch_size: int,
    input: TensorSpec,
    target: TensorSpec | None = LABELS,
    *,
    name: str = AUTO,
    precision: Precision = "fp32",
    device: str = "cpu",
    tf32: bool = False,
    graphs: bool = False,
    convolutions: Convolutions = "grouped",
    processes: int = 1,
    bundle: Bundle | None = None,
    shuffles: Permutations = permutations,
    parts: tuple[InputPart, ...] = (),
    sample: Inputs | None = None,
    note: Callable[[str], object] = warnings.warn,
    checked: bool = False,
) -> FleetTrainer:
    """Open the named trainer or the one that the rule chooses, and check it.

    ``input`` and ``target`` are the type and shape of one example's input and target, ``parts`` the model's
    inputs if it takes several. ``bundle`` has the model's exported programs, for "onnx". ``sample`` has
    some real inputs. ``name`` is the fleet file's ``backend``; ``precision``, ``device``, ``tf32``,
    ``graphs`` and ``convolutions`` are described in ``sedge_emulate.config.TrainerConfig``. ``processes``
    processes share a GPU. torch's number of threads is left unchanged; several single-threaded processes
    are faster than one process with several threads.

    If ``checked`` is true, the trainer has passed its checks before, and they are skipped. If ``device`` is
    "auto" and the GPU cannot be used, ``note`` is called with the reason and the CPU is used. Raises
    ``ConfigError`` for an unknown name or device, or for an option that does not suit this model or device,
    ``Wrong`` if the trainer fails its checks, and ``ExportError`` for a model that no device can train.
    """
    if name not in (AUTO, *NAMES):
        raise ConfigError("trainer", name, f"one of {AUTO}, {', '.join(NAMES)}")
    problem = TrainingProblem(module, objective, batch_size, input, target, shuffles, parts, sample)
    programs = bundle is not None and shuffles is permutations

    def opened(where: torch.device, options: _Options) -> FleetTrainer:
        chosen = ruled(where.type, problem.network.layout, programs) if name == AUTO else name
        options.check(chosen, where)
        wanted = None if checked else _checks().references(problem)
        try:
            trainer = _open(chosen, problem, options, where, bundle, processes)
            if wanted is not None:
                _checks().check(trainer, problem, precision, wanted)
        except Unsupported as exc:
            raise _Unusable(
                "trainer", chosen, f"a backend that supports this model: {exc}"
            ) from exc
        except RuntimeError as exc:  # this torch lacks an operator on that device
            why = f"torch {torch.__version__} cannot run it on {where}: {_first_line(exc)}"
            raise _Unusable(
                "trainer", chosen, f"a backend that supports this model: {why}"
            ) from exc
        return trainer

    options = _Options(precision, tf32, graphs, convolutions)
    if device != AUTO:
        return opened(_device(device), options)
    if torch.cuda.is_available():
        try:
            return opened(_device("cuda"), options)
        except _Unusable as exc:
            note(f"trainer.device: training on the CPU: {exc}")
    return opened(torch.device("cpu"), _Options(precision))


class _Unusable(ConfigError):
    """The device or trainer exists but cannot be used for this model."""


@dataclass(frozen=True)
class _Options:
    """The options in the fleet file that change how a trainer computes."""

    precision: Precision
    tf32: bool = False
    graphs: bool = False
    convolutions: Convolutions = "grouped"

    def check(self, name: str, device: torch.device) -> None:
        """Raise ``ConfigError`` if this trainer or this device does not support one of the options."""
        if device.type == "cpu":
            if self.precision != "fp32":
                raise ConfigError("trainer.precision", self.precision, "fp32 on a CPU")
            for key, value in (("tf32", self.tf32), ("graphs", self.graphs)):
                if value:
                    raise ConfigError(f"trainer.{key}", value, "false on a CPU")
        elif self.tf32 and self.precision != "fp32":
            raise ConfigError("trainer.tf32", True, f"false with precision {self.precision}")
        if name != "vectorised":
            if self.graphs:
                raise ConfigError("trainer.graphs", True, f"false for the trainer {name}")
            if self.convolutions != "grouped":
                expected = f"grouped for the trainer {name}"
                raise ConfigError("trainer.convolutions", self.convolutions, expected)


def ruled(device: str, layout: Layout, programs: bool) -> str:
    """Return the name of the default trainer for a layout on "cpu" or "cuda".

    ``programs`` is True if the model has programs that onnxruntime can run.
    """
    if device != "cpu":
        return "vectorised"
    convolves = any(len(tensor.shape) > 2 for tensor in layout.tensors)
    return "onnx" if programs and not convolves else "autograd"


def _checks() -> ModuleType:
    """Import the checks only when needed: they import torch's tracing, which takes half a second."""
    from sedge_emulate.training import checks

    return checks


def _device(name: str) -> torch.device:
    """Open a torch device and test it with a small computation. Raises ``_Unusable`` if that fails."""
    try:
        device = torch.device(name)
        torch.ones(1, device=device).add_(1).item()
    except (RuntimeError, AssertionError) as exc:  # torch without CUDA raises AssertionError
        raise _Unusable(
            "trainer.device", name, f"a device that this PyTorch supports: {_first_line(exc)}"
        ) from exc
    return device


def _first_line(error: Exception) -> str:
    """Return the first line of a torch error; CUDA errors continue with debugging advice."""
    return str(error).partition("\n")[0]


def _open(
    name: str,
    problem: TrainingProblem,
    options: _Options,
    device: torch.device,
    bundle: Bundle | None,
    processes: int,
) -> FleetTrainer:
    match name:
        case "vectorised":
            return VectorisedTrainer(
                problem,
                options.precision,
                device,
                tf32=options.tf32,
                graphs=options.graphs,
                convolutions=options.convolutions,
                processes=processes,
            )
        case "onnx":
            return OnnxFleet(problem, options.precision, bundle)
        case _:
            return AutogradTrainer(problem, options.precision, device, tf32=options.tf32)
