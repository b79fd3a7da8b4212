"""A guard around a user's own strategy, whose mistakes may end its run and nothing else.

A coordinator serves other runs, too, and a strategy that fails once would fail at every restart. Whatever
its code raises becomes a ``StrategyError`` that names strategy and step, and the run fails with that text.
Whatever its code returns is checked down to its last part against the annotations of ``State`` and
``Assignment``: a value of another type would only fail later, where it is stored or sent. n = parameters.
"""

import reprlib
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from traceback import walk_tb
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import ConfigError, StorageError, StrategyError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.messages import Codec

R = TypeVar("R")

# Other types that are accepted for an annotated one, as MessagePack writes them alike.
_ACCEPTED: dict[Any, tuple[type, ...]] = {
    float: (float, int),
    Mapping: (dict,),
    tuple: (tuple, list, set, frozenset),
}
# For these no subclass is accepted: MessagePack does not write numpy's scalars.
_SCALARS = (bool, int, float, str)


class Custom(Strategy, frozen=True):
    """The strategy ``inner``, guarded: its members raise only ``SedgeError``."""

    inner: Strategy

    @property
    def coordinate_rules(self) -> bool:
        """Whether ``inner`` follows coordinate-wise robust rules."""
        with self._step("coordinate_rules"):
            return bool(self.inner.coordinate_rules)

    @property
    def widths_vary(self) -> bool:
        """Whether ``inner`` may give a device a narrower form of the model."""
        with self._step("widths_vary"):
            return bool(self.inner.widths_vary)

    @property
    def codec(self) -> Codec:
        """How ``inner`` lets devices code their updates."""
        with self._step("codec"):
            return _expected(self.inner.codec, Codec)

    @property
    def patch_values(self) -> ValueCoding:
        """How ``inner`` lets patches be coded."""
        with self._step("patch_values"):
            return _expected(self.inner.patch_values, ValueCoding)

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """What ``inner`` says of its options."""
        with self._step("remarks"):
            said = self.inner.remarks(layouts, personal)
            _require("remarks", said, tuple[str, ...])
            return said

    def init(self, context: Context) -> State:
        """The state before the first round."""
        with self._step("init"):
            return _expected_state(self.inner.init(context), context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """One device's part in a round."""
        with self._step("plan"):
            return _expected(self.inner.plan(context, client), Assignment)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """The state after a round."""
        with self._step("apply"):
            return _expected_state(self.inner.apply(context, updates), context)

    @contextmanager
    def _step(self, step: str) -> Generator[None]:
        try:
            yield
        except (ConfigError, StrategyError, StorageError):  # the scheduler handles these
            raise
        except (Exception, SystemExit) as exc:  # whatever the user's own code raises
            kind = type(self.inner)
            where = f"{kind.__module__}:{kind.__qualname__}.{step}"
            raise StrategyError(
                f"{where}: {type(exc).__name__}: {exc}{_place(exc, kind.__module__)}"
            ) from exc


def _place(error: BaseException, module: str) -> str:
    """The place in the strategy's own file where an error comes from; empty if there is none."""
    frames = [
        (frame.f_code.co_filename.rpartition("/")[2], line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") == module
    ]
    return " ({}, line {})".format(*frames[-1]) if frames else ""


def _expected(value: object, kind: type[R]) -> R:
    """The value, if it is of this type throughout. Raises ``TypeError``."""
    if not isinstance(value, kind):
        raise TypeError(f"gave a {type(value).__name__}, expected a {kind.__name__}")
    _require(kind.__name__, value, kind)
    return value


def _expected_state(value: object, context: Context) -> State:
    """The state, if its model is finite and of the run's layout. Raises ``TypeError``."""
    state, size = _expected(value, State), context.layout.size
    if state.theta.shape != (size,):
        raise _unlike("State.theta", state.theta, f"float32 ({size},)")
    if not np.isfinite(state.theta).all():
        first = int(np.argmin(np.isfinite(state.theta)))
        raise _unlike(f"State.theta[{first}]", float(state.theta[first]), "a finite number")
    return state


def _require(where: str, value: object, annotation: Any) -> None:
    """Raise ``TypeError`` unless a value matches its annotation, down to its last part."""
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if kind is UnionType:  # in this contract always: some type | None
        if value is not None:
            _require(where, value, arguments[0])
        return
    accepted = _ACCEPTED.get(kind, (kind,))
    dtype = get_args(arguments[1])[0] if kind is np.ndarray else None
    expected = f"an array of {dtype.__name__}" if dtype else accepted[0].__name__
    if not (type(value) in accepted if kind in _SCALARS else isinstance(value, accepted)):
        raise _unlike(where, value, expected)
    if isinstance(value, np.ndarray) and value.dtype != dtype:
        raise _unlike(where, value, expected)
    for place, part, of in _parts(value, kind, arguments):
        _require(f"{where}{place}", part, of)
    if isinstance(value, msgspec.Struct):
        _require_decoded(where, value, kind)
    if isinstance(value, str):
        value.encode()  # raises for a lone surrogate, which could not be stored


def _parts(
    value: object, kind: type, arguments: tuple[Any, ...]
) -> Iterator[tuple[str, object, Any]]:
    """Place, value and annotation of each part of a collection or a dataclass."""
    match value:
        case dict():
            for key, part in value.items():
                yield ", a key", key, arguments[0]
                yield f"[{key!r}]", part, arguments[1]
        case tuple() | list() | set() | frozenset():
            for place, part in enumerate(value):
                yield f"[{place}]", part, arguments[0]
        case _ if is_dataclass(kind):
            for name, annotation in _annotations(kind).items():
                yield f".{name}", getattr(value, name), annotation
        case _:
            pass


def _require_decoded(where: str, value: object, kind: type) -> None:
    """Raise ``TypeError`` unless a record would arrive: msgspec checks ranges when it decodes."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)
    except (TypeError, ValueError) as exc:  # msgspec's errors
        raise TypeError(f"{where}: {exc}") from exc


@cache
def _annotations(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _unlike(where: str, value: object, expected: str) -> TypeError:
    shown = f"{value.dtype} {value.shape}" if isinstance(value, np.ndarray) else reprlib.repr(value)
    return TypeError(f"{where}: found {shown}, expected {expected}")
