"""Guided losses on a device, in torch and in the emulator, against slow twins in plain torch."""

import copy
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.edge.backends.contrast import MOON
from tests.edge.harness import Harness, theta_of
from torch import Tensor, nn
from torch.nn import functional

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.backends.guided_losses import GUIDED_LOSSES, guided_loss
from sedge_edge.backends.rows import CLASSIFICATION
from sedge_edge.jobs.job import Job, Kept
from sedge_edge.training.examples import Examples
from sedge_edge.training.preparation import prepare
from sedge_edge.training.trainer import Guidance, TrainRequest
from sedge_emulate.training.autograd import AutogradTrainer
from sedge_emulate.training.problem import TrainingProblem
from sedge_emulate.training.tasks import Task
from sedge_export.exporter import export
from sedge_protocol.errors import CodecError, ConfigError
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.arrays import check_guided
from sedge_protocol.wire.bundle import ONNXRUNTIME, TORCH, TensorSpec, load
from sedge_protocol.wire.objective import CONSTANTS, COUNTS, Guide
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.update import Metrics
from sedge_protocol.wire.work import OwnModel, Work

CODE = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 5), nn.ReLU(),
        nn.Linear(5, 3),
    )
"""
B, C, RATE, STEPS = 8, 3, 0.2, 3
# Label 2 is not there.
COUNTED = [5.0, 3.0, 0.0]


def build() -> nn.Sequential:
    made: dict[str, Callable[[], nn.Sequential]] = {}
    exec(CODE, made)
    torch.manual_seed(3)
    return made["build"]()


def data() -> Examples:
    inputs = np.random.default_rng(0).standard_normal((B, 1, 6, 6)).astype(np.float32)
    return Examples(inputs, np.array([0, 0, 0, 0, 0, 1, 1, 1]))


def moon(z: Tensor, out: Tensor, y: Tensor, others: list[Tensor]) -> Tensor:
    """Equations 3 and 4, as the authors write them: the cross entropy of similarities, mu 2, tau .5."""
    similar = [functional.cosine_similarity(z, other) / 0.5 for other in others]
    first = torch.zeros(len(y), dtype=torch.long)
    return functional.cross_entropy(out, y) + 2 * functional.cross_entropy(
        torch.stack(similar, 1), first
    )


def fedlc(z: Tensor, out: Tensor, y: Tensor, others: list[Tensor]) -> Tensor:
    """Equation 8, with tau 2: log(1 + the sum over the other classes), without those that are not there."""
    margins = [2 * n**-0.25 for n in COUNTED[:2]]
    found = out.new_zeros(())
    for row, label in zip(out, y.tolist(), strict=True):
        other = 1 - label
        found += torch.log1p(((row[other] - margins[other]) - (row[label] - margins[label])).exp())
    return found / len(y)


LOSSES = {**GUIDED_LOSSES, "moon": MOON}
TWINS = {"moon": (moon, [2.0, 0.5]), "fedlc": (fedlc, [2.0])}


def placed(theta: Theta, layout: Layout) -> nn.Sequential:
    model = build()
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    for name, values in layout.views(theta).items():
        held[name].data.copy_(torch.from_numpy(values.copy()))
    return model.double()


def twin(name: str, theta: Theta, others: list[Theta], layout: Layout) -> Theta:
    """theta after all steps on the whole batch."""
    model, x, y = placed(theta, layout), torch.from_numpy(data().inputs).double(), data().targets
    seen = [copy.deepcopy(placed(other, layout)).eval()[:-1](x).detach() for other in others]
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        z = model.train()[:-1](x)
        loss = TWINS[name][0](z, model[-1](z), torch.from_numpy(y), seen)
        torch.autograd.backward(loss)
        optimizer.step()
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return layout.flatten({t.name: held[t.name].detach().float().numpy() for t in layout.tensors})


@pytest.mark.parametrize("name", TWINS)
def test_every_trainer_is_the_twin(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(GUIDED_LOSSES, name, LOSSES[name])
    (tmp_path / "guided_model.py").write_text(CODE)
    loss, model = LOSSES[name], build()
    export(
        model, torch.randn(B, 1, 6, 6), batch_size=B, name="g", num_classes=C,
        folder=tmp_path / "g", guided=loss,
    )  # fmt: skip
    bundle, theta = load(tmp_path / "g")
    rng, layout = np.random.default_rng(1), bundle.manifest.layout
    others = [theta * rng.uniform(0.5, 1.5, theta.size).astype(np.float32) for _ in range(2)]
    constants = {CONSTANTS: np.array(TWINS[name][1], np.float32)}
    arrays = constants if loss.guide.constants else {}
    if loss.guide.counts:
        arrays[COUNTS] = np.array(COUNTED, np.float32)
    models: dict[str, Theta] = dict(zip(loss.guide.models, others, strict=False))
    training = Training(local_epochs=STEPS, learning_rate=RATE)
    request = TrainRequest(theta, training, 1, guidance=Guidance(models, arrays))
    code = UserCode(tmp_path, "guided_model:build")
    found = [
        open_trainer(bundle, backend, 1, code).train(request, data(), lambda: False).theta
        for backend in (ONNXRUNTIME, TORCH)
    ]
    objective = CLASSIFICATION._replace(guided=loss)
    problem = TrainingProblem(model, objective, B, TensorSpec("float32", (1, 6, 6)))
    (emulated,) = AutogradTrainer(problem, "fp32", torch.device("cpu")).train(
        [Task(request, data())]
    )
    assert not isinstance(emulated, Exception)
    expected = twin(name, theta, others, layout)
    for one in (*found, emulated.theta):
        np.testing.assert_allclose(one, expected, rtol=0, atol=2e-5)
    plain = TrainRequest(theta, training, 1)
    moved = open_trainer(bundle, ONNXRUNTIME, 1).train(plain, data(), lambda: False).theta
    assert np.abs(moved - expected).max() > 1e-3


def guided_bundle(device: Harness, guide: Guide | None) -> bundles.BundleManifest:
    manifest = bundles.unpack(device.served[device.bundle.transfer]).manifest
    return msgspec.structs.replace(manifest, guide=guide)


def test_a_device_guides_by_its_last_model_and_its_class_counts(tmp_path: Path) -> None:
    device, guide = Harness(tmp_path), Guide("mine", ("start", "previous"), 2, counts=True)
    own, constants = theta_of(50), np.array([1.5, 2.5], "<f4").tobytes()
    order = device.order(1, loss="mine", arrays={CONSTANTS: constants})
    blobs = device.stock()
    for kept, previous in ((Kept(blobs.write(own.tobytes())), own), (Kept(), theta_of(1))):
        prepared = prepare(Job(order, kept), device.place(), guided_bundle(device, guide))
        training = prepared.local_training
        next(training)  # evaluates the start
        asked = training.send(Metrics(0.5, 0.5, 1))
        assert isinstance(asked, TrainRequest) and asked.guidance is not None
        np.testing.assert_array_equal(asked.guidance.models["start"], theta_of(1))
        np.testing.assert_array_equal(asked.guidance.models["previous"], previous)
        np.testing.assert_array_equal(asked.guidance.arrays[CONSTANTS], [1.5, 2.5])
        labels = prepared.train.targets
        expected = [np.sum(labels == c) for c in range(prepared.manifest.num_classes)]
        np.testing.assert_array_equal(asked.guidance.arrays[COUNTS], expected)


@pytest.mark.parametrize(
    ("work", "guide", "message"),
    [
        (Work(loss="moon"), None, "work.loss: 'moon', but the bundle has no guided loss"),
        (Work(loss="moon"), Guide("fedlc"), "'moon', but the bundle has 'fedlc': export it"),
        (Work(loss="moon"), MOON.guide, "work.arrays.constants: 0 numbers, expected 2 for 'moon'"),
        (Work(loss="moon", arrays={CONSTANTS: bytes(12)}), MOON.guide, "3 numbers, expected 2"),
        (
            Work(loss="moon", own_model=OwnModel(mix=0.5)),
            MOON.guide,
            "cannot be combined with a mixture",
        ),
    ],
)
def test_what_a_bundle_cannot_do_is_declined(work: Work, guide: Guide | None, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        check_guided(work, guide)


def test_a_loss_of_ones_own_is_a_function_that_returns_one(tmp_path: Path) -> None:
    (tmp_path / "own_guided.py").write_text(
        "from sedge_edge.backends.guided import GuidedLoss\n"
        "from sedge_protocol.wire.objective import Guide\n"
        "def loss():\n    return GuidedLoss(Guide('x'), lambda own, now, y, seen: own)\n"
        "def other():\n    return 1\n"
    )
    made = guided_loss("own_guided:loss", tmp_path, "--guided")
    assert made is not None and made.guide.name == "own_guided:loss"
    assert guided_loss("", tmp_path, "--guided") is None
    for name in ("mone", "own_guided:other", "own_guided:none"):
        with pytest.raises(ConfigError, match="--guided"):
            guided_loss(name, tmp_path, "--guided")
