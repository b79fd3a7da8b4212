"""Federated averaging in pfl-research's simulation; gpu/pfl_shape.py runs this where pfl is installed.

    python -m tools.bench.elsewhere.with_pfl USERS COHORT ROUNDS [--device cuda]

One process, as benchmarks/image_classification of pfl-research runs it on one GPU: the users' images are on
the device, and users are evaluated in the first round only. The last line is JSON: the seconds of each
round.
"""

import argparse
import json
import os
import time
from importlib import import_module
from itertools import pairwise
from typing import Any

import torch
from tools.bench.gpu import simple_cnn
from torch import Tensor, nn


def main() -> None:
    """Run the simulation and print the seconds."""
    parser = argparse.ArgumentParser(description="Federated averaging by pfl-research.")
    for name in ("users", "cohort", "rounds"):
        parser.add_argument(name, type=int)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    os.environ["PFL_PYTORCH_DEVICE"] = options.device  # pfl-research reads it when it is imported
    os.environ[simple_cnn.USERS] = str(options.users)
    ended = rounds(options.users, options.cohort, options.rounds, options.device)
    print(json.dumps({"rounds": [b - a for a, b in pairwise(ended)]}))


def rounds(users: int, cohort: int, count: int, device: str) -> list[float]:
    """The time at which the simulation began, and those at which each round ended."""
    pytorch, hyper = import_module("pfl.model.pytorch"), import_module("pfl.hyperparam")
    base, averaging = (
        import_module(f"pfl.algorithm.{name}") for name in ("base", "federated_averaging")
    )
    torch.manual_seed(0)
    module = with_loss(simple_cnn.build()).to(device)
    central = torch.optim.SGD(module.parameters(), 1.0)
    model = pytorch.PyTorchModel(module, torch.optim.SGD, central)
    data = dataset(users, device)
    weighting = import_module("pfl.aggregate.weighting").WeightByUser()
    backend = import_module("pfl.aggregate.simulate").SimulatedBackend(data, data, [weighting])
    ended: list[float] = []

    class Clock(import_module("pfl.callback.base").TrainingProcessCallback):  # type: ignore[misc]
        def on_train_begin(self, *, model: Any) -> Any:
            self._note()
            return super().on_train_begin(model=model)

        def after_central_iteration(self, *given: Any, **named: Any) -> Any:
            self._note()
            return super().after_central_iteration(*given, **named)

        def _note(self) -> None:
            if device != "cpu":
                torch.cuda.synchronize()
            ended.append(time.perf_counter())

    averaging.FederatedAveraging().run(
        base.NNAlgorithmParams(count, count, cohort, 0),
        backend,
        model,
        hyper.NNTrainHyperParams(
            local_num_epochs=1,
            local_learning_rate=simple_cnn.LEARNING_RATE,
            local_batch_size=simple_cnn.BATCH_SIZE,
        ),
        hyper.NNEvalHyperParams(local_batch_size=simple_cnn.IMAGES),
        [Clock()],
        send_metrics_to_platform=False,
    )
    return ended


def dataset(users: int, device: str) -> Any:
    """Every user's images, drawn at random for each cohort."""
    found, sampling = import_module("pfl.data"), import_module("pfl.data.sampling")
    x, y = (torch.from_numpy(array).to(device) for array in simple_cnn.load())
    parts = [slice(u * simple_cnn.IMAGES, (u + 1) * simple_cnn.IMAGES) for u in range(users)]
    images = {user: (x[part], y[part]) for user, part in enumerate(parts)}
    sampler = sampling.get_user_sampler("random", range(users))
    return found.FederatedDataset.from_slices(images, sampler)


def with_loss(module: nn.Module) -> nn.Module:
    """The module with the two functions that pfl-research requires."""
    weighted = import_module("pfl.metrics").Weighted

    def loss(x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        module.train(not eval)
        return nn.functional.cross_entropy(module(x), y)

    @torch.no_grad()
    def metrics(x: Tensor, y: Tensor, eval: bool = True) -> dict[str, Any]:
        module.train(not eval)
        logits = module(x)
        found = nn.functional.cross_entropy(logits, y, reduction="sum")
        return {"loss": weighted(found.item(), len(y))}

    vars(module)["loss"], vars(module)["metrics"] = loss, metrics
    return module


if __name__ == "__main__":
    main()
