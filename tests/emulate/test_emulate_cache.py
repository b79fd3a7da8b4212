"""The user's cache: whole entries or none, the newest of them, and never a reason to stop."""

import os
import time
from pathlib import Path

import pytest
from tests.fleet import failing

from sedge_emulate.cache import FolderCache, user_cache
from sedge_emulate.workers.processes import Processes

ONE, TWO, THREE = (bytes([number]) * 32 for number in range(3))


class Shelf(FolderCache):
    """A cache in a folder, and what it says."""

    def __init__(self, folder: Path, fresh: bool = False, max_bytes: int = 2**20) -> None:
        self.said: list[str] = []
        super().__init__(folder, self.said.append, fresh, max_bytes)


def test_an_entry_is_found_by_its_key_alone(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "made")
    assert shelf.find(ONE) is None
    shelf.keep(ONE, b"content", ONE)
    assert (shelf.find(ONE), shelf.find(TWO)) == (b"content", None)
    fresh = Shelf(tmp_path / "made", fresh=True)
    assert fresh.find(ONE) is None
    fresh.keep(ONE, b"anew", ONE)
    assert shelf.find(ONE) == b"anew"
    assert shelf.said == fresh.said == []


@pytest.mark.parametrize("damage", [b"", b"short", bytes(40)])
def test_a_damaged_entry_is_none_and_is_written_again(tmp_path: Path, damage: bytes) -> None:
    shelf = Shelf(tmp_path)
    shelf.keep(ONE, b"content", ONE)
    (tmp_path / ONE.hex()).write_bytes(damage)
    assert shelf.find(ONE) is None
    assert shelf.said == [f"cache: {tmp_path / ONE.hex()} is damaged; rebuilding it"]
    shelf.keep(ONE, b"content", ONE)
    assert shelf.find(ONE) == b"content"


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, max_bytes=1000)
    for key in (ONE, TWO):
        shelf.keep(key, bytes(400), key)
        os.utime(tmp_path / key.hex(), (1000, 1000))
    assert shelf.find(ONE) is not None  # used now
    shelf.keep(THREE, bytes(400), THREE)
    assert [shelf.find(key) is None for key in (ONE, TWO, THREE)] == [False, True, False]


def test_what_is_larger_than_the_cache_and_foreign_files_leave_it_as_it_is(tmp_path: Path) -> None:
    shelf, foreign = Shelf(tmp_path, max_bytes=1000), tmp_path / "notes.txt"
    shelf.keep(ONE, bytes(400), ONE)
    foreign.write_bytes(bytes(2000))
    os.utime(foreign, (1000, 1000))
    shelf.keep(TWO, bytes(1000), TWO)
    assert shelf.said == ["cache: no room for 1,000 bytes and a checksum in 1,000"]
    shelf.keep(THREE, bytes(400), THREE)
    assert [shelf.find(key) is None for key in (ONE, TWO, THREE)] == [False, True, False]
    assert foreign.exists()


def test_a_folder_that_cannot_be_used_is_said_and_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shelf = Shelf(tmp_path / "file")
    shelf.keep(ONE, b"content", ONE)
    assert shelf.find(ONE) is None
    (line,) = shelf.said
    assert line.startswith("cache: ") and str(tmp_path / "file") in line
    shelf = Shelf(tmp_path / ("long" * 100))
    assert shelf.find(ONE) is None
    assert "File name too long" in shelf.said[0]
    (tmp_path / "folder" / ONE.hex()).mkdir(parents=True)
    shelf = Shelf(tmp_path / "folder")
    assert shelf.find(ONE) is None
    assert "Is a directory" in shelf.said[0]


def write_and_read(folder: Path) -> set[bytes | None]:
    """What a process finds in half a second while it writes, too."""
    shelf, found = Shelf(folder), set[bytes | None]()
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        shelf.keep(ONE, bytes(50_000), ONE)
        found.add(shelf.find(ONE))
    return found if not shelf.said else {b"said"}


def test_processes_share_a_folder(tmp_path: Path) -> None:
    processes = Processes(2)
    both = [processes.submit(write_and_read, tmp_path) for _ in range(2)]
    assert [one.result() for one in both] == [{bytes(50_000)}] * 2
    processes.close()


def test_the_folder_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with failing(Path, "home", RuntimeError("Could not determine home directory.")):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        assert user_cache() == tmp_path / "sedge"
        monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
        assert user_cache() is None
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    found = user_cache()
    assert found is not None and found.is_relative_to(tmp_path)
