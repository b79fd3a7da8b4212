"""What the tests under emulation share: the tools they need, a model for both backends, real images."""

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import torch
from tests.arm64.emulated import MixedFleet
from tools.arm64 import guest

from sedge_emulate.data.datasets import Dataset, fashion_mnist
from sedge_export import export
from sedge_export.models import avgcnn

BATCH_SIZE = 32
LABELS = (
    "T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"
)  # fmt: skip


def require(tools: Mapping[str, str]) -> None:
    """Where tools are missing, CI fails and everybody else skips."""
    if lacking := guest.missing(tools):
        refuse = pytest.fail if os.environ.get("CI") else pytest.skip
        refuse(f"needs emulation: {lacking}")


@pytest.fixture(scope="session")
def emulation() -> None:
    require(guest.TOOLS)


@pytest.fixture(scope="session")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network of two convolutions and two linear layers, for both backends."""
    folder = tmp_path_factory.mktemp("bundle") / "cnn"
    torch.manual_seed(0)
    export(
        avgcnn(), torch.randn(BATCH_SIZE, 1, 28, 28), batch_size=BATCH_SIZE, name="cnn",
        num_classes=10, folder=folder, backends=("onnxruntime", "executorch"), labels=LABELS,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def images() -> Dataset:
    return fashion_mnist()


@contextmanager
def started(folder: Path) -> Generator[MixedFleet]:
    """A broker and a coordinator; the test starts the devices."""
    folder.mkdir()
    with closing(MixedFleet(folder)) as fleet:
        fleet.start_cloud()
        yield fleet


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[MixedFleet]:
    """A fleet some of whose devices are emulated."""
    with started(tmp_path / "fleet") as fleet:
        yield fleet


@pytest.fixture
def alike(tmp_path: Path) -> Iterator[MixedFleet]:
    """A fleet to compare it with."""
    with started(tmp_path / "alike") as fleet:
        yield fleet


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a figure past pytest's capture."""

    def line(text: str) -> None:
        with capsys.disabled():
            print(f"\n  {text}", end="", flush=True)

    return line
