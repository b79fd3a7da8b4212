"""Nothing here loses power, so nothing waits for the disk; that files are flushed is tested in host/.

What depends on the kind of store is tested twice: in a folder, and (`make test-fleet`) on servers.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cloud import given, stores
from tests.cloud.helper import Cloud
from tests.fleet import always
from tools.bench.parts.servers import Servers

from sedge_cloud.store.database import Store

HERE = Path(__file__).parent
# What depends on the kind of store: its statements and blobs, crashes, and who else is at it; of other
# files the tests that say ``on_both``. What a coordinator makes of rows that it has read runs in folders
# only, since the servers take five times as long.
ON_BOTH = {
    "admin/test_cloud_doctor.py", "admin/test_commands.py", "admin/test_copying.py",
    "admin/test_resumed_runs.py", "facts/test_large_fleet.py", "ingest/test_uploads.py",
    "processes/test_membership.py", "rounds/test_closing.py", "rounds/test_housekeeping.py",
    "rounds/test_rounds_serving.py", "store/test_crashes.py", "store/test_database.py",
    "store/test_leases.py", "store/test_receipts.py", "store/test_retention.py",
    "store/test_selector.py",
}  # fmt: skip


@pytest.fixture(scope="session", autouse=True)
def no_flush() -> Iterator[None]:
    """Blobs and folders of these tests are not flushed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", always(None))
        yield


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    """No test hears of another's plans."""
    given.clear()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of these files with either store, unless it says which."""
    path = Path(metafunc.definition.path).relative_to(HERE).as_posix()
    marks = metafunc.definition.iter_markers("parametrize")
    if path in ON_BOTH and not any("engine" in mark.args[0] for mark in marks):
        metafunc.parametrize("engine", stores.BOTH, indirect=True)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    started = Servers()
    yield started
    started.close()


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """What has the stores of a test."""
    name: str = getattr(request, "param", stores.FOLDER)
    folder = name == stores.FOLDER
    with stores.closed_afterwards() if folder else stores.on(request.getfixturevalue("servers")):
        yield name


@pytest.fixture
def store(tmp_path: Path, engine: str) -> Store:
    return stores.open_store(tmp_path / "state")


@pytest.fixture
def cloud(tmp_path: Path, engine: str) -> Cloud:
    """A coordinator with a run, and devices a and b, of which none is online."""
    return Cloud(tmp_path)
