"""Nothing here loses power, so nothing waits for the disk; that files are flushed is tested in host/.

Whatever works on a store does so twice: in a folder, and (`make test-fleet`) on servers.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cloud import given, stores
from tests.cloud.helper import Cloud
from tests.cloud.servers import Servers

HERE = Path(__file__).parent
# What has no store.
WITHOUT = ("algorithms", "figures", "strategies", "conformance")


def nothing(descriptor: int) -> None:
    """In place of ``os.fsync``."""


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """Blobs and folders of these tests are not flushed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", nothing)
        yield


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    """No test hears of another's plans."""
    given.clear()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test with either store, unless it says which."""
    path = Path(metafunc.definition.path).relative_to(HERE)
    marks = metafunc.definition.iter_markers("parametrize")
    if path.parts[0] not in WITHOUT and not any("engine" in mark.args[0] for mark in marks):
        on_servers = pytest.param(stores.SERVERS, marks=pytest.mark.fleet)
        metafunc.parametrize("engine", [stores.FOLDER, on_servers], indirect=True)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The servers of this process's tests."""
    started = Servers()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What has the stores of a test."""
    name: str = getattr(request, "param", stores.FOLDER)
    if name == stores.FOLDER:
        yield name
        return
    with stores.on(request.getfixturevalue("servers")):
        yield name


@pytest.fixture
def cloud(tmp_path: Path, engine: str) -> Iterator[Cloud]:
    """A coordinator with a run, and devices a and b, of which none is online."""
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.store.close()
