"""Reads pickles that hold only numpy arrays and plain containers, without running any code in them.

A pickle names functions for ``pickle.load`` to call, so loading somebody else's pickle runs their code.
Here, only names that this file replaces with its own functions are accepted. numpy itself never sees the
pickle, only bytes whose type and shape have been checked.

A pickle may also refer to values that it has already built, so a few bytes can stand for billions of
values. That is why values are counted. References to a tuple are not allowed at all: dicts hash their keys
while a pickle loads, and hashing nested references to tuples can take exponential time.
"""

import pickle
import pickletools
import re
from collections.abc import Callable, Container, Iterator, Mapping
from io import BytesIO
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import DataError

_NUMBER = re.compile(r"b1|[iu][1248]|f[248]")
_OBJECT = "O8"
# A pandas table nests a dozen containers, more than anything else read here.
_DEPTH = 16
# Each value takes at least one byte of the pickle, except for references to values built before. The limit
# leaves room for those.
_VALUES_A_BYTE = 16
_PUTS, _GETS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
# After these opcodes the top of the stack may be a tuple.
_TUPLES = ("TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "POP", "POP_MARK", *_GETS)


def read_plain(file: BinaryIO, where: str, hollow: Container[str] = ()) -> object:
    """Unpickle dicts, lists, tuples, numbers, strings and numpy arrays. Tuples become lists.

    ``hollow`` lists further classes and functions ("module.name") that are accepted but not loaded. Their
    objects are read as their state or, if they have none, as the list of their arguments.

    Raises ``DataError``, which names ``where``, if the pickle is damaged, names anything else, or unpacks
    to far more values than its size suggests.
    """
    try:
        data = file.read()
        _refuse_shared_tuples(data)
        left = iter(range(_VALUES_A_BYTE * len(data)))
        return _unwrapped(_Unpickler(BytesIO(data), hollow).load(), _DEPTH, left)
    except Exception as exc:  # broken or hostile bytes can raise any exception
        expected = "a pickle of only numpy arrays, dicts and lists"
        raise DataError(f"{where}: {exc or type(exc).__name__}, expected {expected}") from exc


class _Type:
    """A stand-in for a numpy dtype of numbers or objects."""

    def __init__(self, code: str, *_: object) -> None:
        if code != _OBJECT and not _NUMBER.fullmatch(code):
            raise pickle.UnpicklingError(f"an array of type {code!r}")
        self.code, self.order = code, "="

    def __setstate__(self, state: tuple[object, ...]) -> None:
        order = state[1]
        if order not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"byte order {order!r}")
        self.order = str(order)

    def array(self, data: bytes) -> NDArray[np.generic]:
        """Return the numbers in these bytes as an array (n,)."""
        if self.code == _OBJECT:
            raise pickle.UnpicklingError("objects as bytes")
        return np.frombuffer(data, np.dtype(self.order + self.code))


class _Array:
    """A stand-in for a numpy array. ``value`` is an array of numbers, or a list of objects."""

    def __init__(self, *_: object) -> None:
        self.value: object = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Type, bool, object]) -> None:
        _, shape, kind, fortran, data = state
        if kind.code == _OBJECT:
            self.value = data
        else:
            flat = kind.array(cast(bytes, data))
            self.value = flat.reshape(shape, order="F" if fortran else "C")


class _Hollow:
    """A stand-in for an object whose class is not loaded.

    ``value`` is its state or, if none, its arguments.
    """

    def __init__(self, *arguments: object) -> None:
        self.value: object = arguments

    def __setstate__(self, state: object) -> None:
        self.value = state


def _from_buffer(data: bytes, kind: _Type, shape: tuple[int, ...], order: str) -> _Array:
    made = _Array()
    made.value = kind.array(data).reshape(shape, order="F" if order == "F" else "C")
    return made


def _scalar(kind: _Type, data: bytes) -> object:
    return kind.array(data)[0].item()


def _no_bytes() -> bytes:
    """Replace ``bytes()``, which protocol 2 calls for b""."""
    return b""


def _latin1(text: str, encoding: str) -> bytes:
    """Replace ``_codecs.encode``, which protocol 2 calls for non-empty bytes."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as {encoding!r}")
    return text.encode("latin1")


_KNOWN: Mapping[tuple[str, str], Callable[..., object] | None] = {
    ("numpy", "ndarray"): None,  # never called, only passed as an argument
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _latin1,
    ("builtins", "bytes"): _no_bytes,
    ("__builtin__", "bytes"): _no_bytes,
    **{
        (f"numpy.{core}.{module}", name): made
        for core in ("core", "_core")  # numpy 1 has the first, numpy 2 the second
        for module, name, made in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, hollow: Container[str]) -> None:
        super().__init__(file)
        self._hollow = hollow

    def find_class(self, module_name: str, global_name: str, /) -> object:
        name = (module_name, global_name)
        if ".".join(name) in self._hollow:
            return _Hollow
        if name not in _KNOWN:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}")
        return _KNOWN[name]


def _refuse_shared_tuples(data: bytes) -> None:
    """Refuse a pickle that refers to a tuple twice.

    If tuples are nested n deep, each holding the next one twice, hashing the outermost takes 2^n steps.
    """
    memo: dict[int, bool] = {}
    on_top = ""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _PUTS:
            memo[len(memo) if argument is None else argument] = on_top in _TUPLES
        elif opcode.name == "DUP" or (opcode.name in _GETS and memo.get(cast(int, argument))):
            raise pickle.UnpicklingError("it names a tuple twice")
        elif opcode.name != "FRAME":
            on_top = opcode.name


def _unwrapped(value: object, depth: int, left: Iterator[int]) -> object:
    """Replace the stand-ins in ``value`` with their numpy arrays and lists.

    ``left`` yields once for each value that is still allowed. If it is exhausted, there are too many
    values.
    """
    if depth == 0:
        raise pickle.UnpicklingError(f"containers nested more than {_DEPTH} deep")
    if next(left, None) is None:
        raise pickle.UnpicklingError("more values than that many bytes can hold")
    match value:
        case _Array() | _Hollow():
            return _unwrapped(value.value, depth - 1, left)
        case dict():
            items = cast(dict[object, object], value).items()
            return {key: _unwrapped(item, depth - 1, left) for key, item in items}
        case list() | tuple():
            return [_unwrapped(item, depth - 1, left) for item in cast(list[object], value)]
        case _:
            return value
