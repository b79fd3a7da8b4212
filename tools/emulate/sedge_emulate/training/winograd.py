"""Convolution with fewer products: minimal filtering along the height (Toom, Cook, Winograd).

Four outputs of a filter of k taps are a polynomial product that k + 3 products suffice for instead of 4 k:

    y = A' [(G w) * (D x)]         w (k,), x (k + 3,), y (4,)

evaluates both sides at k + 3 points, multiplies, and interpolates. Here w and x are rows of an image
along its height; the product becomes a matrix product over the width's taps and the channels. A 5x5
convolution so takes 2.5 times fewer products, a 3x3 one twice fewer. The gradients are the transposed
products: for the filter G' [(A g) * (D x)], for the input D' [(G w) * (A g)].

Two axes would save more and lose more digits. Along one axis, in float32, relative L2 error against
float64 (5x5, 32 to 64 channels, random): output 9e-7, filter gradient 7e-7, input gradient 6e-7; a direct
convolution has 4e-7, 2e-7, 2e-7. In bfloat16 it is 1e-2 against 3e-3, so it is used in float32 only.

Names of axes: b images, h and w, c channels in, o channels out, k taps of the filter, m = 4 outputs of a
tile, t tiles of a column, n = k + m - 1 points.
"""

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sedge_emulate.training.products import by_transposed

TILE = 4
# Small and distinct, so that powers stay near 1; the last point of every set is infinity. Found by trying
# the usual sets: these lose the fewest digits.
POINTS: dict[int, tuple[float, ...]] = {
    3: (0.0, 1.0, -1.0, 0.5, -2.0),
    5: (0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0),
}
# At the point 1 every output of a tile counts once: where a bias enters, and its gradient leaves.
_ONE = 1


@cache
def matrices(taps: int) -> tuple[NDArray[np.float64], ...]:
    """A (n, m), G (n, k) and D (n, n) for filters of 3 or 5 taps."""
    points = POINTS[taps]
    count = TILE + taps - 1

    def powers(degree: int) -> NDArray[np.float64]:
        """The points' powers (n, degree); infinity counts only the highest."""
        rows = [[point**i for i in range(degree)] for point in points]
        return np.array([*rows, [0.0] * (degree - 1) + [1.0]])

    # Common factors go from D to G, which leaves D with numbers that float32 holds exactly.
    factors = [np.prod([p - q for q in points if q != p]) for p in points]
    scale = np.array([*factors, 1.0])[:, None]
    # They are fractions of 64, and an inverse is not exact.
    d = np.round(np.linalg.inv(powers(count)).T * scale * 64) / 64
    return powers(TILE), powers(taps) / scale, d.astype(np.float64)


