"""A device's examples: how they are checked against the model, and how they are split reproducibly."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sedge_edge.training.batches import permutation
from sedge_edge.training.counter_stream import Purpose, stream_key
from sedge_protocol.errors import DataError
from sedge_protocol.wire import refusals
from sedge_protocol.wire.bundle import BundleManifest, TensorSpec
from sedge_protocol.wire.objective import IGNORED
from sedge_protocol.wire.parts import MAX_INTEGER, InputPart, arranged

Inputs: TypeAlias = NDArray[np.float32 | np.int64]


@dataclass(frozen=True)
class ExamplePlaces:
    """Where each of N examples is in a ``file``: its line in a table, or its row in arrays, (N,)."""

    file: str
    kind: Literal["line", "row"]
    numbers: NDArray[np.int64] | NDArray[np.intp]

    def of(self, rows: NDArray[np.int64] | NDArray[np.intp]) -> "ExamplePlaces":
        """Return the places of the examples with these indices."""
        return ExamplePlaces(self.file, self.kind, self.numbers[rows])

    def name(self, row: int) -> str:
        """Return the place of an example, as shown in messages."""
        return f"{self.file}, {self.kind} {self.numbers[row]}"


@dataclass(frozen=True)
class Examples:
    """N examples: ``inputs`` (N, ...) and ``targets``, which are labels or numbers (N,) or (N, ...).

    If the inputs are also the targets, both are the same array. If the user gave several input arrays by
    name, each row of ``inputs`` (N, K) packs them, and ``parts`` describes them. ``places`` is known for
    examples from a file.
    """

    inputs: Inputs
    targets: Inputs
    parts: tuple[InputPart, ...] = ()
    places: ExamplePlaces | None = None


def fitting(examples: Examples, manifest: BundleManifest) -> Examples:
    """Convert the examples to the form that the model takes. An autoencoder's targets are its inputs.

    Inputs and targets are converted to the model's types, provided that this changes no value
    (``for_model``). So devices that store the same numbers in different types train on the same values.
    Raises ``DataError``, which names the place of the example at fault, unless the model can be trained and
    evaluated on them.
    """
    try:
        return _fitting(examples, manifest)
    except DataError as exc:
        if exc.row is None or examples.places is None:
            raise
        raise DataError(f"{examples.places.name(exc.row)}: {exc}", exc.row) from exc


def _fitting(examples: Examples, manifest: BundleManifest) -> Examples:
    inputs, parts = examples.inputs, examples.parts
    if manifest.target is not None and examples.targets is inputs:
        names = f"; the arrays are {', '.join(part.name for part in parts)}" if parts else ""
        raise DataError(
            f"there is no y, but the model expects {manifest.target.dtype} targets{names}"
        )
    if parts:
        inputs = arranged(inputs, parts, manifest.parts, "the data")
    else:
        inputs = for_model(inputs, manifest.input, "x")
    targets = inputs
    if manifest.target is not None:
        targets = _column(examples.targets, manifest.target)
        if manifest.num_classes and len(targets) and targets.shape[1:] == manifest.target.shape:
            check_labels(targets, manifest.num_classes, "y")
        targets = for_model(targets, manifest.target, "y")
    if len(inputs) != len(targets):
        raise DataError(f"x has {len(inputs)} rows and y {len(targets)}, expected the same number")
    check_inputs(inputs, manifest, "x")
    if manifest.target is not None:
        _check_rows(targets, manifest.target, "y")
    if inputs is examples.inputs and targets is examples.targets:
        return examples
    return Examples(inputs, targets, manifest.parts, examples.places)


def check_labels(labels: Inputs, num_classes: int, name: str) -> None:
    """Raise ``DataError`` unless all labels (N, ...) are valid classes. The message calls them ``name``.

    If each row has several labels, some of them, but not all, may be ``IGNORED``.
    """
    several = labels.ndim > 1
    wrong = (labels < 0) | (labels >= num_classes)
    if labels.dtype.kind == "f":
        wrong |= labels != np.rint(labels)
    if several:
        wrong &= labels != IGNORED
    if wrong.any():
        text = refusals.WRONG_ELEMENT if several else refusals.WRONG_LABEL
        raise _at_first(text, labels, wrong, name, num_classes)
    empty = (labels == IGNORED).reshape(len(labels), -1).all(1)
    if empty.any():
        row = int(np.argmax(empty))
        raise DataError(refusals.NOTHING_COUNTS.format(name=name, row=row, ignored=IGNORED), row)


def _at_first(
    text: str, rows: Inputs, wrong: NDArray[np.bool_], name: str, count: int
) -> DataError:
    """Return the error for the first number outside 0 to ``count`` - 1."""
    place = np.unravel_index(np.argmax(wrong), wrong.shape)
    where = ", ".join(map(str, place))
    values = {"name": name, "place": where, "value": rows[place]}
    return DataError(text.format(**values, last=count - 1, ignored=IGNORED), int(place[0]))


def for_model(rows: Inputs, wanted: TensorSpec, name: str) -> Inputs:
    """Convert the rows (N, ...) to the model's type. Raises ``DataError`` if that would change a value."""
    if rows.dtype == wanted.dtype or rows.shape[1:] != wanted.shape or not len(rows):
        return rows  # a wrong shape or a lack of rows will get a clearer error later
    exact = (rows >= -MAX_INTEGER) & (rows <= MAX_INTEGER)
    if rows.dtype.kind == "f":
        exact &= rows == np.rint(rows)
    wrong = ~exact.reshape(len(rows), -1).all(axis=1)
    if wrong.any():
        row = int(np.argmax(wrong))
        value = rows[row][~exact[row]].flat[0]
        limit = f"at most {MAX_INTEGER} in magnitude"
        found = f"{name} is {rows.dtype} and {name}[{row}] holds {value}"
        raise DataError(
            f"{found}, but the model expects {wanted.dtype}: only whole numbers are converted, {limit}",
            row,
        )
    return rows.astype(wanted.dtype)


