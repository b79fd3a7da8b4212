"""A ``Trainer`` that calls the user's training function, written with numpy, torch or any other library.

``backend.name = "module:fit"`` names the first of these functions. The others must be in the same module,
and ``predict`` is optional.

    fit(parameters, examples, settings) -> parameters, number of examples, metrics
    evaluate(parameters, examples)      -> mean loss, number of examples, metrics including the bundle's
    predict(parameters, inputs)         -> outputs (N, C, ...)

parameters is a list of float32 arrays, one for each tensor of the layout, in order. The function may
change them, and must return as many. The bundle's frozen tensors follow them in the list, read-only.
examples contains ``inputs`` (N, ...) and ``targets`` (N, ...), both read-only. settings is a dict that
contains the fields of ``Training``, ``batch_size``, ``seed`` (0 to 2^63 - 1, different in every round)
and ``threads``. fit's metrics may contain "loss", the mean over the last epoch. Without it, the trained
model is evaluated on the training examples.

A strategy may send more to fit: settings["settings"] contains its named numbers and strings, and
settings["arrays"] its named float32 arrays (m,). settings["returns"] maps the name of each array that it
wants back to the number of its elements. fit returns these in its metrics as "arrays", a dict that may
contain further arrays.

Learning rate, momentum and epochs are up to the function. An order may also specify how each step is
computed. Since the agent cannot check this from outside, the function declares what it supports, as in
``fit.honours = ("prox",)``:
    prox        pulls every step towards the parameters that it was given (FedProx)
    freeze      does not change the tensors named in settings["freeze"] at any step
    optimizer   uses settings["optimizer"] and what belongs to it: weight decay, clipping, ...
    schedule    uses settings["warmup_steps"] and settings["end_factor"]: the learning rate of each step
Orders that need anything else are declined: gradients, corrections, second models, guided losses, means of
the steps' models.
"""

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.batches import step_count
from sedge_edge.training.examples import Examples, Inputs
from sedge_edge.training.steppers.model import tensor_slices
from sedge_edge.training.trainer import (
    Predictor,
    Trained,
    TrainingDiverged,
    TrainingState,
    TrainingStopped,
    TrainRequest,
)
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.host.user_code import importable, imported
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.objective import LOSS
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics

HONOURABLE = ("prox", "freeze", "optimizer", "schedule")
# The announced abilities that no user function can have.
NEVER = frozenset({"own_model", "select", "scoring", "correction", "average", "loss"})


def honours(name: str, folder: Path) -> frozenset[str]:
    """Return the abilities that the function declares. Raises ``ConfigError`` if it cannot be imported."""
    said: object = getattr(imported(name, folder, "backend.name"), "honours", ())
    if not isinstance(said, tuple | list) or not set(cast(tuple[object, ...], said)) <= set(
        HONOURABLE
    ):
        raise ConfigError(f"{name}.honours", said, f"a tuple of {', '.join(HONOURABLE)}")
    return frozenset(cast(tuple[str, ...], said))


