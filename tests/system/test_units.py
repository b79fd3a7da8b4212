"""The systemd units: ``systemd-analyze verify`` has nothing to say about them."""

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

from sedge_cloud.config import CloudConfig, load_cloud
from sedge_protocol.host.loop import MAX_WAIT_S

ROOT = Path(__file__).parents[2]
UNITS = (ROOT / "cloud" / "sedge-cloud.service", ROOT / "edge" / "sedge-edge.service")
ANALYZE = shutil.which("systemd-analyze")


class Unit(configparser.RawConfigParser):
    """A unit file's settings, in the case they are written in."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, interpolation=None, comment_prefixes=("#", ";"))
        self.read_string(path.read_text())

    def optionxform(self, optionstr: str) -> str:
        """Unit files distinguish cases."""
        return optionstr


@pytest.mark.skipif(ANALYZE is None, reason="needs systemd-analyze: apt-get install systemd")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_finds_nothing(path: Path, tmp_path: Path) -> None:
    words = Unit(path)["Service"]["ExecStart"].split()
    copy = tmp_path / path.name
    copy.write_text(path.read_text().replace(words[0], "/bin/true"))
    assert ANALYZE is not None
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    copy.write_text(copy.read_text().replace("Restart=always", "Restart=allways"))
    done = subprocess.run(
        [ANALYZE, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    assert "allways" in done.stderr  # it does look


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_what_both_promise(path: Path) -> None:
    service = Unit(path)["Service"]
    assert service["Type"] == "notify" and service["Restart"] == "always"
    assert float(service["WatchdogSec"]) > 10 * MAX_WAIT_S
    command, option, config, verb = service["ExecStart"].split()
    part = path.stem.removeprefix("sedge-")
    assert Path(command).name == path.stem and option == "--config"
    assert config == f"/etc/sedge/{part}.toml" and verb == {"cloud": "serve", "edge": "run"}[part]
    # The shell's start command, and with it the program's name, come from the distribution.
    assert f'{path.stem} = "sedge_start:{part}"' in (ROOT / "pyproject.toml").read_text()


def test_the_coordinator_may_write_where_its_file_says() -> None:
    shipped: CloudConfig = load_cloud(ROOT / "cloud" / "cloud.toml")
    service = Unit(UNITS[0])["Service"]
    assert shipped.state_dir == f"/var/lib/{service['StateDirectory']}"
