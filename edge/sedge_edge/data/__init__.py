"""Reads the user's examples from a file, a folder of images or a function.

A source is one of

    a path to an .npz with arrays x (N, ...) and y; without x, every other array is a named input
    a path to a .csv, one example per line (table.py)
    a folder of folders named by label, ``3`` or ``3-cat``, with images in them (images.py)
    "module:function", a function without arguments that returns (x, y) or (x, y, group), where x may be
    a dict of arrays by name

y has labels (N,) or floating-point numbers (N, ...). Numbers (N,) become a column (N, 1). y may be missing
(or None) for a model whose input is its target. An array ``group`` (N,), or a function's third value, says
to whom each example belongs. A device ignores it, but an emulated fleet can be split by it.

x becomes float32, or int64 if it holds integers of more than a byte. If x holds images (N, C, H, W),
unsigned bytes are pixels, which are scaled to [0, 1]. Elsewhere they are numbers. y becomes int64 or
float32. Nothing else is resized or normalised. Later the examples are converted to the model's own types
(training/examples.py). Any problem with the data raises ``DataError``.
"""

from sedge_edge.data.live import LiveData
from sedge_edge.data.raw import Raw, as_inputs, converted
from sedge_edge.data.sources import load_data, load_source, read_source

__all__ = [
    "LiveData",
    "Raw",
    "as_inputs",
    "converted",
    "load_data",
    "load_source",
    "read_source",
]
