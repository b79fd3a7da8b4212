"""Two surveys of a model for hidden randomness and hidden state, which a program would bake in.

Tracing keeps what Python's dice said, or what a counter stood at, for ever. So the model runs eagerly, in
both modes, and neither of two surveys may find anything. ``Watch`` looks at the sources: the generators of
random numbers that a forward pass can reach. ``survey`` looks at the results: a model that has seen other
data, and runs under other seeds, must give the same bits as a fresh one, and then leave its attributes and
buffers as they are. A cache that is filled once passes.
"""

import io
import os
import pickle
import random
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sedge_edge.backends.draws import draws
from sedge_export.subject.network import BATCH_NORMS, copied
from sedge_export.tracing.trace import plain_kernels
from sedge_protocol.errors import ExportError

_ADVICE = "a program would repeat one outcome for ever"


class Watch:
    """Notices the first random number that is drawn while it is watching, by any generator it knows."""

    def __init__(self, model: nn.Module, here: Callable[[], str]) -> None:
        self._here = here
        self._generators = _generators(model)
        self._states = self._now()
        self.drawn: str | None = None

    def look(self) -> None:
        """Compare the states of all generators with those of the last look."""
        now = self._now()
        if now != self._states and self.drawn is None:
            changed = next(name for name, state in now.items() if state != self._states[name])
            self.drawn = f"{changed}{self._here()}"
        self._states = now

    @contextmanager
    def watching(self) -> Generator[None]:
        """Notice calls of Python's own generators as they happen."""
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
            if drawing and not _importing(frame):
                self.drawn = f"Python's random{self._here()}"

    def _now(self) -> dict[str, object]:
        words: Any = np.random.get_state(legacy=True)
        return {
            "numpy.random": (words[1].tobytes(), words[2]),
            "torch's generator": torch.get_rng_state().numpy().tobytes(),
            **{name: _state(each) for name, each in self._generators.items()},
        }


def _importing(frame: FrameType | None) -> bool:
    """Whether the frame belongs to a library that is loaded late, and draws as it is."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _generators(model: nn.Module) -> dict[str, Any]:
    """The generators among the globals and free variables of the forward passes, by name."""
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


def survey(model: nn.Module, x: Tensor) -> None:
    """Raise ``ExportError``, naming the module, when the model has hidden randomness or state."""
    other = x * 0.5 if x.is_floating_point() else x[torch.arange(len(x)) // 2]
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        for training in (True, False):
            fresh, used = copied(model).train(training), copied(model).train(training)
            _seed(0)
            expected = _sums(fresh, x)
            _seed(1)
            _sums(used, other)
            _compare(expected, _sums(used, x))
            before = _attributes(used)
            _seed(2)
            _compare(expected, _sums(used, x))
            _compare_attributes(before, _attributes(used))
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def _seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


def _sums(model: nn.Module, x: Tensor) -> list[tuple[str, object]]:
    """The sum of each module's output, in order of their ends."""
    found: list[tuple[str, object]] = []

    def left(name: str) -> Callable[[nn.Module, object, object], None]:
        def keep(_module: nn.Module, _inputs: object, output: object) -> None:
            if isinstance(output, Tensor):
                found.append((name, (tuple(output.shape), repr(output.double().sum().item()))))

        return keep

    hooks = [m.register_forward_hook(left(name)) for name, m in model.named_modules()]
    try:
        with plain_kernels(), torch.no_grad(), draws(None) if model.training else nullcontext():
            model(x)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _compare(expected: list[tuple[str, object]], found: list[tuple[str, object]]) -> None:
    if expected == found:
        return
    pairs = zip(expected, found, strict=False)
    name = next((right[0] for right, wrong in pairs if right != wrong), "")
    raise ExportError(
        f"{_named(name)} gives other outputs when it runs again on the same input: hidden randomness or"
        f" state, of which {_ADVICE}"
    )


def _attributes(model: nn.Module) -> dict[tuple[str, str], bytes]:
    """What every module holds besides parameters and submodules, by module and attribute."""
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


class _Pickler(pickle.Pickler):
    """Writes tensors by their values alone."""

    def reducer_override(self, value: object) -> Any:
        """A tensor as its bytes, everything else as usual."""
        if isinstance(value, Tensor):
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return bytes, (str((value.shape, value.dtype)).encode() + data.numpy().tobytes(),)
        return NotImplemented


def _bytes(value: object) -> bytes:
    """Equal bytes for an unchanged value; none for what cannot be written, such as a function."""
    file = io.BytesIO()
    try:
        _Pickler(file).dump(value)
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