class Winograd:
    """One convolution (stride 1, no dilation, one group) of filters (o, k, kw, c) in float32.

    Filters and their gradient are stored (k, o, kw, c); images are (b, h, w, c). A ``forward`` is good for
    one ``backward``, which overwrites what it kept.
    """

    def __init__(self, filters: Tensor, bias: Tensor | None, padding: tuple[int, ...]) -> None:
        self._filters, self._bias = filters, bias
        self._taps, self._outputs, self._width_taps, self._inputs = filters.shape
        self._padding = padding
        a, g, d = (torch.from_numpy(m).float() for m in matrices(self._taps))
        self._a, self._g, self._d = a.contiguous(), g.contiguous(), d.contiguous()
        self._whole: dict[int, Tensor] = {}
        self._rows = self._points = filters  # of the last forward
        self._shape: tuple[int, ...] = ()

    def forward(self, x: Tensor) -> Tensor:
        """The convolution (b, h', w', o) of x (b, h, w, c)."""
        self._shape = tuple(x.shape)
        images = x.shape[0]
        height, width = self._extents(x)
        tiles, columns = -(-height // TILE), width + self._width_taps - 1
        rows = torch.mm(self._tiling(tiles), self._columns(x, tiles).flatten(1))
        self._rows = rows.view(len(self._a), tiles * images, columns, self._inputs)
        self._points = torch.mm(self._g, self._filters.flatten(1)).view(
            len(self._a), self._outputs, self._width_taps * self._inputs
        )
        products = rows.new_empty(len(self._a), tiles * images * width, self._outputs)
        # Point by point, so that what belongs to one stays in the cache.
        for point, into in enumerate(products):
            into.copy_(by_transposed(self._windows(point, width), self._points[point]))
        if self._bias is not None:
            products[_ONE] += self._bias
        y = torch.mm(self._a.t(), products.flatten(1))
        y = y.view(TILE, tiles, images, width, self._outputs).permute(2, 1, 0, 3, 4)
        return y.reshape(images, tiles * TILE, width, self._outputs)[:, :height]

    def backward(
        self, gradient: Tensor, filters: Tensor, bias: Tensor | None, wants_input: bool
    ) -> Tensor | None:
        """From the output's gradient (b, h', w', o) the input's, if wanted; fills the parameters'."""
        images, height, width, _ = gradient.shape
        tiles = -(-height // TILE)
        if height % TILE:
            gradient = torch.nn.functional.pad(gradient, (0, 0, 0, 0, 0, -height % TILE))
        tiled = gradient.reshape(images, tiles, TILE, width, self._outputs).permute(2, 1, 0, 3, 4)
        products = torch.mm(self._a, tiled.reshape(TILE, -1))
        products = products.view(len(self._a), tiles * images * width, self._outputs)
        if bias is not None:
            torch.sum(products[_ONE], 0, out=bias)
        points = torch.empty_like(self._points)
        for point, into in enumerate(points):
            into.copy_(by_transposed(products[point].t(), self._windows(point, width).t()))
            if wants_input:
                self._spread(by_transposed(products[point], self._points[point].t()), point, width)
        torch.mm(self._g.t(), points.flatten(1), out=filters.flatten(1))
        return self._input_gradient() if wants_input else None

    def _windows(self, point: int, width: int) -> Tensor:
        """A point's windows over the width, (t b w', kw c): each is one run of memory."""
        rows = self._rows[point]
        tiled, columns, channels = rows.shape
        span = self._width_taps * channels
        overlapping = rows.as_strided(
            (tiled, width, span), (columns * channels, channels, 1), rows.storage_offset()
        )
        return overlapping.reshape(-1, span)

    def _spread(self, windows: Tensor, point: int, width: int) -> None:
        """Turn a point's windows back into rows, in place of those that made them."""
        windows = windows.view(-1, width, self._width_taps, self._inputs)
        rows = self._rows[point].zero_()
        for tap in range(self._width_taps):
            rows[:, tap : tap + width] += windows[:, :, tap]

    def _input_gradient(self) -> Tensor:
        _, tiled, columns, channels = self._rows.shape
        images, height, wide, _ = self._shape
        tiling = self._tiling(tiled // images)
        x = torch.mm(tiling.t(), self._rows.view(len(tiling), -1))
        x = x.view(-1, images, columns, channels).transpose(0, 1)  # (b, h, w, c) with padding
        top, left = self._padding
        return x[:, top : top + height, left : left + wide].contiguous()

    def _extents(self, x: Tensor) -> tuple[int, int]:
        height = x.shape[1] + 2 * self._padding[0] - self._taps + 1
        return height, x.shape[2] + 2 * self._padding[1] - self._width_taps + 1

    def _columns(self, x: Tensor, tiles: int) -> Tensor:
        """x padded, with the height first: (h, b, w, c), a whole number of tiles high."""
        images, height, width, channels = x.shape
        top, left = self._padding
        whole = tiles * TILE + self._taps - 1
        if whole == height and not left:
            return x.transpose(0, 1).contiguous()
        columns = x.new_zeros(whole, images, width + 2 * left, channels)
        columns[top : top + height, :, left : left + width] = x.transpose(0, 1)
        return columns

    def _tiling(self, tiles: int) -> Tensor:
        """D for all tiles at once, (n t, h): tile t begins at row 4 t."""
        if tiles not in self._whole:
            count = len(self._a)
            whole = torch.zeros(count, tiles, tiles * TILE + self._taps - 1)
            for tile in range(tiles):
                whole[:, tile, tile * TILE : tile * TILE + count] = self._d
            self._whole[tiles] = whole.view(count * tiles, -1)
        return self._whole[tiles]
