"""The journal: one struct, whole or refused."""

import hashlib
import re
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from sedge_protocol.errors import LocalError, StorageError
from sedge_protocol.host.journal import MAGIC, Journal

BODY = len(MAGIC) + 4 + 32


class State(msgspec.Struct, frozen=True):
    incarnation: Annotated[int, Meta(ge=0)]
    names: tuple[str, ...] = ()
    blob: bytes = b""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "agent.journal"


def file_of(body: bytes, schema: int = 1) -> bytes:
    """A journal's bytes as its documentation has them."""
    number = schema.to_bytes(4, "little")
    return MAGIC + number + hashlib.sha256(number + body).digest() + body


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
        flipped[position] ^= 1 << position % 8
        path.write_bytes(flipped)
        with pytest.raises(StorageError, match=r"agent\.journal"):
            journal.load()
    path.write_bytes(good + b"\0")
    with pytest.raises(StorageError, match="sha256"):
        journal.load()
    path.write_bytes(good)
    assert journal.load() == State(7, ("pi",))


def test_bad_bytes_under_a_sound_hash_are_refused_or_another_value(path: Path) -> None:
    """Every bit of the body flipped, and the body cut short: text that is not UTF-8 among them."""
    journal = Journal(path, State, 1)
    journal.commit(State(7, ("pi", "\u00e9"), b"blob"))
    body = path.read_bytes()[BODY:]
    bodies = [body[:length] for length in range(len(body))]
    for position in range(len(body)):
        flips = (body[position] ^ 1 << bit for bit in range(8))
        bodies += [body[:position] + bytes([byte]) + body[position + 1 :] for byte in flips]
    bodies.append(b"\x91" * 100_000)  # nested deeper than any stack
    refused = 0
    for bad in bodies:
        path.write_bytes(file_of(bad))
        try:
            assert isinstance(journal.load(), State)
        except StorageError as exc:
            assert re.search(r"agent\.journal: damaged, .*; restore the file, or move it", str(exc))
            refused += 1
    assert len(body) < refused < len(bodies)


@pytest.mark.parametrize(("written", "read"), [(1, 2), (2, 1)])
def test_another_schema_is_refused_and_left_alone(path: Path, written: int, read: int) -> None:
    Journal(path, State, written).commit(State(7))
    before = path.read_bytes()
    with pytest.raises(StorageError, match=f"schema {written}, this version reads {read}"):
        Journal(path, State, read).load()
    assert path.read_bytes() == before


def test_a_value_that_could_not_be_loaded_is_not_committed(path: Path) -> None:
    journal = Journal(path, State, 1)
    journal.commit(State(7))
    with pytest.raises(LocalError, match="incarnation"):
        journal.commit(State(-1))
    with pytest.raises(LocalError, match="surrogates"):
        journal.commit(State(1, ("\udc80",)))
    assert journal.load() == State(7)


def test_the_format_is_as_documented(path: Path) -> None:
    Journal(path, State, 3).commit(State(7))
    assert path.read_bytes() == file_of(msgspec.msgpack.encode(State(7)), 3)
