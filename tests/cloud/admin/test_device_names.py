"""Many devices at once: counted, or read from a CSV file; all ids are right before one is used."""

from contextlib import closing
from pathlib import Path

import pytest
from tests.cloud.test_cloud_main import CAPSYS, call

from sedge_cloud.admin.device_names import device_names
from sedge_cloud.admin.templates import write_first_files
from sedge_cloud.store.opening import open_folder
from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError, SedgeError


def test_many_at_once(tmp_path: Path, capsys: CAPSYS) -> None:
    """The command itself: a folder and a password each, and one word to the broker."""
    write_first_files(tmp_path, "test", "mqtt://127.0.0.1:1")
    config, reloaded = tmp_path / "cloud.toml", tmp_path / "reloaded"
    config.write_text(config.read_text() + f"reload = \"sh -c 'echo >> {reloaded}'\"\n")
    out, listed = tmp_path / "devices", tmp_path / "list.csv"
    assert call(tmp_path, "device", "add", "pi", "--count", "3", "--out", str(out)) == 0
    listed.write_text("Device,room\nattic,1\n\ncellar,2\n")
    assert call(tmp_path, "device", "add", "--names", str(listed), "--out", str(out)) == 0
    names = {"pi-1", "pi-2", "pi-3", "attic", "cellar"}
    assert {path.name for path in out.iterdir()} == names
    assert {load_config(path / "edge.toml").device for path in out.iterdir()} == names
    passwords = (tmp_path / "broker-passwords").read_text()
    assert all(f"\n{name}:" in passwords for name in names)
    assert reloaded.read_text() == "\n\n"
    assert "SIGHUP" not in capsys.readouterr().out
    assert call(tmp_path, "device", "add", "pi", "--count", "4", "--out", str(tmp_path / "4")) == 2
    assert "device: found 'pi-1', expected an id that is not" in capsys.readouterr().err
    assert not (tmp_path / "4").exists()


def test_a_broker_that_does_not_reload(tmp_path: Path, capsys: CAPSYS) -> None:
    write_first_files(tmp_path, "test", "mqtt://127.0.0.1:1")
    config = tmp_path / "cloud.toml"
    config.write_text(config.read_text() + "reload = \"sh -c 'echo no such unit >&2; exit 5'\"\n")
    assert call(tmp_path, "device", "add", "pi", "--out", str(tmp_path / "pi")) == 4
    captured = capsys.readouterr()
    assert "exited with 5: no such unit" in captured.err
    assert (tmp_path / "pi" / "secret").exists() and f"Copy {tmp_path / 'pi'}/" in captured.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\na\n", r"list.csv, line 3: device: found 'a', expected each id only once \(line 1 has it"),
        ("a\nB\n", "device: found 'B', expected 1 to 48"),
        ("a\n\nc\n", "line 3: device: found 'c', expected an id that is not enrolled"),
        ("a,1\n", "line 1: columns: found 'a,1', expected column names in the first line: device, then"),
        ("id,site,site\n", "line 1: columns: found 'site', expected each column only once"),
        ("id,memory_mb\n", "line 1: tag: found 'memory_mb', expected a tag"),
        ("id,site\na,lab,3\n", "line 2: columns: found 3, expected at most 2"),
        ('id,site\na,"hall\nb"\n', r"line 3: tag site: found 'hall\\nb', expected at most 64"),
        ('id,site\na,"hall\n"\n', r"line 3: tag site: found 'hall\\n', expected at most 64"),
        ("id,site\na,hall\u2028b\n", r"line 2: tag site: found 'hall\\u2028b', expected at"),
        ("id,site\na,hall\x0bb\n", r"line 2: tag site: found 'hall\\x0bb', expected at most"),
        ("id,site\na,'\n", 'line 2: tag site: found "\'", expected at most 64 printable'),
        ("id,secret\nd,\na,12\n", "line 3: secret: found '2 characters', expected 64 hex digits"),
        (f"id,secret\na,{'x' * 64}\n", "line 2: secret: found '64 characters', expected 64 hex"),
        ('id,site\na,"lab\n', "--names: found 'unexpected end of data', expected a valid line of CSV"),
        ("name\n", "expected at least one id"),
        ("\n", "expected at least one id"),
        (None, "No such file"),
    ],
)  # fmt: skip
def test_lists_that_are_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "list.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SedgeError, match=message):
        device_names(None, None, file, {"c"}.intersection)


def test_devices_come_with_secrets_and_tags(tmp_path: Path, capsys: CAPSYS) -> None:
    """Who has a secret gets no folder; all get their line at the broker."""
    write_first_files(tmp_path, "test", "mqtt://127.0.0.1:1")
    listed, out = tmp_path / "list.csv", tmp_path / "devices"
    one, other = "ab" * 32, "cd" * 32
    listed.write_text(f"device,Site,secret\nattic,,{one}\ncellar,hall b,\nroof,lab,{other}\n")
    assert call(tmp_path, "device", "add", "--names", str(listed), "--out", str(out)) == 0
    text = capsys.readouterr().out
    assert "enrolled with existing secrets: 2 devices" in text and "SIGHUP" in text
    assert [path.name for path in out.iterdir()] == ["cellar"]
    passwords = (tmp_path / "broker-passwords").read_text()
    assert all(f"\n{name}:" in passwords for name in ("attic", "cellar", "roof"))
    with closing(open_folder(tmp_path / "state")) as store:
        rows = store.devices_named(["attic", "cellar", "roof"])
        assert rows["attic"].secret == b"\xab" * 32 and rows["roof"].secret == b"\xcd" * 32
        assert store.tags_of(rows) == {"cellar": {"site": "hall b"}, "roof": {"site": "lab"}}


def test_an_id_or_a_list() -> None:
    for device, file in ((None, None), ("a", Path("list.csv"))):
        with pytest.raises(ConfigError, match="either an id or --names FILE"):
            device_names(device, None, file, list)
