"""The digest of everything that an export, or a trainer's check, depends on.

It is of the model as an object, with its weights and every other attribute; of the source and the globals
of the user's modules, and of the modules beside them; of Sedge's own source; of the packages that are
installed, with their versions; and of the processor. A model that cannot be pickled, such as one with a
lambda among its attributes, has no digest. What a model reads from files while it computes is not in it.
"""

import hashlib
import io
import pickle
import platform
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import sedge_edge
import sedge_emulate
import sedge_export
import sedge_protocol

_SEDGE = (sedge_edge, sedge_emulate, sedge_export, sedge_protocol)
_PYTHON = Path(sysconfig.get_path("stdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_CPU = Path("/proc/cpuinfo")


def fingerprint(module: nn.Module, *recipe: object) -> bytes | None:
    """The digest (32 bytes) of a model and of what is done with it; None for a model that has none.

    ``recipe`` is of values that pickle to the same bytes in every process: no sets of texts.
    """
    digest = hashlib.sha256()
    try:
        parts = [_pickled(module), *map(_pickled, recipe)]
    except Exception:  # pickle asks the user's objects, which may raise anything
        return None
    for part in (*parts, *_surroundings()):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


class _Pickler(pickle.Pickler):
    """Tensors by their digests, as torch's own pickles hold addresses; sets in order."""

    def reducer_override(self, value: Any) -> Any:
        """What to pickle in the place of a tensor."""
        if not isinstance(value, Tensor):
            return NotImplemented
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        kind = type(value).__name__, str(value.dtype), tuple(value.shape), value.requires_grad
        return str, (f"{kind} {hashlib.sha256(content.data).hexdigest()}",)

    def persistent_id(self, value: Any) -> Any:
        """What to pickle in the place of a set."""
        return sorted(map(repr, value)) if isinstance(value, set | frozenset) else None


def _pickled(value: object) -> bytes:
    file = io.BytesIO()
    _Pickler(file, protocol=5).dump(value)
    return file.getvalue()


def _surroundings() -> Iterator[bytes]:
    for module in _users():
        yield from _content(Path(str(module.__file__)).parent.glob("*.py"))
        for name, value in sorted(vars(module).items()):
            if not name.startswith("__"):
                try:
                    yield name.encode() + _pickled(value)
                except Exception:  # a module or a lambda: its source is in the digest
                    continue
    for package in _SEDGE:
        yield from _content(Path(package.__path__[0]).rglob("*.py"))
    for folder in sys.path:
        yield repr(sorted(found.name for found in Path(folder).glob("*.dist-info"))).encode()
    lines = _CPU.read_text().splitlines() if _CPU.exists() else [platform.processor()]
    names = sorted({line for line in lines if line.startswith(("model name", "Features"))})
    capability = torch.backends.cpu.get_cpu_capability()
    yield repr((sys.version, platform.machine(), names or lines[:1], capability)).encode()


def _users() -> list[ModuleType]:
    """The modules that belong to no installed package, by name."""
    return [
        module
        for name, module in sorted(sys.modules.items())
        if (file := getattr(module, "__file__", None))
        and not name.startswith(("sedge_", "__"))
        and Path(file).is_absolute()  # torch.ops is no file
        and not Path(file).is_relative_to(_PYTHON)
        and not any(folder in Path(file).parts for folder in _INSTALLED)
    ]


def _content(paths: Iterator[Path]) -> Iterator[bytes]:
    for path in sorted(paths):
        yield path.name.encode() + path.read_bytes()
