"""The central test set: examples that no device has, on which every device's model is also tested."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from sedge_emulate.data.datasets import Dataset
from sedge_emulate.data.split import Indices, proportional
from sedge_protocol.errors import DataError
from sedge_protocol.wire.parts import arranged


def hold_out(
    dataset: Dataset, central: float | Dataset, rng: Generator
) -> tuple[Dataset, Indices, Indices]:
    """Set the central test examples aside.

    Returns the data set, the ascending indices of the examples to distribute, and those of the central test
    set. ``central`` is a share of the examples, drawn from each class in proportion, or another data set,
    which is appended. Raises ``DataError`` if that data set's shapes, types or labels do not match.
    """
    count = len(dataset.targets)
    if isinstance(central, Dataset):
        whole = _followed_by(dataset, central)
        return whole, np.arange(count), np.arange(count, len(whole.targets))
    held = np.empty(0, np.int64)
    if central:
        held = proportional(dataset.labels, max(1, round(central * count)), rng)
    return dataset, np.setdiff1d(np.arange(count), held), held


def _followed_by(dataset: Dataset, other: Dataset) -> Dataset:
    inputs = arranged(other.inputs, other.parts, dataset.parts, other.name)
    for name, found, wanted in (
        ("x", inputs, dataset.inputs),
        ("y", other.targets, dataset.targets),
    ):
        if (found.dtype, found.shape[1:]) != (wanted.dtype, wanted.shape[1:]):
            rows = f"{found.dtype} rows of shape {found.shape[1:]}"
            expected = f"{wanted.dtype} and {wanted.shape[1:]} as in {dataset.name}"
            raise DataError(f"{other.name}: {name} has {rows}, expected {expected}")
    if other.num_classes > dataset.num_classes:
        raise DataError(
            f"{other.name}: labels up to {other.num_classes - 1}, "
            f"expected 0 to {dataset.num_classes - 1} as in {dataset.name}"
        )
    return replace(
        dataset,
        inputs=np.concatenate([dataset.inputs, inputs]),
        targets=np.concatenate([dataset.targets, other.targets]),
    )
