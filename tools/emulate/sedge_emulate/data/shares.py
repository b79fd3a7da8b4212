"""Assigns examples to devices: one data set, in memory or mapped from disk, and indices into it.

A device's examples are copied when it trains and freed afterwards, so memory does not grow with the fleet.
N is the number of examples, d the number of devices.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from sedge_edge.training.examples import Examples, Inputs
from sedge_emulate.config import DataConfig
from sedge_emulate.data.central import hold_out
from sedge_emulate.data.datasets import Dataset, load
from sedge_emulate.data.partition import Part, read_partition
from sedge_emulate.data.split import (
    Indices,
    dirichlet,
    iid,
    last_of_each,
    natural,
    pathological,
    subsample,
    train_test,
)
from sedge_protocol.errors import DataError
from sedge_protocol.host.disk import translated
from sedge_protocol.wire.objective import IGNORED

NOBODYS: Indices = np.empty(0, np.int64)


@dataclass(frozen=True)
class Shares:
    """A data set ``inputs``, ``targets`` (N, ...), and the examples that each device has.

    Device i trains on the examples ``train[train_ends[i - 1] : train_ends[i]]``; ``test`` and ``test_ends``
    work the same way. ``central`` has the indices of the central test set.
    """

    inputs: Inputs
    targets: Inputs
    train: Indices
    train_ends: Indices
    test: Indices
    test_ends: Indices
    central: Indices

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        parts: list[tuple[Indices, Indices]],
        central: Indices = NOBODYS,
    ) -> "Shares":
        """Build the shares from each device's train and test indices."""
        train, test = zip(*parts, strict=True)
        return cls(
            dataset.inputs, dataset.targets,
            np.concatenate(train), np.cumsum([len(part) for part in train]),
            np.concatenate(test), np.cumsum([len(part) for part in test]), central,
        )  # fmt: skip

    @classmethod
    def open(cls, folder: Path) -> "Shares":
        """Open shares written by ``save``, as memory-mapped arrays. Raises ``StorageError``."""
        with translated("read shares", folder):
            return cls(
                *(np.load(folder / f"{name}.npy", mmap_mode="r") for name in cls.__annotations__)
            )

    def save(self, folder: Path) -> None:
        """Write all arrays to ``folder``. Raises ``StorageError``."""
        with translated("write shares", folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name in self.__annotations__:
                np.save(folder / f"{name}.npy", getattr(self, name))

    def __len__(self) -> int:
        return len(self.train_ends)

    def name(self, number: int) -> str:
        """Return the id of device ``number``, such as ``device-07``."""
        return f"device-{number:0{len(str(len(self) - 1))}d}"

    def num_train(self, number: int) -> int:
        """Return the number of examples that a device trains on."""
        return len(_part(self.train, self.train_ends, number))

    def num_test(self, number: int) -> int:
        """Return the number of examples that a device is tested on."""
        return len(_part(self.test, self.test_ends, number))

    def num_classes(self, number: int) -> int:
        """Return the number of different labels on a device, or 0 if targets are numbers."""
        if self.targets.dtype != np.int64:
            return 0
        places = [
            _part(self.train, self.train_ends, number),
            _part(self.test, self.test_ends, number),
        ]
        found = np.unique(self.targets[np.concatenate(places)])
        return int((found != IGNORED).sum())

    def examples(self, number: int) -> tuple[Examples, Examples]:
        """Return copies of a device's train and test examples."""
        train = _part(self.train, self.train_ends, number)
        test = _part(self.test, self.test_ends, number)
        return (
            Examples(self.inputs[train], self.targets[train]),
            Examples(self.inputs[test], self.targets[test]),
        )

    def central_examples(self) -> Examples | None:
        """Return a copy of the central test set, or None if there is none."""
        if not len(self.central):
            return None
        return Examples(self.inputs[self.central], self.targets[self.central])


def share_out(config: DataConfig, devices: int, seed: int, base: Path) -> tuple[Dataset, Shares]:
    """Load the data set and split it among the devices. The same seed gives the same parts.

    The seed is ``config.seed`` if that is set, otherwise ``seed``. Paths to the user's own sources and
    partitions are relative to ``base``.
    """
    rng = np.random.default_rng(seed if config.seed is None else config.seed)
    dataset, apart = load(config.dataset, base=base), config.central_test
    other = load(apart, base=base) if isinstance(apart, str) else apart
    dataset = replace(dataset, sha256=_fingerprint(dataset, other, base / config.partition))
    if config.examples:
        dataset = subsample(dataset, config.examples, rng)
    dataset, shared, central = hold_out(dataset, other, rng)
    parts = _parts(dataset, shared, config, devices, rng, base)
    tested = [
        part if isinstance(part, tuple) else train_test(part, config.test_fraction, rng)
        for part in parts
    ]
    if config.validation:
        labels = dataset.labels
        tested = [
            _validated(device, train, labels[train], config.validation)
            for device, (train, _) in enumerate(tested)
        ]
    for device, (train, test) in enumerate(tested):
        if not (len(train) and len(test)):
            lacking = "test" if len(train) else "training"
            raise DataError(f"device {device}: no {lacking} examples, expected one or more")
    return dataset, Shares.of(dataset, tested, central)


def _validated(
    device: int, train: Indices, labels: Indices, fraction: float
) -> tuple[Indices, Indices]:
    """Split a device's training examples ``train`` (n,) with ``labels`` (n,) for validation.

    Returns the indices to train on and those to test on, which are the last ``fraction`` of each class.
    """
    trained, tested = last_of_each(train, labels, fraction)
    if len(train) and not (len(trained) and len(tested)):
        size, lacking = ("small", "test") if len(trained) else ("large", "train on")
        raise DataError(
            f"device {device}: data.validation = {fraction:g} is too {size} for {len(train)} training "
            f"examples, expected one or more to {lacking}"
        )
    return trained, tested


def _fingerprint(dataset: Dataset, other: Dataset | float, partition: Path) -> str:
    """Return a hash that distinguishes the data and its partition from others of the same name."""
    digest = hashlib.sha256()
    for found in (dataset, other):
        if isinstance(found, Dataset):
            for array in (found.inputs, found.targets, found.groups, found.tests):
                digest.update(b"" if array is None else np.ascontiguousarray(array).data)
    if partition.is_file():
        digest.update(partition.read_bytes())
    return digest.hexdigest()


def _parts(
    dataset: Dataset, shared: Indices, config: DataConfig, devices: int, rng: Generator, base: Path
) -> Sequence[Part]:
    """Split the examples ``shared`` among the devices by the configured method."""
    labels = dataset.labels[shared]
    match config.split:
        case "dirichlet":
            parts = dirichlet(labels, devices, config.alpha, rng, config.min_examples)
        case "pathological":
            parts = pathological(labels, devices, config.classes_per_device, rng)
            _require_size(parts, config)
        case "iid":
            parts = iid(len(shared), devices, rng)
            _require_size(parts, config)
        case "natural":
            return _natural(dataset, shared, config, devices, rng)
        case "given":
            apart = isinstance(config.central_test, str)
            count = len(shared) if apart else len(dataset.targets)
            return _given(shared, base / config.partition, devices, count)
    return [shared[part] for part in parts]


def _natural(
    dataset: Dataset, shared: Indices, config: DataConfig, devices: int, rng: Generator
) -> Sequence[Part]:
    if dataset.groups is None:
        expected = "an array group (N,), or a third return value of the function"
        raise DataError(f"{dataset.name}: no groups to split by, expected {expected}")
    drawn = natural(dataset.groups[shared], devices, rng, config.min_examples)
    parts, tests = [shared[part] for part in drawn], dataset.tests
    return parts if tests is None else [(part[~tests[part]], part[tests[part]]) for part in parts]


def _given(shared: Indices, path: Path, devices: int, num_examples: int) -> Sequence[Part]:
    def kept(indices: Indices) -> Indices:
        return indices[np.isin(indices, shared)]

    parts: list[Part] = [
        (kept(part[0]), kept(part[1])) if isinstance(part, tuple) else kept(part)
        for part in read_partition(path, num_examples)
    ]
    if len(parts) != devices:
        raise DataError(f"{path}: {len(parts)} devices, expected devices = {devices}")
    for device, part in enumerate(parts):
        if not isinstance(part, tuple) and len(part) < 2:
            raise DataError(f"{path}: device {device}: {len(part)} examples, expected 2 or more")
    return parts


def _require_size(parts: list[Indices], config: DataConfig) -> None:
    smallest = min(len(part) for part in parts)
    if smallest < config.min_examples:
        expected = f"at least data.min_examples = {config.min_examples} on each"
        raise DataError(f"{config.split}: a device with {smallest} examples, expected {expected}")


def _part(indices: Indices, ends: Indices, number: int) -> Indices:
    return indices[ends[number - 1] if number else 0 : ends[number]]