def _column(targets: Inputs, wanted: TensorSpec) -> Inputs:
    """Reshape numbers (N,) to a column (N, 1) or vice versa, as the model expects them."""
    if {targets.shape[1:], wanted.shape} == {(), (1,)}:
        return targets.reshape(len(targets), *wanted.shape)
    return targets


def split(examples: Examples, test_fraction: float, seed: int) -> tuple[Examples, Examples]:
    """Split examples into a training and a test part.

    The same examples and seed always give the same parts.

    Each part gets at least one example. Raises ``DataError`` if there are fewer than two.
    """
    train, test = split_rows(len(examples.targets), test_fraction, seed)
    return rows_of(examples, train), rows_of(examples, test)


def rows_of(examples: Examples, rows: NDArray[np.int64] | NDArray[np.intp]) -> Examples:
    """Return copies of the examples with these indices."""
    inputs = examples.inputs[rows]
    own = examples.targets is not examples.inputs
    places = None if examples.places is None else examples.places.of(rows)
    return Examples(inputs, examples.targets[rows] if own else inputs, examples.parts, places)


def split_rows(
    count: int, test_fraction: float, seed: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the indices of the training part and of the test part, each in ascending order."""
    if count < 2:
        raise DataError(f"{count} examples cannot be split, expected at least 2")
    order = permutation(stream_key(seed, Purpose.SPLIT, 0), count)
    num_test = holdout_size(count, test_fraction)
    return np.sort(order[num_test:]), np.sort(order[:num_test])


def holdout_size(count: int, fraction: float) -> int:
    """Return how many of ``count`` examples (at least 2) a split puts into the second part."""
    return min(max(1, round(fraction * count)), count - 1)


def check_inputs(inputs: Inputs, manifest: BundleManifest, name: str) -> None:
    """Raise ``DataError`` unless the inputs (N, ...) fit the model. The message calls them ``name``."""
    if len(inputs) == 0:
        raise DataError(f"{name} has no rows, expected at least one")
    _check_rows(inputs, manifest.input, name)
    check_tokens(inputs, manifest.vocabulary, name)


def check_tokens(inputs: Inputs, vocabulary: int, name: str) -> None:
    """Raise ``DataError`` unless the inputs (N, ...) are between 0 and ``vocabulary`` - 1.

    A ``vocabulary`` of 0 means that its size is unknown, so nothing is checked.
    """
    if not vocabulary:
        return
    wrong = (inputs < 0) | (inputs >= vocabulary)
    if wrong.any():
        raise _at_first(refusals.WRONG_TOKEN, inputs, wrong, name, vocabulary)


def _check_rows(rows: Inputs, expected: TensorSpec, name: str) -> None:
    if rows.dtype != expected.dtype:
        raise DataError(f"{name} is {rows.dtype}, but the model expects {expected.dtype}")
    if rows.shape[1:] != expected.shape:
        found = f"rows of shape {rows.shape[1:]}"
        last = rows.ndim == 4 and (*rows.shape[-1:], *rows.shape[1:-1]) == expected.shape
        hint = "; move the channels to the front: x.transpose(0, 3, 1, 2)" if last else ""
        raise DataError(f"{name} has {found}, but the model expects {expected.shape}{hint}")
    require_finite(rows, name)


def require_finite(inputs: Inputs, name: str) -> None:
    """Raise ``DataError`` if the inputs (N, ...) contain NaN or inf. The message calls them ``name``."""
    # Check only each row's extremes, because one boolean per element would take a quarter of the memory
    # that the data take.
    flat = inputs.reshape(len(inputs), -1)
    highest, lowest = flat.max(axis=1, initial=0), flat.min(axis=1, initial=0)  # (N,)
    finite = np.isfinite(highest) & np.isfinite(lowest)
    if not finite.all():
        row = int(np.argmin(finite))
        raise DataError(f"{name}[{row}] holds NaN or inf, expected finite float32 numbers", row)
