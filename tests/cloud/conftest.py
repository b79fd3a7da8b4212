"""Nothing here loses power, so nothing waits for the disk; that files are flushed is tested in host/."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cloud import given
from tests.cloud.helper import Cloud


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


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    """A coordinator with a run, and devices a and b, of which none is online."""
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.store.close()
