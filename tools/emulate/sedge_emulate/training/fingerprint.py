"""Computes a digest of everything that an export or a trainer's check depends on.

It covers the model as an object, with its weights and all other attributes; the user's code that it
refers to, including the values stored in modules, classes and functions; the source of all the user's
modules and of the files next to them; Sedge's own source; the installed packages, by their RECORD files;
and the processor. A model that refers to something that cannot be pickled, such as an open file, has no
digest. Files that a model reads while it computes are not covered.
"""

import builtins
import hashlib
import pickle
import platform
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from operator import attrgetter
from pathlib import Path
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import torch
from torch import Tensor, nn

import sedge_edge
import sedge_emulate
import sedge_export
import sedge_protocol

_SEDGE = [
    Path(each.__path__[0]) for each in (sedge_edge, sedge_emulate, sedge_export, sedge_protocol)
]
_PYTHON = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_CPU = Path("/proc/cpuinfo")
_Memo = type(cache(len))
# Class attributes that Python itself adds (for pickle, abc and annotations). They may change, but no
# result depends on them.
_ASIDE = ("__slotnames__", "_abc_impl", "__annotations__")


def fingerprint(
    module: nn.Module, *recipe: object, note: Callable[[str], object] = lambda line: None
) -> bytes | None:
    """Return a digest (32 bytes) of a model and the work done with it, or None if that is impossible.

    ``recipe`` describes the work by values that pickle to the same bytes in every process. ``note`` is
    called with the reason if there is no digest. Modules that the model imports while it computes are not
    covered yet: callers compute the digest again afterwards, and keep their product only if the digest has
    not changed.
    """
    digest = hashlib.sha256()
    try:
        users = _users()
        _Pickler(_Sink(digest.update), users).dump((module, recipe))
        for part in _surroundings(users):
            digest.update(len(part).to_bytes(8, "little") + part)
    except Exception as exc:  # pickle calls the user's objects, which may raise anything
        why = str(exc).partition("\n")[0] or type(exc).__name__
        note(f"cache: not used for this model: {why}")
        return None
    return digest.digest()


@dataclass
class _Sink:
    """A file object that passes a pickler's output to a function."""

    write: Callable[[bytes], object]


class _Pickler(pickle.Pickler):
    """Pickles a model so that equal models give equal bytes.

    Tensors are pickled as digests, because torch's own pickles contain addresses. Sets are sorted. The
    user's modules, classes and functions are pickled by content, where pickle itself would store only
    their names.
    """

    def __init__(self, file: _Sink, users: dict[str, ModuleType]) -> None:
        super().__init__(file, protocol=5)
        self._users = users

    def reducer_override(self, value: Any) -> Any:
        """Return what to pickle in place of a tensor or of user code."""
        if isinstance(value, Tensor):
            content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            kind = type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad
            return str, (f"{kind} {hashlib.sha256(content.data).hexdigest()}",)
        parts = self._parts(value)
        # The parts are pickled as the object's state, because only state may refer back to the object
        # itself.
        return NotImplemented if parts is None else (object, (), (type(value).__name__, parts))

    def persistent_id(self, value: Any) -> Any:
        """Return what to pickle in place of a set: its sorted elements."""
        return sorted(map(repr, value)) if isinstance(value, set | frozenset) else None

    def _parts(self, value: Any) -> object:
        users = self._users
        match value:
            case ModuleType(__name__=name):
                return name, sorted(_held(value)) if name in users else None
            case type(__module__=name) if name in users:
                return (
                    value.__qualname__,
                    type(value),
                    value.__bases__,
                    sorted(_held(value)),
                    users[name],
                )
            case type(__module__="builtins") if not hasattr(builtins, value.__name__):
                return value.__name__  # such as mappingproxy: not an attribute of builtins
            case FunctionType():
                home = users.get(value.__globals__.get("__name__", ""))
                if home is None and value.__module__ not in users and _is_found(value):
                    return None
                cells = [cell.cell_contents for cell in value.__closure__ or ()]
                given = value.__defaults__, value.__kwdefaults__, cells, vars(value)
                return value.__qualname__, value.__code__, given, home
            case CodeType():
                names = set(value.co_names)  # including modules that the code imports
                found = [users[name] for name in users if names & {name, name.rpartition(".")[2]}]
                return value.co_code, value.co_consts, value.co_names, found
            case property():
                return value.fget, value.fset, value.fdel
            case classmethod() | staticmethod() | _Memo():
                return (value.__wrapped__,)
            case cached_property():
                return (value.func,)
            case MappingProxyType():
                return dict(value)
            case _:
                return None


def _is_found(function: FunctionType) -> bool:
    """Return True if pickle could find the function by its module and name."""
    try:
        found = attrgetter(function.__qualname__)(sys.modules[function.__module__])
    except (AttributeError, KeyError):  # a local function
        return False
    return found is function


def _held(owner: ModuleType | type) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of each attribute of a module or class that results may depend on."""
    for name, value in vars(owner).items():
        own = not name.startswith("__") if isinstance(owner, ModuleType) else name not in _ASIDE
        if own and not isinstance(value, GetSetDescriptorType | MemberDescriptorType):
            yield name, value


def _surroundings(users: dict[str, ModuleType]) -> Iterator[bytes]:
    places = {_place(module) for module in users.values()}
    folders = {place if place.is_dir() else place.parent for place in places}
    beside = {path for folder in folders for path in folder.glob("*.py")}
    yield from _content(beside | {place for place in places if not place.is_dir()})
    for package in _SEDGE:
        yield from _content(package.rglob("*.py"))
    for folder in map(Path, sys.path):
        installed = sorted(folder.glob("*.dist-info"))
        yield repr([found.name for found in installed]).encode()
        records = (found / "RECORD" for found in installed)
        yield from _content(record for record in records if record.exists())
    lines = _CPU.read_text().splitlines() if _CPU.exists() else [platform.processor()]
    names = sorted({line for line in lines if line.startswith(("model name", "Features"))})
    capability = torch.backends.cpu.get_cpu_capability()
    yield repr((sys.version, platform.machine(), names or lines[:1], capability)).encode()


def _users() -> dict[str, ModuleType]:
    """Return the user's modules by name: all but those of Python, Sedge and installed packages."""
    return {
        name: module
        for name, module in sorted(sys.modules.items())
        if not name.startswith("__")
        and (place := _place(module)) != Path()
        and not any(place.is_relative_to(folder) for folder in (_PYTHON, *_SEDGE))
        and not any(folder in place.parts for folder in _INSTALLED)
    }


def _place(module: ModuleType) -> Path:
    """Return the module's file, or its folder if it is a package without one; Path() if it is built in."""
    own = vars(module)  # getattr would fail for torch.classes
    return Path(own.get("__file__") or next(iter(own.get("__path__") or ()), ""))


def _content(paths: Iterable[Path]) -> Iterator[bytes]:
    for path in sorted(paths):
        yield path.name.encode() + path.read_bytes()
