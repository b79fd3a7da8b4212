"""Fourier transforms of a fixed length as products with constant matrices.

No runtime has complex numbers, so a ``Spectrum`` is a pair of real tensors. It supports products,
changes of shape, and the functions that convert it back to real numbers. Other functions are refused,
with the line of user code.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sedge_export.subject.source import here
from sedge_protocol.errors import ExportError

MAX_ELEMENTS = 2**22  # the limit for a matrix, 16 MiB as float32
_SHAPING = {
    "contiguous", "flatten", "movedim", "narrow", "permute", "reshape", "squeeze", "transpose", "unflatten",
    "unsqueeze", "view",
}  # fmt: skip


class Spectrum:
    """Complex numbers as real and imaginary parts, two tensors of the same shape."""

    def __init__(self, real: Tensor, imag: Tensor) -> None:
        self.real, self.imag = real, imag
        self.shape, self.ndim, self.size = real.shape, real.ndim, real.size

    def abs(self) -> Tensor:
        """Return the magnitudes. As in torch, their gradient is 0 at 0."""
        square = self.real * self.real + self.imag * self.imag
        zero = square == 0
        return torch.where(zero, 0.0, torch.where(zero, 1.0, square).sqrt())

    __abs__ = abs

    def conj(self) -> "Spectrum":
        """Return the complex conjugate."""
        return Spectrum(self.real, -self.imag)

    def __getitem__(self, key: Any) -> "Spectrum":
        return Spectrum(self.real[key], self.imag[key])

    def __mul__(self, other: Any) -> "Spectrum":
        if not isinstance(other, Spectrum):
            return Spectrum(self.real * other, self.imag * other)
        real = self.real * other.real - self.imag * other.imag
        return Spectrum(real, self.real * other.imag + self.imag * other.real)

    __rmul__ = __mul__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in _SHAPING:
            raise _refusal(name)

        def both(*args: Any, **kwargs: Any) -> Spectrum:
            return Spectrum(*(getattr(p, name)(*args, **kwargs) for p in (self.real, self.imag)))

        return both

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__):
            return args[1] * args[0] if isinstance(args[1], Spectrum) else args[0] * args[1]
        raise _refusal(getattr(func, "__name__", str(func)))


def _refusal(name: str) -> ExportError:
    return ExportError(
        f"model: {name} of complex numbers at {here()}: programs support only abs, real, imag, conj,"
        " view_as_real, products, reshaping and inverse transforms; compute the rest on the two parts"
    )


def _waves(length: int, rows: int, columns: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return cos and sin of 2 pi row column / length, each as a matrix (rows, columns)."""
    if rows * columns > MAX_ELEMENTS:
        raise ExportError(
            f"model: a Fourier transform of {length} samples at {here()}: it multiplies by a matrix"
            f" ({rows}, {columns}), expected at most {MAX_ELEMENTS} elements; cut the signal into frames,"
            " as torch.stft does"
        )
    turns = np.outer(np.arange(rows), np.arange(columns)) % length * (2 * math.pi / length)
    waves = np.cos(turns), np.sin(turns)
    return tuple(np.where(np.abs(each) < 1e-12, 0.0, each) for each in waves)  # type: ignore[return-value]


def _scale(length: int, norm: str | None, inverse: bool) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(length)
    return 1 / length if inverse == (norm in (None, "backward")) else 1.0


def _product(x: Tensor, matrix: NDArray[Any]) -> Tensor:
    """Multiply x (..., rows) by ``matrix`` (rows, columns), as one product of two matrices."""
    constant = torch.from_numpy(matrix.astype(np.float32)).to(x.dtype)
    return (x.reshape(-1, len(matrix)) @ constant).reshape(*x.shape[:-1], matrix.shape[1])


def _fitted(x: Tensor, count: int) -> Tensor:
    """Pad or cut the last axis of x to ``count`` elements; padding is 0."""
    return functional.pad(x, (0, count - x.shape[-1])) if count != x.shape[-1] else x


