"""Runs .pte files in the ExecuTorch runtime, without torch and without executorch's Python package.

The distribution sedge-executorch contains the runtime's own libraries and a small C interface to them
(edge/native/sedge_executorch.cpp). A program is a method with positional inputs and outputs. Only pointers
cross the interface, so every array is checked here first. Outputs are written into new arrays. This takes
one copy if the program's memory plan includes the outputs, and none otherwise.
"""

import ctypes
import threading
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, cast
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from sedge_edge.backends.bundle_trainer import Arrays
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.host.memory_limit import memory_mb
from sedge_protocol.wire.programs import Signature

PACKAGE = "sedge_executorch"
LIBRARY = "libsedge_executorch.so"
# The version of the C interface. It changes whenever the functions or their behaviour change.
_ABI = 1
_MAX_DIMS = 16
# The types that programs use, keyed by their numbers in ExecuTorch's ScalarType.
_DTYPES: dict[int, DTypeLike] = {0: np.uint8, 3: np.int32, 4: np.int64, 6: np.float32, 11: np.bool_}


class _Tensor(NamedTuple):
    """An input or output of a program. ``name`` is our own, because .pte files have no names."""

    name: str
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype} {self.shape}"


class Library:
    """The C interface, loaded from a folder.

    Raises ``ImportError`` if the library is missing or has a different version.
    """

    def __init__(self, folder: Path) -> None:
        try:
            self.native = ctypes.CDLL(str(folder / LIBRARY))
            abi = self.native.sedge_et_abi()
        except (OSError, AttributeError) as exc:
            raise ImportError(f"{folder / LIBRARY}: {exc}") from exc
        if abi != _ABI:
            raise ImportError(f"{folder / LIBRARY}: interface {abi}, but this version needs {_ABI}")
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.native.sedge_et_error.restype = ctypes.c_char_p
        self.native.sedge_et_open.restype = pointer
        self.native.sedge_et_open.argtypes = [ctypes.c_char_p, size]
        self.native.sedge_et_close.argtypes = [pointer]
        self.native.sedge_et_close.restype = None
        self.native.sedge_et_load.restype = pointer
        self.native.sedge_et_load.argtypes = [pointer, ctypes.c_char_p, ctypes.c_uint64]
        self.native.sedge_et_free.argtypes = [pointer]
        self.native.sedge_et_free.restype = None
        self.native.sedge_et_count.argtypes = [pointer, ctypes.c_int]
        self.native.sedge_et_count.restype = size
        self.native.sedge_et_tensor.argtypes = [pointer, ctypes.c_int, size, pointer, pointer, size]
        self.native.sedge_et_tensor.restype = size
        self.native.sedge_et_run.argtypes = [pointer, pointer, pointer]
        self._threads: int | None = None
        self._lock = threading.Lock()

    def error(self) -> CodecError:
        """Return an error with the message of this thread's last call."""
        text = cast(bytes, self.native.sedge_et_error()).decode(errors="replace")
        return CodecError("".join(sign if sign.isprintable() else "?" for sign in text))

    def use_threads(self, threads: int) -> None:
        """Set the number of threads for all programs.

        Raises ``ConfigError`` if this process already uses a different number.
        """
        with self._lock:
            if self._threads is None:
                if not self.native.sedge_et_set_threads(threads):
                    raise ImportError(f"{self.error()}; is /sys/devices/system/cpu readable?")
                self._threads = threads
            if self._threads != threads:
                expected = f"{self._threads}, as for this process's other programs in executorch"
                raise ConfigError("backend.threads", threads, expected)


def _memory_limit() -> int:
    """Return the memory limit for a program in bytes, or 0 if unknown.

    A program that needs more fails without affecting others, as with onnxruntime.
    """
    return memory_mb() * 10**6 * 3 // 4


@lru_cache(maxsize=1)
def library() -> Library:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"no package {PACKAGE}")
    return Library(Path(spec.submodule_search_locations[0]))


