"""The digest of a model changes with whatever may change its export, and with nothing else."""

import importlib
import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import MappingProxyType

import pytest
import torch
from torch import nn

from sedge_emulate.training.fingerprint import fingerprint

OWN = """
import torch
from abc import ABC
from functools import cache
from types import MappingProxyType
from torch import nn

SCALE = 2.0
TABLE = MappingProxyType({"slope": 1.0})

@cache
def power(base=1):
    return base

def doubled(function):
    return lambda *given: 2 * function(*given)

class Net(nn.Linear, ABC):
    rate = 1.0

    @property
    def both(self):
        return self.rate * TABLE["slope"]

    def __init__(self):
        super().__init__(3, 2)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        self.steps = {"up", "down", "left"}
        self.power = 1
        self.act = doubled(power)

    def forward(self, x):
        return SCALE * super().forward(x) ** self.power
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[], nn.Module]]:
    """Makes the user's model, its module as the file has it now."""
    name = "sedge_net_of_a_user"
    (tmp_path / f"{name}.py").write_text(OWN)
    (tmp_path / "ops-1.0.dist-info").mkdir()
    (tmp_path / "ops-1.0.dist-info/RECORD").write_text("ops.py,sha256=one,2\n")
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


def a_value_in_a_class(net: nn.Module, folder: Path) -> None:
    setattr(type(net), "rate", 2.0)  # noqa: B010 - as an import in another environment does


def a_default(net: nn.Module, folder: Path) -> None:
    vars(sys.modules[type(net).__module__])["power"].__wrapped__.__defaults__ = (2,)


def what_a_function_closes_over(net: nn.Module, folder: Path) -> None:
    vars(net)["act"].__closure__[0].cell_contents = abs


def a_table(net: nn.Module, folder: Path) -> None:
    vars(sys.modules[type(net).__module__])["TABLE"] = MappingProxyType({"slope": 2.0})


def a_package_of_the_same_version(net: nn.Module, folder: Path) -> None:
    (folder / "ops-1.0.dist-info/RECORD").write_text("ops.py,sha256=other,2\n")


def what_lies_beside_it(net: nn.Module, folder: Path) -> None:
    (folder / "beside.py").write_text("SLOPE = 2")


@pytest.mark.parametrize(
    "change",
    [
        weights, frozen, attribute, a_global, source, a_value_in_a_class, a_default,
        what_a_function_closes_over, a_table, a_package_of_the_same_version, what_lies_beside_it,
    ],
)  # fmt: skip
def test_every_change_makes_another(
    change: Callable[[nn.Module, Path], None], model: Callable[[], nn.Module], tmp_path: Path
) -> None:
    net = model()
    before = fingerprint(net)
    change(net, tmp_path)
    assert fingerprint(net) not in (before, None)


def of_the_model(net: nn.Module) -> dict[str, object]:
    return vars(net)


def of_its_module(net: nn.Module) -> dict[str, object]:
    return vars(sys.modules[type(net).__module__])


@pytest.mark.parametrize("place", [of_the_model, of_its_module])
def test_a_value_that_cannot_be_pickled_is_said(
    place: Callable[[nn.Module], dict[str, object]], model: Callable[[], nn.Module]
) -> None:
    net, said = model(), list[str]()
    with open(os.devnull) as file:
        place(net)["log"] = file
        assert fingerprint(net, note=said.append) is None
    (line,) = said
    assert line.startswith("cache: not used for this model: ") and "TextIOWrapper" in line
