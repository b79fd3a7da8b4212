"""kill -9 at one commit after another, on either store: nothing is lost, the last bytes are the same."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.cloud.helper import CONFIG, Cloud
from tests.cloud.store.lives import Place, ends, lived, play
from tests.cloud.stores import FOLDER
from tools.bench.parts.servers import Servers

from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.settings import BlobsConfig, StoreConfig

ROOT = Path(__file__).parents[3]
LONG = msgspec.structs.replace(CONFIG, num_rounds=5)


@pytest.fixture
def place(engine: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Where the store of the fleet that dies is."""
    if engine == FOLDER:
        return StoreConfig(), BlobsConfig()
    servers: Servers = request.getfixturevalue("servers")
    return servers.place(tmp_path / "fleet" / "state")


def test_kill_at_commit_after_commit(tmp_path: Path, place: Place) -> None:
    whole = Cloud(tmp_path / "whole", LONG)
    play(whole)
    expected = ends(whole)
    whole.store.close()
    folder = tmp_path / "fleet"
    Cloud(folder, LONG).store.close()
    coded = msgspec.json.encode(place).decode()
    command = [sys.executable, "-m", "tests.cloud.store.lives", str(folder), coded]
    killed = int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    cloud = lived(folder, place, 60)
    assert ends(cloud) == expected and killed >= 8
    cloud.store.check()
    for sha256 in Garbage(cloud.store).named_blobs():
        cloud.store.update_blob(sha256)
    cloud.store.close()
