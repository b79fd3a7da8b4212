"""What every engine does alike: frozen tensors, a prox towards another model, the last gradient."""

import numpy as np
import pytest
import torch
from tests.emulate import trainings
from tests.emulate.trainings import PLAIN, PULLED, problem

from sedge_emulate.training.chain import Chain
from sedge_emulate.training.engine import Engine
from sedge_emulate.training.module import Module
from sedge_emulate.training.sequential import open_sequential
from sedge_protocol.wire.messages import Training

CPU = torch.device("cpu")
PAIRS = [
    ("mlp", "sequential"),
    ("cnn", "sequential"),
    ("cnn", "autograd"),
    ("wide_cnn", "winograd"),
    ("groupnorm", "autograd"),
    ("batchnorm", "autograd"),
]


@pytest.mark.parametrize(("model", "name"), PAIRS)
def test_frozen_and_anchored(model: str, name: str) -> None:
    of = problem(model)
    trainings.check_frozen_and_anchored(open_sequential(name, of, "fp32", CPU), of, 3e-4)


@pytest.mark.parametrize(("model", "name"), PAIRS)
def test_the_last_gradient(model: str, name: str) -> None:
    of = problem(model)
    trainings.check_gradient(open_sequential(name, of, "fp32", CPU), of, 3e-4)


@pytest.mark.parametrize("opened", [Chain, Module])
@pytest.mark.parametrize("training", [PLAIN, PULLED], ids=["plain", "pulled"])
def test_placed_elsewhere_and_back(opened: type[Chain] | type[Module], training: Training) -> None:
    """What happens at another place between two steps leaves no trace."""
    of = problem("cnn")
    engine: Engine = Module(of, "fp32", CPU) if opened is Module else Chain(of, "fp32", False)
    theta = of.network.theta
    data = trainings.examples(of.input.shape, 8, 0)
    x, y = torch.from_numpy(data.inputs), torch.from_numpy(data.targets)
    ends: list[bytes] = []
    with torch.no_grad():
        for wanders in (False, True):
            engine.start(theta, training)
            for _ in range(3):
                here = engine.values.clone()
                if wanders:
                    engine.place(here + 1)
                    engine.differentiate(x, y)
                    assert engine.gradient().any()
                    engine.place(here)
                engine.differentiate(x, y)
                engine.descend()
            ends.append(engine.storage.read(engine.values).tobytes())
    assert ends[0] == ends[1]
    assert ends[0] != theta.tobytes()


def test_frozen_layers_at_the_bottom_are_not_differentiated() -> None:
    """A body that stays as it is costs no backward pass."""
    of = problem("cnn")
    engine = Chain(of, "fp32", False)
    body = tuple(of.network.layout.by_name)[:-1]
    theta = of.network.theta
    with torch.no_grad():
        engine.start(theta, Training(freeze=body))
        assert engine._first == len(engine._layers) - 1
        engine.start(theta, Training(freeze=body[1:]))
        assert engine._first == 0
        engine.start(theta, Training(freeze=tuple(of.network.layout.by_name)))
        assert engine._first == len(engine._layers)
    np.testing.assert_array_equal(engine.storage.read(engine.values), theta)
