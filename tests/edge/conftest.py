"""The device that most tests of the agent begin with, in Python and, where a module says so, in Java."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.android.java import compiled, once
from tests.edge.disk_faults import Disk, OsDisk
from tests.edge.harness import Harness, MakeDevice
from tests.edge.java_core import JavaDisk, JavaHarness, Jvm
from tests.edge.python_only import REASONS
from tests.fleet import no_sync as no_sync

from sedge_protocol.layout import Theta

CORES = ("python", "java")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what is marked ``both_cores`` on both."""
    if "core" in metafunc.fixturenames and metafunc.definition.get_closest_marker("both_cores"):
        metafunc.parametrize("core", CORES, indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of Java what is marked ``python_only`` with one of the ``REASONS``."""
    left: list[pytest.Item] = []
    for item in items:
        marker = item.get_closest_marker("python_only")
        assert marker is None or marker.args[0] in REASONS, f"{item.nodeid}: {marker}"
        if marker is not None and "java" in item.name.partition("[")[2].rstrip("]").split("-"):
            left.append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Theta]:
    """The packed bundle of a small network, and its first theta (n,)."""
    from tests.edge.home import make_bundle  # with torch, which a device does not have

    return make_bundle(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jvm]:
    """The process of all devices in Java."""
    jvm = Jvm(once(tmp_path_factory, "java", compiled))
    yield jvm
    jvm.close()


@pytest.fixture
def core(request: pytest.FixtureRequest) -> str:
    """In which language the agent is."""
    return getattr(request, "param", "python")


@pytest.fixture
def make_device(request: pytest.FixtureRequest, core: str) -> MakeDevice:
    return Harness if core == "python" else partial(JavaHarness, request.getfixturevalue("jvm"))


@pytest.fixture
def disk(request: pytest.FixtureRequest, core: str) -> Disk:
    """What may befall the disks of its devices."""
    return OsDisk() if core == "python" else JavaDisk(request.getfixturevalue("jvm"))


@pytest.fixture
def device(make_device: MakeDevice, tmp_path: Path) -> Harness:
    """Connected and welcomed."""
    device = make_device(tmp_path)
    device.pump(device.connect())
    return device
