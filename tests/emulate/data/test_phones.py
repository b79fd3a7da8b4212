"""Thirty people's phones: read from a tiny archive of the same kind, and facts of the real one."""

import copyreg
import gzip
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.emulate.data.archive import packed

from sedge_emulate.config import DataConfig
from sedge_emulate.data.archives import DATA_VARIABLE, Archive, user_datasets
from sedge_emulate.data.datasets import load
from sedge_emulate.data.phones import CHANNELS, MEMBER, PHONES, phones
from sedge_emulate.data.shares import share_out
from sedge_protocol.errors import DataError

# A session: the signal (6, samples) and the label of each sample.
Session: TypeAlias = tuple[NDArray[np.float64], NDArray[np.int64]]


class Frame:
    """Pickled as an object of pandas is that has a state."""

    def __init__(self, state: object) -> None:
        self.state = state

    def __reduce__(self) -> tuple[object, ...]:
        return copyreg._reconstructor, (type(self), object, None), self.state  # type: ignore[attr-defined]


class Manager(Frame):
    """Pickled in the same way."""


def index(*arguments: object) -> None:
    """What pandas calls to make one."""


class Names:
    """Pickled as pandas' index is: the call of a function."""

    def __reduce__(self) -> tuple[object, ...]:
        names = np.array([*CHANNELS, "sequence", "label"], object)
        return index, (Manager, {"data": names, "name": None})


# What the pickle calls ours. Protocol 2 writes names as lines of text.
PANDAS = {
    "Frame": "pandas.core.frame\nDataFrame",
    "Manager": "pandas.core.internals.managers\nBlockManager",
    "index": "pandas.core.indexes.base\n_new_Index",
}


def table(session: Session) -> Frame:
    """A DataFrame with a block of the signal and one of whole numbers."""
    signal, label = session
    blocks = [
        {"values": signal, "mgr_locs": slice(0, 6, 1)},
        {"values": np.stack([label, label]), "mgr_locs": slice(6, 8, 1)},
    ]
    kept = {"0.14.1": {"axes": [Names()], "blocks": blocks}}
    return Frame({"_data": Manager(([], [], [], kept)), "_typ": "dataframe"})


def session(*activities: int, samples: int = 256) -> Session:
    """Three windows of each activity, one after the other; a sample's signal is its number."""
    label = np.repeat(np.array(activities, np.int64), samples)
    return np.tile(np.arange(len(label), dtype=np.float64), (6, 1)), label


def pickled(people: Mapping[int, Sequence[Session]]) -> bytes:
    tables = {who: [table(each) for each in sessions] for who, sessions in people.items()}
    raw = pickle.dumps(tables, 2)
    for ours, theirs in PANDAS.items():
        raw = raw.replace(f"c{__name__}\n{ours}\n".encode(), f"c{theirs}\n".encode())
    assert __name__.encode() not in raw
    return gzip.compress(raw, 1)


def archive_of(folder: Path, content: bytes, path: str = MEMBER) -> Archive:
    return packed(folder, PHONES, {path: content})


def test_windows_are_of_one_activity_and_the_last_session_is_for_tests(tmp_path: Path) -> None:
    # 7 is a transition between postures; the session between the first and the last is nobody's.
    people = {
        9: [session(1, 7, 6), session(3), session(2, 1)],
        4: [session(5, samples=128), session(5, samples=200)],
    }
    found = phones(tmp_path, archive_of(tmp_path, pickled(people)))
    assert found.inputs.dtype == np.float32 and found.inputs.shape[1:] == (6, 128)
    assert found.groups.tolist() == [0, 0, 0, *[1] * 12]
    assert found.targets.tolist() == [4, 4, 4, 0, 0, 0, 5, 5, 5, 1, 1, 1, 0, 0, 0]
    assert found.tests.tolist() == [False, True, True, *[False] * 6, *[True] * 6]
    starts = found.inputs[:, 0, 0].astype(int).tolist()
    assert starts == [0, 0, 64, 0, 64, 128, 512, 576, 640, 0, 64, 128, 256, 320, 384]
    assert (np.diff(found.inputs, axis=2) == 1).all()


def test_what_is_odd_about_a_person_is_noted_and_the_others_stay(tmp_path: Path) -> None:
    damaged = session(1, 2)
    damaged[0][3, 70] = np.nan
    people = {
        1: [session(1, 2), session(1, 2)],
        2: [session(1, 2)],
        3: [session(4), session(4)],
        4: [session(1, 2), session(2, 6)],
        5: [damaged, session(1, 2)],
        6: [session(1, 2), session(7, 8)],
    }
    found = phones(tmp_path, archive_of(tmp_path, pickled(people)))
    assert found.notes == (
        "person 2: 1 sessions, expected 2; left out",
        "person 3: the first session has one activity, sitting",
        "person 4: the last session has activities that the first lacks: lying",
        "person 5: 2 windows of the first session hold NaN; left out",
        "person 6: no window with a single activity in the last session; left out",
    )
    assert np.bincount(found.groups).tolist() == [12, 6, 12, 10]


def zipped(value: object) -> bytes:
    return gzip.compress(pickle.dumps(value), mtime=0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no gzip", r"HAPT\.pkl\.gz: Not a gzipped file"),
        (zipped({1: print}), r"HAPT\.pkl\.gz: it names builtins\.print"),
        (zipped([1]), "list, expected a dict of sessions by person"),
        (zipped({1: [{}, {}]}), "person 1: KeyError '_data', expected a table"),
        (pickled({1: [session(1)]}), "no person with two sessions"),
    ],
)
def test_another_content_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(DataError, match=message):
        phones(tmp_path, archive_of(tmp_path, content))


def test_another_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archive_of(tmp_path, b"", "other")
    with pytest.raises(DataError, match=r"does not contain KCC2020"):
        phones(tmp_path, archive)
    path = tmp_path / PHONES.file
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"bytes with SHA-256 \w+…, expected .*data\.fetch phones"):
        phones(tmp_path, archive)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=rf"phones: no {PHONES.file} in .*nowhere; download it"):
        load("phones")


def test_the_real_phones() -> None:
    if not (user_datasets() / PHONES.file).is_file() and os.environ.get("CI") != "true":
        pytest.skip("the phones are not here: python -m sedge_emulate.data.fetch phones")
    config = DataConfig(dataset="phones", split="natural")
    dataset, shares = share_out(config, 30, 42, Path())
    assert dataset.inputs.shape == (9_937, 6, 128) and dataset.notes == ()
    assert np.bincount(dataset.targets).tolist() == [1660, 1468, 1317, 1707, 1904, 1881]
    assert (len(shares.train), len(shares.test)) == (5_088, 4_849)
    # Gravity is on the phone's x axis while people walk or stand, and on none of its axes' means else.
    upright = dataset.inputs[np.isin(dataset.targets, (0, 1, 2, 4)), 0].mean()
    assert 0.9 < upright < 1.05
