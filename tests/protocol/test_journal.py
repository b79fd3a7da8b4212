"""The journal: one struct, whole or refused."""

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from sedge_protocol.errors import LocalError, StorageError
from sedge_protocol.journal import MAGIC, Journal


class State(msgspec.Struct, frozen=True):
    boot: Annotated[int, Meta(ge=0)]
    names: tuple[str, ...] = ()
    blob: bytes = b""


class Wider(msgspec.Struct, frozen=True):
    boot: str


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agent.journal"


def test_a_journal_gives_back_what_was_committed_last(path: Path) -> None:
    journal = Journal(path, State, 1)
    assert journal.load() is None
    for value in (State(1), State(2, ("a", "b"), bytes(300)), State(0)):
        journal.commit(value)
        assert journal.load() == value
        assert Journal(path, State, 1).load() == value
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o777 == 0o600


def test_every_damage_is_refused(path: Path) -> None:
    journal = Journal(path, State, 1)
    journal.commit(State(7, ("pi",)))
    good = path.read_bytes()
    for length in range(len(good)):
        path.write_bytes(good[:length])
        with pytest.raises(StorageError, match=r"agent\.journal"):
            journal.load()
    for position in range(len(good)):
        flipped = bytearray(good)
        flipped[position] ^= 0x10
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match=r"agent\.journal"):
            journal.load()
    path.write_bytes(good + b"\0")
    with pytest.raises(StorageError, match="sha256"):
        journal.load()
    path.write_bytes(good)
    assert journal.load() == State(7, ("pi",))


@pytest.mark.parametrize(("written", "read"), [(1, 2), (2, 1)])
def test_another_schema_is_refused_and_left_alone(path: Path, written: int, read: int) -> None:
    Journal(path, State, written).commit(State(7))
    before = path.read_bytes()
    with pytest.raises(StorageError, match=f"schema {written}, this version reads {read}"):
        Journal(path, State, read).load()
    assert path.read_bytes() == before


def test_a_struct_changed_without_a_new_schema_is_refused(path: Path) -> None:
    Journal(path, State, 1).commit(State(7))
    with pytest.raises(StorageError, match=r"Expected `str`, got `int` - at `\$.boot`"):
        Journal(path, Wider, 1).load()


def test_a_value_that_could_not_be_loaded_is_not_committed(path: Path) -> None:
    journal = Journal(path, State, 1)
    journal.commit(State(7))
    with pytest.raises(LocalError, match="boot"):
        journal.commit(State(-1))
    assert journal.load() == State(7)


def test_the_format_is_as_documented(path: Path) -> None:
    Journal(path, State, 3).commit(State(7))
    body = msgspec.msgpack.encode(State(7))
    schema = (3).to_bytes(4, "little")
    assert path.read_bytes() == MAGIC + schema + hashlib.sha256(schema + body).digest() + body


def test_a_journal_that_is_no_file(path: Path) -> None:
    path.mkdir(parents=True)
    journal = Journal(path, State, 1)
    with pytest.raises(StorageError, match="read journal"):
        journal.load()
    with pytest.raises(StorageError, match="write journal"):
        journal.commit(State(1))
