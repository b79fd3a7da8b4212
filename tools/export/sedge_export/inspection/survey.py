"""Two surveys of a model for hidden randomness and hidden state, which a program would freeze.

Tracing turns numbers from Python's random generators, and values of counters, into constants. So the
model runs eagerly, in both modes, under two surveys, neither of which may find anything. ``DrawDetector``
observes the sources: all random generators that a forward pass can reach. ``survey`` observes the
results: a copy that has seen other data and runs with other seeds must give the same bits as a fresh
copy, and must no longer change its attributes and buffers. So a cache that is filled once is allowed.
"""

import io
import os
import pickle
import random
import sys
import uuid
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from sedge_edge.backends.draws import draws
from sedge_export.subject.network import BATCH_NORMS
from sedge_export.tracing.trace import plain_kernels
from sedge_protocol.errors import ExportError

# The name of each module and the sum of its output, in the order in which the modules finish.
Sums: TypeAlias = list[tuple[str, object]]

_SYMPY = f"{os.sep}sympy{os.sep}"  # libraries such as einx use sympy to solve for shapes
_ADVICE = "a program would repeat the same outcome for ever"


@dataclass(frozen=True)
class ForwardRun:
    """A model's output, its modules' outputs in order of completion, and its count of random numbers."""

    output: object
    outputs: list[tuple[str, Tensor]]
    noise: int

    def sums(self) -> Sums:
        """Return each module's name and the shape and sum of its output, in order of completion."""
        return [
            (name, (tuple(each.shape), repr(each.double().sum().item())))
            for name, each in self.outputs
        ]


class DrawDetector:
    """Detects the first random number that a known generator draws.

    ``drawn`` then says which generator it was, and where.
    """

    def __init__(self, model: nn.Module, here: Callable[[], str]) -> None:
        self._here = here
        self._generators = _generators(model)
        self._states = self._now()
        self.drawn: str | None = None

    def look(self) -> None:
        """Check whether any generator's state has changed since the last call."""
        now = self._now()
        if now != self._states and self.drawn is None:
            changed = next(name for name, state in now.items() if state != self._states[name])
            self.drawn = f"{changed}{self._here()}"
        self._states = now

    @contextmanager
    def watching(self) -> Generator[None]:
        """Within a ``with`` block, also detect calls to Python's own generators as they happen."""
        before = sys.getprofile()
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)
            self.look()

    def _called(self, frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and self.drawn is None:
            drawing = function is os.urandom or (
                isinstance(getattr(function, "__self__", None), random.Random)
                and function.__name__ in ("random", "getrandbits")
            )
            if drawing and not _of_a_library(frame):
                self.drawn = f"Python's random{self._here()}"

    def _now(self) -> dict[str, object]:
        words: Any = np.random.get_state(legacy=True)
        return {
            "numpy.random": (words[1].tobytes(), words[2]),
            "torch's generator": torch.get_rng_state().numpy().tobytes(),
            **{name: _state(each) for name, each in self._generators.items()},
        }


def _of_a_library(frame: FrameType | None) -> bool:
    """Return True if the call comes from an import, the uuid module or sympy.

    Their random numbers are not meant for tensors. If one reaches a tensor all the same, ``survey``
    detects it.
    """
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib") or name == uuid.__file__ or _SYMPY in name:
            return True
        frame = frame.f_back
    return False


def _generators(model: nn.Module) -> dict[str, Any]:
    """Return the random generators, by name, that the forward passes can reach as globals or closures."""
    kinds = (np.random.Generator, np.random.RandomState, torch.Generator)
    found: dict[str, Any] = {}
    for module in model.modules():
        forward = getattr(module.forward, "__func__", module.forward)
        code = getattr(forward, "__code__", None)
        cells = getattr(forward, "__closure__", None) or ()
        free = zip(getattr(code, "co_freevars", ()), cells, strict=False)
        reached = {**getattr(forward, "__globals__", {}), **{n: c.cell_contents for n, c in free}}
        found |= {name: value for name, value in reached.items() if isinstance(value, kinds)}
    return found


def _state(generator: Any) -> object:
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    return pickle.dumps(generator)


def survey(model: nn.Module, x: Tensor, expected: Mapping[bool, Sums]) -> None:
    """Compare a copy of the model that has seen other data with the ``expected`` results for ``x``.

    ``expected`` maps the mode, True for training, to the sums of a fresh copy. Raises ``ExportError``,
    naming the module, if there is hidden randomness or state.
    """
    other = x * 0.5 if x.is_floating_point() else x[torch.arange(len(x)) // 2]
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        for training, sums in expected.items():
            model.train(training)
            _seed(1)
            run(model, other)
            _compare(sums, run(model, x).sums())
            before = _attributes(model)
            _seed(2)
            _compare(sums, run(model, x).sums())
            _compare_attributes(before, _attributes(model))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def run(model: nn.Module, x: Tensor) -> ForwardRun:
    """Run the model on ``x``. In training mode, its random numbers are all 0.5."""
    found: list[tuple[str, Tensor]] = []

    def left(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                found.append((name, output))

        return keep

    hooks = [m.register_forward_hook(left(name)) for name, m in model.named_modules()]
    drawn = draws(None) if model.training else nullcontext()
    try:
        with plain_kernels(), torch.no_grad(), drawn as source:
            output: object = model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return ForwardRun(output, found, source.count if source else 0)


def _compare(expected: Sums, found: Sums) -> None:
    if expected == found:
        return
    pairs = zip(expected, found, strict=False)
    name = next((right[0] for right, wrong in pairs if right != wrong), "")
    raise ExportError(
        f"{_named(name)} gives different outputs when run again on the same input, from hidden randomness"
        f" or state: {_ADVICE}"
    )


def _attributes(model: nn.Module) -> dict[tuple[str, str], bytes]:
    """Return each module's pickled attributes and buffers, by module and attribute name."""
    found: dict[tuple[str, str], bytes] = {}
    for name, module in model.named_modules():
        held = dict(vars(module)) | (
            {} if isinstance(module, BATCH_NORMS) else dict(vars(module)["_buffers"])
        )
        for key, value in held.items():
            if key not in ("_parameters", "_buffers", "_modules") and not _is_hook(key):
                found[name, key] = _bytes(value)
    return found


def _is_hook(key: str) -> bool:
    return key.startswith("_") and "hook" in key


class _ShapePickler(pickle.Pickler):
    """Pickles tensors by shape, type and values alone."""

    def reducer_override(self, value: object) -> Any:
        """Reduce a tensor to its bytes, and everything else as usual."""
        if isinstance(value, Tensor):
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return bytes, (str((value.shape, value.dtype)).encode() + data.numpy().tobytes(),)
        return NotImplemented


def _bytes(value: object) -> bytes:
    """Pickle a value for comparison.

    Returns b"" for a value that cannot be pickled, such as a local function.
    """
    file = io.BytesIO()
    try:
        _ShapePickler(file).dump(value)
    except Exception:  # a user's object may raise anything
        return b""
    return file.getvalue()


def _compare_attributes(
    before: Mapping[tuple[str, str], bytes], after: Mapping[tuple[str, str], bytes]
) -> None:
    for place, value in after.items():
        if before.get(place) != value:
            name, attribute = place
            raise ExportError(
                f"{_named(name)} changes its attribute {attribute!r} in its forward pass: {_ADVICE}"
            )


def _named(name: str) -> str:
    return f"module {name!r}" if name else "model:"
