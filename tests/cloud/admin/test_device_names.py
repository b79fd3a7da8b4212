"""Many devices at once: counted, or read from a CSV file; all ids are right before one is used."""

from pathlib import Path

import pytest
from tests.cloud.test_cloud_main import call

from sedge_cloud.admin.device_names import device_names
from sedge_cloud.admin.templates import write_first_files
from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError, SedgeError


def test_many_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_broker_that_does_not_reload(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_first_files(tmp_path, "test", "mqtt://127.0.0.1:1")
    config = tmp_path / "cloud.toml"
    config.write_text(config.read_text() + "reload = \"sh -c 'echo no such unit >&2; exit 5'\"\n")
    assert call(tmp_path, "device", "add", "pi", "--out", str(tmp_path / "pi")) == 2
    captured = capsys.readouterr()
    assert "ended with 5: no such unit" in captured.err
    assert (tmp_path / "pi" / "secret").exists() and f"Copy {tmp_path / 'pi'}/" in captured.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\nb\na\n", "found 'a', expected every id once"),
        ("a\nB\n", "device: found 'B', expected 1 to 48"),
        ("c\n", "found 'c', expected an id that is not enrolled"),
        ("name\n", "expected at least one id"),
        ("\n", "expected at least one id"),
        (None, "No such file"),
    ],
)
def test_lists_that_are_refused(tmp_path: Path, text: str | None, message: str) -> None:
    file = tmp_path / "list.csv"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SedgeError, match=message):
        device_names(None, None, file, ["c"])


def test_an_id_or_a_list() -> None:
    for device, file in ((None, None), ("a", Path("list.csv"))):
        with pytest.raises(ConfigError, match="an id, or --names FILE without one"):
            device_names(device, None, file, [])
