"""Assigns examples to devices: non-IID splits of a data set, and train and test splits within a device.

    dirichlet      draws the devices' shares of each class from Dir(alpha) (Hsu et al. 2019, 1909.06335)
    pathological   gives each device a fixed number of classes (McMahan et al. 2017, the shards)
    iid            gives each device an equal part at random
    natural        gives each device one of the groups that the data set names, such as a person
    train_test     splits one device's examples at random
    last_of_each   splits one device's examples by their order within each class
    subsample      draws a smaller data set with the same class proportions

Every split except ``natural``, which may leave groups out, uses each example exactly once. The results
depend only on the targets and on ``rng``. Index arrays are int64 and ascending. In shapes, N is the number
of examples, C the number of classes, and d the number of devices.
"""

from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sedge_emulate.data.datasets import Dataset
from sedge_protocol.errors import ConfigError, DataError

Indices = NDArray[np.int64]
Floats = NDArray[np.float64]

# Each try only draws proportions, which takes about 50 us for 10 classes and 100 devices, so all tries
# together take a second.
_MAX_TRIES = 20_000
# Whether one device is too small is nearly independent of the other devices, so no device is too small with
# probability e^-m, where m is the mean number of such devices per draw. If m exceeds _HOPELESS, _MAX_TRIES
# draws would succeed for only one fleet in a thousand.
_TRIES_TO_JUDGE, _HOPELESS = 20, 17.0


def dirichlet(
    targets: Indices, devices: int, alpha: float, rng: Generator, min_examples: int = 10
) -> list[Indices]:
    """Divide the examples of every class among the devices according to Dir(alpha).

    ``targets`` is (N,). Draws again until no device has fewer than ``min_examples``. For large fleets and
    small alphas no draw satisfies this. The draw with the fewest such devices is then kept, and only these
    devices are filled up to ``min_examples``, according to their own class proportions. Raises
    ``DataError`` for too few examples, and ``ConfigError`` for an argument out of range.
    """
    _require_devices(devices)
    if not alpha > 0:
        raise ConfigError("alpha", alpha, "a number above 0")
    if min_examples * devices > len(targets):
        raise DataError(
            f"dirichlet: {len(targets)} examples, expected {min_examples} or more for each of "
            f"{devices} devices"
        )
    members = _members(targets)
    counts = np.array([len(indices) for indices in members])
    parts = _dirichlet_parts(counts, devices, alpha, rng, min_examples)
    shares: list[list[Indices]] = [[] for _ in range(devices)]
    for indices, ends in zip(members, np.cumsum(parts, axis=1), strict=True):
        for share, part in zip(shares, np.split(rng.permutation(indices), ends[:-1]), strict=True):
            share.append(part)
    return [np.sort(np.concatenate(share)) for share in shares]


def _dirichlet_parts(
    counts: Indices, devices: int, alpha: float, rng: Generator, min_examples: int
) -> Indices:
    """Divide the examples among the devices, given their ``counts`` (C,) by class.

    Returns counts (C, d).
    """
    fewest, too_small = devices + 1, 0
    expected: Floats = np.empty(0)
    kept: Indices = np.empty(0, np.int64)
    for number in range(1, _MAX_TRIES + 1):
        shares: Floats = rng.dirichlet(np.full(devices, alpha), len(counts))  # (C, d)
        ends: Indices = np.floor(np.cumsum(shares, axis=1) * counts[:, None]).astype(np.int64)
        ends[:, -1] = counts  # the shares add up to 1 only approximately
        parts: Indices = np.diff(ends, axis=1, prepend=0)
        found = int((parts.sum(axis=0) < min_examples).sum())
        if not found:
            return parts
        if found < fewest:
            fewest, expected, kept = found, shares * counts[:, None], parts
        too_small += found
        if number >= _TRIES_TO_JUDGE and too_small > _HOPELESS * number:
            break
    _fill_up(kept, expected, rng, min_examples)
    return kept


def _fill_up(parts: Indices, expected: Floats, rng: Generator, min_examples: int) -> None:
    """Move examples to each device (column of ``parts``) that has fewer than ``min_examples``.

    The class of each example is drawn in proportion to the numbers that the device was ``expected`` (C, d)
    to have. Among the devices with more than ``min_examples``, the one with the most examples of that class
    gives one up.
    """
    sizes = parts.sum(axis=0)  # (d,)
    for device in np.flatnonzero(sizes < min_examples):
        while sizes[device] < min_examples:
            spare = np.where(sizes > min_examples, parts, 0)  # (C, d)
            left = spare.any(axis=1)
            weights: Floats = np.where(left, expected[:, device], 0.0)
            if not weights.any():  # no donor has its classes, or their shares underflowed
                weights = np.where(left, 1.0, 0.0)
            label = rng.choice(len(parts), p=weights / weights.sum())
            donor = int(spare[label].argmax())
            parts[label, donor] -= 1
            parts[label, device] += 1
            sizes[donor] -= 1
            sizes[device] += 1


