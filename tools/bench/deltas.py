"""Real deltas for the codec benchmark: models of FedAvg on Fashion-MNIST before and after training.

Ten devices have 512 images each, split by Dir(.1). They train avgcnn for 40 rounds, with five epochs of SGD
per round, learning rate .01, batches of 32 and one thread. The file has float32 vectors (n,):

    global_<round>            the model that every device starts the round from, and the final one
    local_<device>_<round>    the model that this device ends it with: devices 0 to 2, first rounds only

This training uses no codec, so its deltas favour none.
"""

import time
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sedge_emulate.data.datasets import Dataset, load
from sedge_emulate.data.split import dirichlet
from sedge_export.models import avgcnn
from sedge_protocol.layout import Theta

DEVICES, EXAMPLES, ALPHA = 10, 512, 0.1
BATCH_SIZE, LEARNING_RATE = 32, 0.01
KEPT_DEVICES, KEPT_ROUNDS = 3, 12
ROUNDS, EPOCHS, SEED = 40, 5, 0
Share = tuple[Tensor, Tensor]  # images (512, 1, 28, 28) and labels (512,)


def write_deltas(path: Path) -> None:
    """Train, and write the vectors to ``path``."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    dataset = load("fashion-mnist")
    shares = _shares(dataset, rng)
    model = avgcnn().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shared = _theta(model)  # (n,)
    kept: dict[str, Theta] = {}
    for number in range(1, ROUNDS + 1):
        start = time.perf_counter()
        trained: list[Theta] = []
        for share in shares:
            _assign(model, shared)
            _train(model, share, rng)
            trained.append(_theta(model))
        kept[f"global_{number}"] = shared
        for device in range(KEPT_DEVICES if number <= KEPT_ROUNDS else 0):
            kept[f"local_{device}_{number}"] = trained[device]
        shared = np.stack(trained).mean(0, dtype=np.float64).astype(np.float32)
        _assign(model, shared)
        accuracy = _accuracy(model, dataset)
        print(
            f"round {number}: accuracy {accuracy:.3f}, {time.perf_counter() - start:.1f} s",
            flush=True,
        )
    kept[f"global_{ROUNDS + 1}"] = shared
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, allow_pickle=False, **kept)


def _shares(dataset: Dataset, rng: np.random.Generator) -> list[Share]:
    indices = dirichlet(dataset.labels, DEVICES, ALPHA, rng, min_examples=EXAMPLES)
    chosen = [rng.choice(share, EXAMPLES, replace=False) for share in indices]
    return [_images(dataset, share) for share in chosen]


def _images(dataset: Dataset, indices: NDArray[np.int64]) -> Share:
    images = torch.from_numpy(dataset.inputs[indices].astype(np.float32))
    return (
        images.contiguous(memory_format=torch.channels_last),
        torch.from_numpy(dataset.targets[indices]),
    )


def _train(model: nn.Module, share: Share, rng: np.random.Generator) -> None:
    images, labels = share
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, fused=True)
    for _ in range(EPOCHS):
        order = torch.from_numpy(rng.permutation(EXAMPLES))
        for batch in torch.split(order, BATCH_SIZE):
            optimizer.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def _accuracy(model: nn.Module, dataset: Dataset) -> float:
    """Return the accuracy on the authors' last 2,000 test images, on some of which devices train."""
    images, labels = _images(dataset, np.arange(dataset.targets.size - 2000, dataset.targets.size))
    with torch.no_grad():
        return float((model(images).argmax(1) == labels).float().mean())


def _theta(model: nn.Module) -> Theta:
    """Return the parameters as one vector (n,), in model order."""
    flat: Theta = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy()
    return flat


def _assign(model: nn.Module, theta: Theta) -> None:
    parts = torch.split(torch.from_numpy(theta), [p.numel() for p in model.parameters()])
    with torch.no_grad():
        for parameter, part in zip(model.parameters(), parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
