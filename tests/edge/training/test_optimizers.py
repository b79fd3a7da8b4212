"""Optimizers against torch.optim, which takes the same gradients."""

import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch
from msgspec import structs

from sedge_edge.training.optimizers import clip, optimizer
from sedge_protocol.layout import Theta
from sedge_protocol.wire.training import Training

N, STEPS, RATE = 40, 6, 0.05
Make = Callable[[list[torch.Tensor]], torch.optim.Optimizer]

PAIRS: list[tuple[Training, Make]] = [
    (Training(), lambda p: torch.optim.SGD(p, RATE)),
    (Training(momentum=0.8), lambda p: torch.optim.SGD(p, RATE, momentum=0.8)),
    (
        Training(momentum=0.8, nesterov=True, weight_decay=0.1),
        lambda p: torch.optim.SGD(p, RATE, momentum=0.8, nesterov=True, weight_decay=0.1),
    ),
    (Training(optimizer="adam"), lambda p: torch.optim.Adam(p, RATE)),
    (
        Training(optimizer="adam", beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.1),
        lambda p: torch.optim.Adam(p, RATE, betas=(0.5, 0.9), eps=1e-3, weight_decay=0.1),
    ),
    (
        Training(optimizer="adamw", weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, RATE, weight_decay=0.1),
    ),
]


def gradients() -> list[Theta]:
    rng = np.random.default_rng(0)
    return [rng.normal(size=N).astype(np.float32) * scale for scale in (1, 1e-4, 3, 0, 1e4, 1)]


@pytest.mark.parametrize("pair", range(len(PAIRS)))
@pytest.mark.parametrize("clip_norm", [0.0, 2.0])
def test_steps_are_those_of_torch(pair: int, clip_norm: float) -> None:
    training, make = PAIRS[pair]
    training = structs.replace(training, clip_norm=clip_norm)
    start = np.random.default_rng(1).normal(size=N).astype(np.float32)
    theta, parameter = start.copy(), torch.tensor(start, requires_grad=True)
    mine, torchs = optimizer(training, theta), make([parameter])
    for gradient in gradients():
        parameter.grad = torch.from_numpy(gradient.copy())
        if clip_norm:
            torch.nn.utils.clip_grad_norm_([parameter], clip_norm)
        torchs.step()
        mine.step(theta, gradient, RATE)
        np.testing.assert_allclose(theta, parameter.detach().numpy(), rtol=2e-6, atol=1e-6)
    assert theta.dtype == np.float32


@pytest.mark.parametrize("training", [training for training, _ in PAIRS])
def test_numpy_and_torch_take_the_same_steps(training: Training) -> None:
    """An emulator's models move as a device's, bit for bit."""
    training = structs.replace(training, clip_norm=2.0)
    theta = np.random.default_rng(1).normal(size=N).astype(np.float32)
    tensor = torch.from_numpy(theta.copy())
    numpys, torchs = optimizer(training, theta), optimizer(training, tensor, torch)  # type: ignore[arg-type]
    for gradient in gradients():
        torchs.step(tensor, torch.from_numpy(gradient.copy()), RATE)  # type: ignore[arg-type]
        numpys.step(theta, gradient, RATE)
    np.testing.assert_allclose(tensor.numpy(), theta, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("training", [training for training, _ in PAIRS])
def test_a_step_takes_one_more_vector_at_most(training: Training) -> None:
    theta, gradient = np.ones((2, 1_000_000), np.float32)
    moved = optimizer(structs.replace(training, clip_norm=2.0), theta)
    tracemalloc.start()
    try:
        moved.step(theta, gradient, RATE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.1 * theta.nbytes


def test_clipping_limits_each_row_and_leaves_short_ones() -> None:
    rows = np.stack([np.full(4, 10, np.float32), np.full(4, 0.1, np.float32)])
    clip(rows, 2.0)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), [2.0, 0.2], rtol=1e-6)
    assert rows[1].tobytes() == np.full(4, 0.1, np.float32).tobytes()