class FunctionTrainer:
    """A ``Trainer`` that calls the user's functions. Only one of them runs at a time."""

    def __init__(self, bundle: Bundle, name: str, folder: Path, threads: int) -> None:
        self._manifest, self._frozen = bundle.manifest, list[NDArray[np.float32]]()
        if bundle.manifest.frozen is not None and bundle.frozen is not None:
            self._frozen += bundle.manifest.frozen.layout.views(bundle.frozen).values()
        self._name, self._folder, self._threads = name, folder, threads
        self._honours = honours(name, folder)
        self._module = name.partition(":")[0]
        self._fit = imported(name, folder, "backend.name")
        self._evaluate = self._sibling("evaluate")
        self._lock = threading.Lock()

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        """Call the function once; see ``Trainer.train``. It cannot be stopped while it runs."""
        theta, training, anchor = request.theta, request.training, request.anchor
        pulled_elsewhere = anchor is not None and not np.array_equal(anchor, theta)
        asked = {
            "prox": training.prox > 0 and "prox" not in self._honours,
            "prox towards another model": training.prox > 0 and pulled_elsewhere,
            "freeze": bool(training.freeze) and "freeze" not in self._honours,
            "optimizer": not training.plain and "optimizer" not in self._honours,
            "schedule": training.schedules_steps and "schedule" not in self._honours,
            "the last batch's gradient": request.gradient,
            "correction": request.correction is not None,
            "average": training.average > 0,
            "own_model": request.second is not None,
            "loss": request.guidance is not None,
        }
        for what, is_asked in asked.items():
            if is_asked:
                raise self._declined(what)
        if stopped():
            raise TrainingStopped(f"{self._name}: stopped before it began")
        frozen = tensor_slices(self._manifest.layout, training.freeze)
        settings = {
            **msgspec.structs.asdict(training),
            "batch_size": self._manifest.batch_size,
            "seed": request.seed,
            "threads": self._threads,
            "settings": dict(request.exchange.settings),
            "arrays": {name: array.copy() for name, array in request.exchange.arrays.items()},
            "returns": dict(request.exchange.returns),
        }
        parameters, count, metrics = self._three(
            self._name,
            self._fit,
            "parameters",
            self._parameters(theta),
            _read_only(examples),
            settings,
        )
        trained = self._flat(parameters)
        for tensors in frozen:
            trained[tensors] = theta[tensors]
        count = self._count(self._name, count, len(examples.targets))
        if "loss" in metrics:
            loss = self._finite(self._name, '"loss"', metrics["loss"])
        else:
            loss = self.evaluate(trained, examples).loss
        return Trained(
            trained,
            loss,
            self._steps(examples, training),
            num_examples=count,
            arrays=self._returned(metrics.get("arrays", {}), request.exchange.returns),
        )

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        """Return the mean loss and metric of theta (n,), computed by the module's ``evaluate``."""
        name, metric = f"{self._module}:evaluate", self._manifest.metric
        mean, count, metrics = self._three(
            name, self._evaluate, "mean loss", self._parameters(theta), _read_only(examples)
        )
        loss = self._finite(name, "the mean loss", mean)
        found = {LOSS.name: loss, **metrics}
        if metric.name not in found:
            raise ConfigError(name, sorted(metrics), f'metrics with "{metric.name}"')
        value = self._finite(name, f'"{metric.name}"', found[metric.name])
        if metric.share and not 0 <= value <= 1:
            raise ConfigError(name, value, f'"{metric.name}" from 0 to 1')
        return Metrics(loss, value, self._count(name, count, len(examples.targets)))

    def predictor(self, theta: Theta) -> Predictor:
        """Return the module's ``predict`` with theta (n,) filled in."""
        return partial(self._predict, theta)

    def _predict(self, theta: Theta, inputs: Inputs) -> NDArray[np.float32]:
        name = f"{self._module}:predict"
        function = self._sibling("predict")
        expected = f"floating-point outputs ({len(inputs)}, C, ...)"
        returned = self._call(name, function, expected, self._parameters(theta), inputs)
        outputs = _array(name, returned)
        if outputs.ndim < 2 or len(outputs) != len(inputs) or outputs.dtype.kind != "f":
            raise ConfigError(name, f"{outputs.dtype} {outputs.shape}", expected)
        return outputs.astype(np.float32)

    def _sibling(self, function: str) -> Callable[..., Any]:
        return imported(f"{self._module}:{function}", self._folder, "backend.name")

    def _declined(self, what: str) -> CodecError:
        said = ", ".join(sorted(self._honours)) or "none of them"
        known = ", ".join(HONOURABLE)
        return CodecError(
            f"order: {what}: {self._name} does not support it; of {known}, it honours {said}"
        )

    def _parameters(self, theta: Theta) -> list[NDArray[np.float32]]:
        own = (view.copy() for view in self._manifest.layout.views(theta).values())
        return [*own, *self._frozen]

    def _call(
        self, name: str, function: Callable[..., Any], expected: str, *arguments: object
    ) -> object:
        """Call a function. Raises ``ConfigError`` for any error in it."""
        try:
            with self._lock, importable(self._folder):
                return function(*arguments)
        except MemoryError:
            raise
        except (Exception, SystemExit) as exc:
            raise ConfigError(name, f"{type(exc).__name__}: {exc}", expected) from exc

    def _three(
        self, name: str, function: Callable[..., Any], first: str, *arguments: object
    ) -> tuple[object, object, dict[str, object]]:
        """Call ``function`` and return its three results. Raises ``ConfigError`` for anything else."""
        expected = f"a tuple ({first}, number of examples, metrics) with a dict of metrics"
        returned = self._call(name, function, expected, *arguments)
        if not isinstance(returned, tuple):
            raise ConfigError(name, type(returned).__name__, expected)
        values = cast(tuple[object, ...], returned)
        if len(values) != 3 or not isinstance(values[2], dict):
            found = ", ".join(type(value).__name__ for value in values)
            raise ConfigError(name, f"({found})", expected)
        return values[0], values[1], cast(dict[str, object], values[2])

    def _flat(self, parameters: object) -> Theta:
        """Return theta (n,) from the arrays that a function returned.

        Raises ``ConfigError`` for wrong arrays, or ``TrainingDiverged`` for NaN.
        """
        tensors = self._manifest.layout.tensors
        if not isinstance(parameters, list | tuple):
            expected = f"a list of {len(tensors)} arrays"
            raise ConfigError(self._name, type(parameters).__name__, expected)
        arrays = [_array(self._name, value) for value in cast(Sequence[object], parameters)]
        if len(arrays) != len(tensors):
            expected = f"{len(tensors)}, one for each tensor of the layout"
            raise ConfigError(self._name, f"{len(arrays)} arrays", expected)
        theta = np.empty(self._manifest.layout.size, np.float32)
        for tensor, array in zip(tensors, arrays, strict=True):
            if array.shape != tensor.shape or array.dtype.kind != "f":
                found = f"{array.dtype} {array.shape} for {tensor.name}"
                raise ConfigError(self._name, found, f"floating-point numbers {tensor.shape}")
            # Values beyond float32 become inf, which is detected below.
            with np.errstate(over="ignore"):
                theta[tensor.slice] = array.reshape(-1)
        if not np.isfinite(theta).all():
            count = np.count_nonzero(~np.isfinite(theta))
            raise TrainingDiverged(f"{self._name}: {count} parameters are not finite")
        return theta

    def _returned(self, given: object, wanted: Mapping[str, int]) -> dict[str, Theta]:
        """Return the arrays (m,) that the order wants from a function's result.

        Raises ``ConfigError`` for wrong arrays, or ``TrainingDiverged`` for NaN.
        """
        name, found = f'{self._name}: "arrays"', dict[str, Theta]()
        if not isinstance(given, dict):
            raise ConfigError(name, type(given).__name__, "a dict of arrays by name")
        arrays = cast(dict[str, object], given)
        for key, length in wanted.items():
            if key not in arrays:
                raise ConfigError(name, sorted(arrays), f"{key} as well")
            array = _array(name, arrays[key])
            if array.size != length or array.dtype.kind not in "fiu":
                expected = f"{length} numbers as {key}"
                raise ConfigError(name, f"{array.dtype} {array.shape}", expected)
            # Values beyond float32 become inf, which is detected below.
            with np.errstate(over="ignore"):
                values = array.reshape(-1).astype(np.float32)
            if not np.isfinite(values).all():
                raise TrainingDiverged(f"{name}: {key} is not finite")
            found[key] = values
        return found

    def _count(self, name: str, count: object, highest: int) -> int:
        if not isinstance(count, Integral) or not 1 <= int(count) <= highest:
            raise ConfigError(name, count, f"a number of examples from 1 to {highest}")
        return int(count)

    def _finite(self, name: str, what: str, value: object) -> float:
        if not isinstance(value, Real):
            raise ConfigError(name, type(value).__name__, f"a number as {what}")
        number = float(value)
        if not math.isfinite(number):
            raise TrainingDiverged(f"{name}: {what} is {number}")
        return number

    def _steps(self, examples: Examples, training: Training) -> int:
        """Return the number of steps that the settings ask for, because the function reports none."""
        count = len(examples.targets), self._manifest.batch_size
        return step_count(*count, training.local_epochs, training.last_batch)


def _array(name: str, value: object) -> NDArray[np.generic]:
    try:
        return np.asarray(value)
    except (
        Exception
    ) as exc:  # lists of unequal lengths, or tensors with a gradient or on another device
        raise ConfigError(name, f"{type(exc).__name__}: {exc}", "arrays") from exc


def _read_only(examples: Examples) -> Examples:
    """Return read-only views of the examples, so that a function cannot change them for later rounds."""
    inputs, targets = examples.inputs.view(), examples.targets.view()
    inputs.flags.writeable = targets.flags.writeable = False
    return Examples(inputs, targets)
