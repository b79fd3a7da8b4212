"""The backend "torch" against the programs of an exported model, and modules that are not the bundle's.

Its arithmetic is also tested in test_bundle_trainer.py, on one model with all other backends.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.edge.backends.softmax import FILES, bundle, examples, never, start

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.training.examples import Examples
from sedge_edge.training.trainer import TrainRequest
from sedge_export.exporter import export
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.user_code import imported
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import ONNXRUNTIME, TORCH, Bundle, load
from sedge_protocol.wire.training import Training

MODEL = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(36, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3),
    )
"""


@dataclass
class Exported:
    """A network with BatchNorm and a frozen layer, its initial theta (n,), and the code that makes it."""

    bundle: Bundle
    theta: Theta
    code: UserCode


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("exported")
    (folder / "batchnorm_model.py").write_text(MODEL)
    code = UserCode(folder, "batchnorm_model:build")
    torch.manual_seed(3)
    model = imported(code.model, folder, "model")()
    sample = torch.randn(8, 1, 8, 8)
    export(model, sample, batch_size=8, name="bn", num_classes=3, folder=folder / "bundle")
    return Exported(*load(folder / "bundle"), code)


@pytest.mark.parametrize(
    "training",
    [
        Training(learning_rate=0.1),
        Training(learning_rate=0.01, optimizer="adam", clip_norm=1.0, weight_decay=0.01, prox=0.1),
    ],
    ids=["sgd", "adam"],
)
def test_a_step_is_that_of_onnxruntime(exported: Exported, training: Training) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((8, 1, 8, 8)).astype(np.float32)
    data = Examples(inputs, rng.integers(0, 3, 8))
    trainers = [
        open_trainer(exported.bundle, name, 1, exported.code) for name in (ONNXRUNTIME, TORCH)
    ]
    wanted, found = (
        t.train(TrainRequest(exported.theta, training, 1, gradient=True), data, never)
        for t in trainers
    )
    moved = np.abs(wanted.theta - exported.theta).max()
    np.testing.assert_allclose(found.theta, wanted.theta, rtol=0, atol=1e-5 * moved)
    assert found.loss == pytest.approx(wanted.loss, rel=1e-5)
    layout = exported.bundle.manifest.layout
    assert len(layout.statistics) == 2
    for name in layout.statistics:
        where = layout.by_name[name].slice
        moved = np.abs(wanted.theta - exported.theta)[where].max()
        assert moved > 0
        np.testing.assert_allclose(
            found.theta[where], wanted.theta[where], rtol=0, atol=1e-5 * moved
        )
    frozen = exported.bundle.manifest.frozen
    assert frozen is not None
    assert set(frozen.layout.by_name) == {"5.weight", "5.bias"}  # the device's own are other ones
    after = [trainer.evaluate(wanted.theta, data) for trainer in trainers]
    assert after[1].loss == pytest.approx(after[0].loss, rel=1e-5)
    assert after[1].metric == after[0].metric


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "Softmax(5, 4)",
            r"found 'torch.float32 \(5, 4\)', expected parameter W of float32 \(5, 3\)",
        ),
        ("Softmax().double()", r"found 'torch.float64 \(5, 3\)', expected parameter W of float32"),
        ("nn.Linear(5, 3)", "found 'no W', expected parameter W"),
        ("nn.ModuleDict({'a': Softmax()})", "found 'no W', expected parameter W"),
        ("Wider()", "found 'parameter c', expected only the bundle's parameters"),
        ("3", r"found 'int', expected a torch.nn.Module, or a tuple \(module, loss\)"),
        ("(Softmax(), 3)", r"found 'tuple', expected a torch.nn.Module, or a tuple"),
        ("1 / 0", "found 'ZeroDivisionError: division by zero'"),
        ("sys.exit()", "found 'SystemExit: '"),
    ],
)
def test_what_is_not_the_bundles_module(code: str, message: str, tmp_path: Path) -> None:
    name = f"wrong_{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(
        "import sys, torch\nfrom torch import nn\n"
        "class Softmax(nn.Module):\n"
        "    def __init__(self, f=5, c=3):\n"
        "        super().__init__()\n"
        "        self.W, self.b = nn.Parameter(torch.zeros(f, c)), nn.Parameter(torch.zeros(3))\n"
        "class Wider(Softmax):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.c = nn.Parameter(torch.zeros(1))\n"
        f"def build():\n    return {code}\n"
    )
    with pytest.raises(ConfigError, match=f"^{name}:build: {message}"):
        open_trainer(bundle({}), TORCH, 1, UserCode(tmp_path, f"{name}:build"))


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    message = r"^backend.model: found 'nowhere:build', expected .* \(there is no module nowhere"
    with pytest.raises(ConfigError, match=message):
        open_trainer(bundle({}), TORCH, 1, UserCode(tmp_path, "nowhere:build"))


def test_a_loss_of_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "scaled_loss.py").write_text(
        "import sys\nfrom torch.nn.functional import cross_entropy\n"
        f"sys.path.append({str(Path(__file__).parent)!r})\n"
        "from softmax_module import Softmax\n"
        "def build():\n"
        "    return Softmax(), lambda out, y: 2 * cross_entropy(out, y, reduction='none')\n"
    )
    once = open_trainer(bundle(FILES), ONNXRUNTIME, 1).evaluate(start(), examples(6))
    twice = open_trainer(bundle({}), TORCH, 1, UserCode(tmp_path, "scaled_loss:build"))
    assert twice.evaluate(start(), examples(6)).loss == pytest.approx(2 * once.loss, rel=1e-5)


def test_without_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("sedge_edge.backends.torch")]:
        monkeypatch.delitem(sys.modules, name)
    message = r"torch: .* \(pip install 'sedge-fl\[torch\]'\)$"
    with pytest.raises(ConfigError, match=f"^backend.name: found 'torch', expected .*{message}"):
        open_trainer(bundle({}), TORCH, 1, UserCode(Path(), "any:build"))
