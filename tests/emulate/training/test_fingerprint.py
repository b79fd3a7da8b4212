"""The digest of a model changes with whatever may change its export, and with nothing else."""

import importlib
import sys
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
import torch
from torch import nn

from sedge_emulate.training.fingerprint import fingerprint

OWN = """
import torch
from torch import nn

SCALE = 2.0

class Net(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.steps = {"up", "down", "left"}
        self.power = 1

    def forward(self, x):
        return SCALE * super().forward(x) ** self.power
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], nn.Module]]:
    """Makes the user's model, its module as the file has it now."""
    name = "a_net_with_a_digest"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)

    def made() -> nn.Module:
        sys.modules.pop(name, None)
        importlib.invalidate_caches()
        net: nn.Module = importlib.import_module(name).Net()
        return net

    yield made
    sys.modules.pop(name, None)


def test_the_same_model_has_the_same_digest(model: Callable[[], nn.Module]) -> None:
    digest = fingerprint(model(), "export", 3)
    assert digest is not None and len(digest) == 32
    assert fingerprint(model(), "export", 3) == digest
    assert fingerprint(model(), "export", 4) != digest


def weights(net: nn.Module, folder: Path) -> None:
    with torch.no_grad():
        next(net.parameters())[0, 0] = 1e-9


def frozen(net: nn.Module, folder: Path) -> None:
    next(net.parameters()).requires_grad = False


def attribute(net: nn.Module, folder: Path) -> None:
    vars(net)["power"] = 2


def a_global(net: nn.Module, folder: Path) -> None:
    vars(sys.modules[type(net).__module__])["SCALE"] = 3.0


def source(net: nn.Module, folder: Path) -> None:
    (folder / f"{type(net).__module__}.py").write_text(OWN.replace("** self", "* self"))


def what_lies_beside_it(net: nn.Module, folder: Path) -> None:
    (folder / "beside.py").write_text("SLOPE = 2")


@pytest.mark.parametrize(
    "change", [weights, frozen, attribute, a_global, source, what_lies_beside_it]
)
def test_every_change_makes_another(
    change: Callable[[nn.Module, Path], None], model: Callable[[], nn.Module], tmp_path: Path
) -> None:
    net = model()
    before = fingerprint(net)
    change(net, tmp_path)
    assert fingerprint(net) not in (before, None)


def test_a_model_that_cannot_be_pickled_has_none() -> None:
    net = nn.Linear(3, 2)
    vars(net)["activation"] = lambda: None
    assert fingerprint(net) is None