class _File:
    """A .pte file. Only one of its programs runs at a time.

    It is closed between jobs to free memory, as opening it again takes only milliseconds.
    """

    def __init__(self, data: bytes) -> None:
        self.lock = threading.Lock()  # held while a thread calls a method
        self._library = library()
        self._data = data
        self._file: int | None = None
        self._programs: dict[str, int] = {}

    def program(self, name: str) -> int:
        """Return the native program for the method with this name."""
        native = self._library.native
        if self._file is None:
            self._file = native.sedge_et_open(self._data, len(self._data))
        if self._file is not None and name not in self._programs:
            loaded: int | None = native.sedge_et_load(self._file, name.encode(), _memory_limit())
            if loaded is not None:
                self._programs[name] = loaded
        if name not in self._programs:
            raise self._library.error()
        return self._programs[name]

    def close(self) -> None:
        """Close the file and return all its memory to the system."""
        for program in self._programs.values():
            self._library.native.sedge_et_free(program)
        self._programs.clear()
        if self._file is not None:
            self._library.native.sedge_et_close(self._file)
        self._file = None

    __del__ = close


# The open files, keyed by content. The programs of a bundle share one file.
_files: WeakValueDictionary[bytes, _File] = WeakValueDictionary()
_files_lock = threading.Lock()


def _opened(data: bytes) -> _File:
    with _files_lock:
        file = _files.get(data)
        if file is None:
            file = _files[data] = _File(data)
        return file


class ExecutorchProgram:
    """A ``LoadedProgram`` from a .pte file.

    Raises ``ImportError`` if the runtime's libraries are missing.
    """

    def __init__(self, data: bytes, signature: Signature, threads: int) -> None:
        self._library = library()
        self._library.use_threads(threads)
        self._file = _opened(data)
        self._name = signature.program
        with self._file.lock:
            program = self._file.program(self._name)
            self._inputs = self._tensors(program, signature.inputs, 0)
            self._outputs = self._tensors(program, signature.outputs, 1)

    def run(self, feeds: Arrays, last: bool) -> list[NDArray[np.float32]]:
        """Run the program. Returns its outputs in order, in new arrays.

        The ``last`` run of a call returns all other memory to the system.
        """
        given = [_checked(feeds[tensor.name], tensor) for tensor in self._inputs]
        made = [np.empty(tensor.shape, np.float32) for tensor in self._outputs]
        with self._file.lock:
            program = self._file.program(self._name)
            done = self._library.native.sedge_et_run(program, _addresses(given), _addresses(made))
            if not done:
                raise self._library.error()
            if last:
                self._file.close()
        return made

    def _tensors(self, program: int, names: tuple[str, ...], outputs: int) -> list[_Tensor]:
        kind = "outputs" if outputs else "inputs"
        native = self._library.native
        count = native.sedge_et_count(program, outputs)
        if count != len(names):
            raise CodecError(f"it has {count} {kind}, expected {len(names)}: {', '.join(names)}")
        dtype, shape = ctypes.c_int32(), (ctypes.c_int32 * _MAX_DIMS)()
        tensors: list[_Tensor] = []
        for index, name in enumerate(names):
            dims = native.sedge_et_tensor(
                program, outputs, index, ctypes.byref(dtype), shape, _MAX_DIMS
            )
            if dtype.value not in _DTYPES or (outputs and dtype.value != 6) or dims > _MAX_DIMS:
                raise CodecError(
                    f"{name}: type {dtype.value} of {dims} dimensions is not supported"
                )
            tensors.append(_Tensor(name, np.dtype(_DTYPES[dtype.value]), tuple(shape[:dims])))
        return tensors


def _checked(array: NDArray[np.generic], tensor: _Tensor) -> NDArray[np.generic]:
    """Return the array in a form that native code can read.

    Raises ``CodecError`` if its type or shape is not the program's.
    """
    if array.dtype != tensor.dtype or array.shape != tensor.shape:
        found = f"{array.dtype} {array.shape}"
        raise CodecError(f"{tensor.name}: found {found}, expected {tensor}")
    return np.ascontiguousarray(array) if array.ndim else array


def _addresses(arrays: Sequence[NDArray[np.generic]]) -> "ctypes.Array[ctypes.c_void_p]":
    pointers = (array.__array_interface__["data"][0] for array in arrays)
    return (ctypes.c_void_p * len(arrays))(*pointers)
