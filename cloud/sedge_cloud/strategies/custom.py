"""A strategy of somebody's own, whose mistakes end its run and nothing else.

A coordinator serves other runs too, and a strategy that fails once fails at every restart. Whatever its
code raises becomes a ``LocalError`` that names strategy and step; the run then fails with that text. What
its code returns is looked at to the last part, by the annotations of ``State`` and ``Assignment``: a value
of another type would fail where it is stored or sent. n = parameters.
"""

import reprlib
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import cache
from traceback import walk_tb
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol.errors import ConfigError, LocalError, StorageError

R = TypeVar("R")

# What may stand for an annotated type: what MessagePack writes as that.
_ACCEPTED: dict[Any, tuple[type, ...]] = {
    float: (float, int),
    Mapping: (dict,),
    tuple: (tuple, list, set, frozenset),
}
# Of these nothing that only derives from them: MessagePack does not write numpy's scalars.
_SCALARS = (bool, int, float, str)


class Custom(Strategy, frozen=True):
    """The strategy ``inner``; its members raise ``SedgeError`` only."""

    inner: Strategy

    @property
    def coordinate_rules(self) -> bool:
        """Whether its averages take robust rules by coordinate (robust.py)."""
        with self._step("coordinate_rules"):
            return bool(self.inner.coordinate_rules)

    def init(self, context: Context) -> State:
        """The state before the first round."""
        with self._step("init"):
            return _expected_state(self.inner.init(context), context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """What a device of the cohort starts from and what it sends."""
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
        except (ConfigError, LocalError, StorageError):  # those that a run can end or wait with
            raise
        except (Exception, SystemExit) as exc:  # whatever the user's own code raises
            kind = type(self.inner)
            where = f"{kind.__module__}:{kind.__qualname__}.{step}"
            raise LocalError(
                f"{where}: {type(exc).__name__}: {exc}{_place(exc, kind.__module__)}"
            ) from exc


def _place(error: BaseException, module: str) -> str:
    """Where in a strategy's own file an error comes from; empty where none of its lines took part."""
    frames = [
        (frame.f_code.co_filename.rpartition("/")[2], line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") == module
    ]
    return " ({}, line {})".format(*frames[-1]) if frames else ""


def _expected(found: object, kind: type[R]) -> R:
    """The value, if it is all that its type says. Raises ``TypeError``."""
    if not isinstance(found, kind):
        raise TypeError(f"gave a {type(found).__name__}, expected a {kind.__name__}")
    _require(kind.__name__, found, kind)
    return found


def _expected_state(found: object, context: Context) -> State:
    """The state, if its model is a finite one (n,) of the run's layout. Raises ``TypeError``."""
    state, size = _expected(found, State), context.layout.size
    if state.theta.shape != (size,):
        raise _unlike("State.theta", state.theta, f"float32 ({size},)")
    if not np.isfinite(state.theta).all():
        first = int(np.argmin(np.isfinite(state.theta)))
        raise _unlike(f"State.theta[{first}]", float(state.theta[first]), "a finite number")
    return state


def _require(where: str, found: object, annotation: Any) -> None:
    """Raise ``TypeError`` unless a value is what its annotation says, to its last part."""
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if kind is UnionType:  # of something, and None
        if found is not None:
            _require(where, found, arguments[0])
        return
    accepted = _ACCEPTED.get(kind, (kind,))
    dtype = get_args(arguments[1])[0] if kind is np.ndarray else None
    expected = f"an array of {dtype.__name__}" if dtype else accepted[0].__name__
    if not (type(found) in accepted if kind in _SCALARS else isinstance(found, accepted)):
        raise _unlike(where, found, expected)
    if isinstance(found, np.ndarray) and found.dtype != dtype:
        raise _unlike(where, found, expected)
    for place, part, of in _parts(found, kind, arguments):
        _require(f"{where}{place}", part, of)
    if isinstance(found, msgspec.Struct):
        _require_decoded(where, found, kind)
    if isinstance(found, str):
        found.encode()  # which a lone surrogate would not let us when it is stored


def _parts(
    found: object, kind: type, arguments: tuple[Any, ...]
) -> Iterator[tuple[str, object, Any]]:
    """Place, value and annotation of each part of a collection or a dataclass."""
    match found:
        case dict():
            for key, part in found.items():
                yield ", a key", key, arguments[0]
                yield f"[{key!r}]", part, arguments[1]
        case tuple() | list() | set() | frozenset():
            for place, part in enumerate(found):
                yield f"[{place}]", part, arguments[0]
        case _ if is_dataclass(kind):
            for name, annotation in _annotations(kind).items():
                yield f".{name}", getattr(found, name), annotation
        case _:
            pass


def _require_decoded(where: str, found: object, kind: type) -> None:
    """Raise ``TypeError`` unless a record that travels would arrive: msgspec checks when it decodes."""
    try:
        msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=kind)
    except (TypeError, ValueError) as exc:  # msgspec's errors
        raise TypeError(f"{where}: {exc}") from exc


@cache
def _annotations(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _unlike(where: str, found: object, expected: str) -> TypeError:
    shown = f"{found.dtype} {found.shape}" if isinstance(found, np.ndarray) else reprlib.repr(found)
    return TypeError(f"{where}: found {shown}, expected {expected}")
