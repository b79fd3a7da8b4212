"""The compiled Java core, and fleets with Java devices."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.android import class_means
from tests.android.java import compiled, once
from tests.edge.backends.conftest import unpacked_wheel
from tests.edge.conftest import jvm as jvm
from tools.bench.parts.real_fleet import RealFleet

from android.build import jni
from sedge_edge.backends.executorch import PACKAGE
from sedge_protocol.wire.bundle import save


@pytest.fixture(scope="session")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The core and its tests, compiled."""
    return once(tmp_path_factory, "java", compiled)


@pytest.fixture(scope="session")
def jni_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JNI library of ExecuTorch for a JVM."""
    libraries = unpacked_wheel() / PACKAGE
    return Path(once(tmp_path_factory, "jni", lambda folder: jni(libraries, folder)))


@pytest.fixture
def library(jni_library: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same, with what it is built on where Python finds it, too."""
    monkeypatch.syspath_prepend(unpacked_wheel())
    return jni_library


@pytest.fixture(scope="session")
def means(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of class_means.py in a folder."""
    folder = tmp_path_factory.mktemp("bundle") / "means"
    save(folder, *class_means.bundle())
    return folder


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[RealFleet]:
    """A broker, configured by ``sedge-cloud init``; the test starts the rest."""
    with closing(RealFleet(tmp_path)) as fleet:
        yield fleet
