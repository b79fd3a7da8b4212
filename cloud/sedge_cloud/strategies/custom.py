"""Guards a user's own strategy, so that its mistakes can end its run but do no other harm.

A coordinator also serves other runs, and a strategy that fails once would fail again after every restart.
Anything its code raises becomes a ``StrategyError`` that names the strategy and the step, and the run fails
with that text. Anything its code returns is fully checked against the annotations of ``State`` and
``Assignment``, as a value of another type would otherwise fail only later, when it is stored or sent. n is
the number of parameters.
"""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from traceback import walk_tb
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from msgspec.msgpack import Ext
from numpy.typing import NDArray

from sedge_cloud.strategy import Assignment, ClientModel, Context, State, Strategy, Update
from sedge_protocol.codec import SparseVector, ValueCoding
from sedge_protocol.errors import ConfigError, StorageError, StrategyError
from sedge_protocol.layout import Layout
from sedge_protocol.wire.work import Codec, Work

R = TypeVar("R")

# The MessagePack extension types used to check values.
_ARRAY, _OTHER = 0, 1


class Custom(Strategy, frozen=True):
    """Wraps the strategy ``inner``, so that its methods raise only ``SedgeError``."""

    inner: Strategy

    @property
    def coordinate_rules(self) -> bool:
        """Return True if ``inner`` follows coordinate-wise robust rules."""
        with self._step("coordinate_rules"):
            return bool(self.inner.coordinate_rules)

    @property
    def widths_vary(self) -> bool:
        """Return True if ``inner`` may give a device a narrower form of the model."""
        with self._step("widths_vary"):
            return bool(self.inner.widths_vary)

    @property
    def codec(self) -> Codec:
        """Return how devices encode their updates under ``inner``."""
        with self._step("codec"):
            return _expected(self.inner.codec, Codec)

    @property
    def later_words(self) -> tuple[str, ...]:
        """Return the protocol extensions that ``inner`` uses only after a device's first order."""
        with self._step("later_words"):
            return _expected(self.inner.later_words, tuple[str, ...])

    @property
    def patch_values(self) -> ValueCoding:
        """Return how patches are encoded under ``inner``."""
        with self._step("patch_values"):
            return _expected(self.inner.patch_values, ValueCoding)

    def remarks(self, layouts: Sequence[Layout], personal: int | None = None) -> tuple[str, ...]:
        """Return the remarks of ``inner`` about its options."""
        with self._step("remarks"):
            said = self.inner.remarks(layouts, personal)
            _require("remarks", said, tuple[str, ...])
            return said

    def init(self, context: Context) -> State:
        """Return the state before the first round."""
        with self._step("init"):
            return _expected_state(self.inner.init(context), context)

    def plan(self, context: Context, client: ClientModel) -> Assignment:
        """Return one device's assignment for a round."""
        with self._step("plan"):
            return _expected(self.inner.plan(context, client), Assignment)

    def apply(self, context: Context, updates: Iterable[Update]) -> State:
        """Return the state after a round."""
        with self._step("apply"):
            return _expected_state(self.inner.apply(context, updates), context)

    @contextmanager
    def _step(self, step: str) -> Generator[None]:
        try:
            yield
        except (ConfigError, StrategyError, StorageError):  # the scheduler handles these
            raise
        except (Exception, SystemExit) as exc:  # the user's code may raise anything
            kind = type(self.inner)
            where = f"{kind.__module__}:{kind.__qualname__}.{step}"
            raise StrategyError(
                f"{where}: {type(exc).__name__}: {exc}{_place(exc, kind.__module__)}"
            ) from exc


def _place(error: BaseException, module: str) -> str:
    """Return the line of the strategy's own file in which an error arose; empty if none is known."""
    frames = [
        (frame.f_code.co_filename.rpartition("/")[2], line)
        for frame, line in walk_tb(error.__traceback__)
        if frame.f_globals.get("__name__") == module
    ]
    return " ({}, line {})".format(*frames[-1]) if frames else ""


def _expected(value: object, kind: type[R]) -> R:
    """Return the value. Raises ``TypeError`` if it or one of its parts has the wrong type."""
    if not isinstance(value, kind):
        raise TypeError(f"gave a {type(value).__name__}, expected a {kind.__name__}")
    _require(kind.__name__, value, kind)
    return value


def _expected_state(value: object, context: Context) -> State:
    """Return the state. Raises ``TypeError`` unless its model is finite and has the run's layout."""
    state, size = _expected(value, State), context.layout.size
    if state.theta.shape != (size,):
        raise TypeError(f"State.theta: found shape {state.theta.shape}, expected ({size},)")
    if not np.isfinite(state.theta).all():
        first = int(np.argmin(np.isfinite(state.theta)))
        found = state.theta[first]
        raise TypeError(f"State.theta[{first}]: found {found}, expected a finite number")
    return state


def _require(where: str, value: object, kind: Any) -> None:
    """Raise ``TypeError`` unless msgspec can encode a value and decode it as this type, within its ranges.

    An array is encoded as its index in a list. Values that MessagePack cannot express match no type.
    """
    arrays, others = list[NDArray[Any]](), list[str]()

    def code(part: object) -> Ext:
        if isinstance(part, np.ndarray):
            arrays.append(part)
            return Ext(_ARRAY, str(len(arrays) - 1).encode())
        others.append(f" ({type(part).__module__}.{type(part).__qualname__})")
        return Ext(_OTHER, b"")

    def decode(annotation: Any, coded: object) -> NDArray[Any]:
        dtype = get_args(get_args(annotation)[1])[0]
        is_array = isinstance(coded, Ext) and coded.code == _ARRAY
        array = arrays[int(coded.data)] if isinstance(coded, Ext) and is_array else None
        if array is None or array.dtype != dtype:
            found = type(coded).__name__ if array is None else array.dtype
            raise ValueError(f"Expected an array of {dtype.__name__}, got {found}")
        return array

    try:
        coded = msgspec.msgpack.encode(value, enc_hook=code)
        decoded: object = msgspec.msgpack.decode(coded, type=kind, dec_hook=decode)
    except (TypeError, ValueError) as exc:  # msgspec's errors, or a string with a lone surrogate
        raise TypeError(f"{where}: {exc}{others[0] if len(others) == 1 else ''}") from exc
    for name, part in vars(decoded).items() if is_dataclass(decoded) else ():
        given = getattr(value, name)
        if isinstance(part, Work | SparseVector) and not isinstance(given, type(part)):
            expected = type(part).__name__
            raise TypeError(
                f"{where}.{name}: found a {type(given).__name__}, expected a {expected}"
            )
