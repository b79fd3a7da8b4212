"""Describes where each tensor is in a model's flat float32 vector.

A model is a vector ``theta`` of shape (n,), and its layout names the slices. Two peers agree on a model's
tensors exactly when their layouts have the same hash; the hash does not depend on any values.
"""

import hashlib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from sedge_protocol.errors import CodecError

Theta: TypeAlias = NDArray[np.float32]

# 2**28 parameters are 1 GiB of float32: more than a device of 512 MB can hold, and byte offsets stay below
# 2**31.
MAX_PARAMETERS = 2**28
MAX_TENSORS = 4096
# Orders can name any tensor that a device keeps, so a tensor's name has the same limits as messages.Name.
MAX_NAME_CHARS = 256
# numpy 1 has this limit and PyTorch allows 64; real layers have at most 5 dimensions.
MAX_RANK = 32


class Role(StrEnum):
    """A tensor's purpose. ``statistic`` tensors (BatchNorm's) are neither scored nor averaged."""

    PARAMETER = "parameter"
    STATISTIC = "statistic"


class Tensor(msgspec.Struct, frozen=True):
    """A named slice of theta."""

    name: str
    shape: tuple[int, ...]
    offset: int
    role: Role = Role.PARAMETER

    @property
    def size(self) -> int:
        """The number of elements, 1 for a scalar."""
        size = 1
        for extent in self.shape:
            size *= extent
        return size

    @property
    def slice(self) -> slice:
        """The tensor's place in theta."""
        return slice(self.offset, self.offset + self.size)


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The tensors of a model in order, without gaps.

    The constructor raises ``CodecError`` if a name repeats, an extent is not positive, offsets leave gaps,
    or a limit is exceeded. So a decoded layout is always valid.
    """

    tensors: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        if not 0 < len(self.tensors) <= MAX_TENSORS:
            raise CodecError(f"layout: {len(self.tensors)} tensors, expected 1 to {MAX_TENSORS}")
        offset = 0
        names: set[str] = set()
        for i, tensor in enumerate(self.tensors):
            if tensor.name in names:
                raise CodecError(f"layout.tensors[{i}]: duplicate name {tensor.name!r}")
            if not 0 < len(tensor.name) <= MAX_NAME_CHARS or len(tensor.shape) > MAX_RANK:
                raise CodecError(
                    f"layout.tensors[{i}]: a name of {len(tensor.name)} characters, limit "
                    f"{MAX_NAME_CHARS}, {len(tensor.shape)} extents, limit {MAX_RANK}"
                )
            if any(extent < 1 for extent in tensor.shape):
                raise CodecError(f"layout.tensors[{i}]: shape {tensor.shape} has an empty extent")
            if tensor.offset != offset:
                raise CodecError(f"layout.tensors[{i}]: offset {tensor.offset}, expected {offset}")
            names.add(tensor.name)
            offset += tensor.size
            if offset > MAX_PARAMETERS:
                raise CodecError(f"layout: more than {MAX_PARAMETERS} parameters")

    @classmethod
    def of(cls, shapes: Iterable[tuple[str, tuple[int, ...], Role]]) -> "Layout":
        """Create a layout from named shapes, in this order."""
        tensors: list[Tensor] = []
        offset = 0
        for name, shape, role in shapes:
            tensors.append(Tensor(name, shape, offset, role))
            offset += tensors[-1].size
        return cls(tuple(tensors))

    @cached_property
    def size(self) -> int:
        """The number of elements of theta, n."""
        return self.tensors[-1].offset + self.tensors[-1].size

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """The offset in theta after each tensor."""
        return np.cumsum([tensor.size for tensor in self.tensors])

    @cached_property
    def hash(self) -> bytes:
        """SHA-256 over names, shapes and roles (32 bytes)."""
        rows = [(t.name, t.shape, t.role.value) for t in self.tensors]
        return hashlib.sha256(msgspec.msgpack.encode(rows)).digest()

    @cached_property
    def by_name(self) -> Mapping[str, Tensor]:
        """The tensors by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def statistics(self) -> tuple[str, ...]:
        """Names of the tensors with role ``statistic``."""
        return tuple(t.name for t in self.tensors if t.role is Role.STATISTIC)

    @cached_property
    def normalisation(self) -> tuple[str, ...]:
        """Names of all tensors in modules with statistics, such as BatchNorm's statistics, scale and shift.

        Norms without statistics (GroupNorm, LayerNorm) are not included, because a layout cannot tell them
        from other modules.
        """
        modules = {name.rpartition(".")[0] for name in self.statistics}
        return tuple(t.name for t in self.tensors if t.name.rpartition(".")[0] in modules)

    @cached_property
    def head(self) -> tuple[str, ...]:
        """Names of the parameters of the last module, which is usually the classifier."""
        parameters = [t.name for t in self.tensors if t.role is Role.PARAMETER]
        module = parameters[-1].rpartition(".")[0] if parameters else ""
        return tuple(name for name in parameters if name.rpartition(".")[0] == module)

    def mask(self, names: Iterable[str]) -> NDArray[np.bool_]:
        """Return a boolean mask (n,) of the named tensors. Raises ``CodecError`` for an unknown name."""
        mask = np.zeros(self.size, np.bool_)
        for name in names:
            if name not in self.by_name:
                raise CodecError(f"layout: no tensor named {name!r}")
            mask[self.by_name[name].slice] = True
        return mask

    def views(self, theta: Theta) -> dict[str, NDArray[np.float32]]:
        """Return the named tensors as views of theta (n,), each in its own shape."""
        self.check(theta)
        return {t.name: theta[t.slice].reshape(t.shape) for t in self.tensors}

    def flatten(self, tensors: Mapping[str, NDArray[np.float32]]) -> Theta:
        """Concatenate named arrays to a vector (n,).

        Raises ``CodecError`` for a missing name or wrong shape.
        """
        theta = np.empty(self.size, np.float32)
        for t in self.tensors:
            if t.name not in tensors:
                raise CodecError(f"layout: tensor {t.name!r} is missing")
            if tensors[t.name].shape != t.shape:
                raise CodecError(
                    f"layout: {t.name!r} has shape {tensors[t.name].shape}, expected {t.shape}"
                )
            theta[t.slice] = tensors[t.name].reshape(-1)
        return theta

    def check(self, theta: Theta) -> None:
        """Raise ``CodecError`` unless theta is a float32 vector of shape (n,)."""
        if theta.shape != (self.size,) or theta.dtype != np.float32:
            raise CodecError(f"theta: {theta.dtype} {theta.shape}, expected float32 ({self.size},)")