def _forward(
    half: bool, inverse: bool,
    input: Any, n: int | None = None, dim: int = -1, norm: str | None = None,
) -> Spectrum:  # fmt: skip
    """Replace ``fft``, ``ifft`` and ``rfft``."""
    parts = [input.real, input.imag] if isinstance(input, Spectrum) else [input]
    length = n or int(parts[0].shape[dim])
    cosines, sines = _waves(length, length, length // 2 + 1 if half else length)
    scale = _scale(length, norm, inverse)
    cosines, sines = cosines * scale, sines * (scale if inverse else -scale)
    rows = [_fitted(part.movedim(dim, -1), length) for part in parts]
    real, imag = _product(rows[0], cosines), _product(rows[0], sines)
    if len(rows) == 2:
        real, imag = real - _product(rows[1], sines), imag + _product(rows[1], cosines)
    return Spectrum(real.movedim(-1, dim), imag.movedim(-1, dim))


def _to_real(input: Any, n: int | None = None, dim: int = -1, norm: str | None = None) -> Tensor:
    """Replace ``irfft``.

    Elements of the half spectrum, except its ends, count twice, for the omitted half.
    """
    given = input if isinstance(input, Spectrum) else Spectrum(input, torch.zeros_like(input))
    length = n or 2 * (given.shape[dim] - 1)
    count = length // 2 + 1
    cosines, sines = _waves(length, count, length)
    twice = np.full((count, 1), 2.0)
    twice[0] = twice[length // 2 if length % 2 == 0 else 0] = 1.0
    weights = twice * _scale(length, norm, True)
    real, imag = (_fitted(part.movedim(dim, -1), count) for part in (given.real, given.imag))
    return (_product(real, cosines * weights) - _product(imag, sines * weights)).movedim(-1, dim)


def _forward_axes(
    half: bool, inverse: bool, axes: Any,
    input: Any, s: Any = None, dim: Any = None, norm: str | None = None,
) -> Spectrum:  # fmt: skip
    """Transform along several axes, one after the other, last axis first.

    ``axes`` are the default for ``dim``.
    """
    sizes, axes = _sizes_and_axes(input, s, axes if dim is None else dim)
    found = _forward(half, inverse, input, sizes[-1], axes[-1], norm)
    for size, axis in zip(sizes[-2::-1], axes[-2::-1], strict=True):
        found = _forward(False, inverse, found, size, axis, norm)
    return found


def _to_real_axes(
    axes: Any, input: Any, s: Any = None, dim: Any = None, norm: str | None = None
) -> Tensor:
    """Replace ``irfftn`` and ``irfft2``. ``axes`` are the default for ``dim``."""
    sizes, axes = _sizes_and_axes(input, s, axes if dim is None else dim)
    for size, axis in zip(sizes[:-1], axes[:-1], strict=True):
        input = _forward(False, True, input, size, axis, norm)
    return _to_real(input, sizes[-1], axes[-1], norm)


def _sizes_and_axes(input: Any, s: Any, dim: Any) -> tuple[list[int | None], list[int]]:
    """Return each transformed axis's length (None keeps it), and the axes, by default all."""
    if dim is None:
        count = input.ndim if s is None else 1 if isinstance(s, int) else len(s)
        dim = range(-count, 0)
    axes: list[int] = [dim] if isinstance(dim, int) else list(dim)
    sizes: list[int | None] = [s] if isinstance(s, int) else list(s or [None] * len(axes))
    return sizes, axes


def _frames(
    input: Tensor, n_fft: int, hop_length: int | None = None, win_length: int | None = None,
    window: Tensor | None = None, center: bool = True, pad_mode: str = "reflect",
    normalized: bool = False, onesided: bool | None = None, return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> Any:  # fmt: skip
    """Replace ``stft`` with one convolution, whose kernels are windowed sine and cosine waves."""
    x = input.reshape(-1, 1, input.shape[-1])
    if center:
        x = functional.pad(x, (n_fft // 2, n_fft // 2), mode=pad_mode)
    count = n_fft if onesided is False else n_fft // 2 + 1
    cosines, sines = _waves(n_fft, count, n_fft)
    kernels = torch.from_numpy(np.concatenate([cosines, -sines]).astype(np.float32)).to(x.dtype)
    if window is not None:
        before = (n_fft - window.shape[0]) // 2
        kernels = kernels * functional.pad(window, (before, n_fft - window.shape[0] - before))
    elif win_length is not None and win_length != n_fft:
        before = (n_fft - win_length) // 2
        kernels = kernels * functional.pad(
            x.new_ones(win_length), (before, n_fft - win_length - before)
        )
    both = functional.conv1d(x, kernels.unsqueeze(1), stride=hop_length or n_fft // 4)
    both = both * n_fft**-0.5 if normalized else both
    both = both.reshape(*input.shape[:-1], *both.shape[1:])
    spectrum = Spectrum(*both.split_with_sizes([count, count], -2))
    return spectrum if return_complex else _as_real(spectrum)


def _from_pairs(input: Tensor) -> Spectrum:
    return Spectrum(input[..., 0], input[..., 1])


def _as_real(input: Spectrum) -> Tensor:
    return torch.stack([input.real, input.imag], -1)


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_arguments: Any, **_settings: Any) -> Any:
        raise _refusal(name)

    return refuse


def _of_spectra(function: Callable[[Spectrum], Any]) -> Callable[[Any], Any]:
    """Make ``function`` apply to spectra only.

    For real tensors it returns None, which leaves the call unchanged.
    """
    return lambda input: function(input) if isinstance(input, Spectrum) else None


_OTHERS = ["hfft", "ihfft"]
_PLANE = (-2, -1)
_ABS = _of_spectra(Spectrum.abs)

# Replacements for the torch functions that make complex numbers or convert them back.
FOURIER: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.fft.fft: partial(_forward, False, False),
    torch.fft.ifft: partial(_forward, False, True),
    torch.fft.rfft: partial(_forward, True, False),
    torch.fft.irfft: _to_real,
    torch.fft.fft2: partial(_forward_axes, False, False, _PLANE),
    torch.fft.ifft2: partial(_forward_axes, False, True, _PLANE),
    torch.fft.rfft2: partial(_forward_axes, True, False, _PLANE),
    torch.fft.irfft2: partial(_to_real_axes, _PLANE),
    torch.fft.fftn: partial(_forward_axes, False, False, None),
    torch.fft.ifftn: partial(_forward_axes, False, True, None),
    torch.fft.rfftn: partial(_forward_axes, True, False, None),
    torch.fft.irfftn: partial(_to_real_axes, None),
    **{getattr(torch.fft, name): _refused(f"torch.fft.{name}") for name in _OTHERS},
    torch.stft: _frames,
    torch.istft: _refused("torch.istft"),
    torch.complex: Spectrum,
    torch.view_as_complex: _from_pairs,
    torch.view_as_real: _as_real,
    torch.abs: _ABS,
    torch.absolute: _ABS,
    torch.conj: _of_spectra(Spectrum.conj),
    torch.real: _of_spectra(lambda spectrum: spectrum.real),
    torch.imag: _of_spectra(lambda spectrum: spectrum.imag),
}