def pathological(
    targets: Indices, devices: int, classes_per_device: int, rng: Generator
) -> list[Indices]:
    """Give each device examples of exactly ``classes_per_device`` classes.

    Each class is cut into shards, all of about the same size, and each device is dealt shards of
    different classes. Raises ``DataError`` if the numbers of classes, devices and examples do not allow
    this.
    """
    _require_devices(devices)
    members = _members(targets)
    if not 1 <= classes_per_device <= len(members):
        raise ConfigError("classes_per_device", classes_per_device, f"1 to {len(members)}")
    if devices * classes_per_device < len(members):
        raise DataError(
            f"pathological: {devices} devices with {classes_per_device} classes each cannot hold all "
            f"{len(members)} classes"
        )
    num_shards = _shards_per_class(members, devices, classes_per_device)
    shards = [
        np.array_split(rng.permutation(indices), count)
        for indices, count in zip(members, num_shards, strict=True)
    ]
    shares: list[Indices] = []
    for _ in range(devices):
        # Dealing from the classes with the most remaining shards always works (Havel-Hakimi). Ties are
        # broken at random.
        left = [len(pile) for pile in shards]
        order = np.lexsort((rng.random(len(left)), -np.array(left)))[:classes_per_device]
        shares.append(np.sort(np.concatenate([shards[label].pop() for label in order])))
    return shares


def _shards_per_class(
    members: list[Indices], devices: int, classes_per_device: int
) -> NDArray[np.int64]:
    """Return the number of shards (C,) of each class.

    Each class starts with one shard. Then the class with the largest shards gets one more, until there
    are ``classes_per_device`` for each device.
    """
    counts = np.array([len(indices) for indices in members])
    shards = np.ones(len(members), np.int64)
    for _ in range(devices * classes_per_device - len(members)):
        # No device may hold two shards of one class.
        sizes = np.where(shards < devices, counts / shards, 0)
        shards[int(sizes.argmax())] += 1
    if (counts < shards).any():
        raise DataError(f"pathological: {counts.sum()} examples are too few for {devices} devices")
    return shards


def iid(num_examples: int, devices: int, rng: Generator) -> list[Indices]:
    """Divide the examples into random parts whose sizes differ by at most one."""
    _require_devices(devices)
    order = rng.permutation(num_examples).astype(np.int64)
    return [np.sort(part) for part in np.array_split(order, devices)]


def natural(groups: Indices, devices: int, rng: Generator, min_examples: int = 10) -> list[Indices]:
    """Give each device the examples of one of the ``groups`` (N,), in the groups' order.

    If there are more groups than devices, the groups are drawn at random. Raises ``DataError`` if too few
    groups have ``min_examples``.
    """
    _require_devices(devices)
    sizes = np.bincount(groups)
    fit = np.flatnonzero(sizes >= min_examples)
    if len(fit) < devices:
        raise DataError(
            f"natural: {len(fit)} groups of {min_examples} or more examples, expected one for each of "
            f"{devices} devices"
        )
    members = np.split(np.argsort(groups, kind="stable").astype(np.int64), np.cumsum(sizes)[:-1])
    return [members[group] for group in np.sort(rng.permutation(fit)[:devices])]


def train_test(indices: Indices, test_fraction: float, rng: Generator) -> tuple[Indices, Indices]:
    """Split one device's examples at random into a train and a test part, each with at least one example.

    Raises ``DataError`` for fewer than two examples.
    """
    if not 0 < test_fraction < 1:
        raise ConfigError("test_fraction", test_fraction, "a number between 0 and 1")
    if len(indices) < 2:
        raise DataError(f"train_test: {len(indices)} examples, expected 2 or more")
    num_test = min(max(1, int(test_fraction * len(indices))), len(indices) - 1)
    shuffled = rng.permutation(indices)
    return np.sort(shuffled[num_test:]), np.sort(shuffled[:num_test])


def last_of_each(
    indices: Indices, targets: Indices, test_fraction: float
) -> tuple[Indices, Indices]:
    """Split one device's examples ``indices`` (n,) with ``targets`` (n,) into a train and a test part.

    The last examples of each class are for testing. The example just before them is in neither part,
    because neighbouring windows of a signal overlap.
    """
    train, test = np.ones(len(indices), bool), np.zeros(len(indices), bool)
    for members in _members(targets):
        count = int(test_fraction * len(members))
        if count:
            train[members[-count - 1 :]] = False
            test[members[-count:]] = True
    return indices[train], indices[test]


def subsample(dataset: Dataset, num_examples: int, rng: Generator) -> Dataset:
    """Draw a random subset of the data set that keeps the class proportions (to within one example).

    Raises ``ConfigError`` unless ``num_examples`` is between the number of classes and the number of
    examples.
    """
    size = len(dataset.targets)
    least = dataset.num_classes if dataset.targets.ndim == 1 else 1
    if not least <= num_examples <= size:
        raise ConfigError("num_examples", num_examples, f"{least} to {size}")
    chosen = proportional(dataset.labels, num_examples, rng)
    return replace(
        dataset,
        inputs=dataset.inputs[chosen],
        targets=dataset.targets[chosen],
        groups=None if dataset.groups is None else dataset.groups[chosen],
        tests=None if dataset.tests is None else dataset.tests[chosen],
    )


def proportional(labels: Indices, count: int, rng: Generator) -> Indices:
    """Draw ``count`` of the examples with these ``labels`` (N,), the same share of every class."""
    # Each example gets a random rank within its class, divided by the size of the class. The examples with
    # the smallest values then include the same share of every class.
    rank = np.empty(len(labels))
    for indices in _members(labels):
        rank[rng.permutation(indices)] = (np.arange(len(indices)) + 0.5) / len(indices)
    return np.sort(np.argsort(rank, kind="stable")[:count]).astype(np.int64)


def _members(targets: Indices) -> list[Indices]:
    """Return the ascending indices of each class's examples, in ascending order of the classes."""
    return [np.flatnonzero(targets == label).astype(np.int64) for label in np.unique(targets)]


def _require_devices(devices: int) -> None:
    if devices < 1:
        raise ConfigError("devices", devices, "1 or more")
