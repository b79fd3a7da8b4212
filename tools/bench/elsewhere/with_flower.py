"""Runs federated averaging with Flower's simulation on Ray; frameworks.py runs it in Flower's environment.

    python tools/bench/elsewhere/with_flower.py DATA.npz [--rounds 4] [--steps 8] [--cpus 2]

The file contains x (d, N, 1, 28, 28) and y (d, N), one row for each device. As in Flower's own examples, a
model is sent as torch's state_dict; each processor runs one client at a time, with one torch thread. All
devices train in every round; the same number of rounds is then run without any training step. The last line
is JSON: the seconds of each round with training and of each round without.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

# Imported by name, because Flower is missing where this repository is type-checked.
app = import_module("flwr.app")
ClientApp: Any = import_module("flwr.clientapp").ClientApp
ServerApp: Any = import_module("flwr.serverapp").ServerApp
FedAvg: Any = import_module("flwr.serverapp.strategy").FedAvg
run_simulation: Callable[..., None] = import_module("flwr.simulation").run_simulation

BATCH_SIZE, LEARNING_RATE = 32, 0.01


class AvgCNN(nn.Module):
    """A copy of sedge_export's reference model (582,026 parameters). sedge_export is not installed here."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.classifier = nn.Linear(1024, 512), nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits (B, 10) of images (B, 1, 28, 28)."""
        x = torch.max_pool2d(torch.relu(self.conv1(x)), 2)
        x = torch.max_pool2d(torch.relu(self.conv2(x)), 2)
        logits: Tensor = self.classifier(torch.relu(self.fc1(x.flatten(1))))
        return logits


@cache
def data(path: str) -> tuple[Tensor, Tensor]:
    """Load all devices' images and labels, once per process."""
    with np.load(path, allow_pickle=False) as file:
        return torch.from_numpy(file["x"]), torch.from_numpy(file["y"])


def train(message: Any, context: Any) -> Any:
    """Train one client for a round."""
    torch.set_num_threads(1)
    config = message.content["config"]
    images, labels = data(str(config["data"]))
    device = int(context.node_config["partition-id"])
    x, y = images[device], labels[device]
    model = AvgCNN()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    for batch in torch.split(torch.randperm(len(y)), BATCH_SIZE)[: int(config["steps"])]:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    content = {
        "arrays": app.ArrayRecord(model.state_dict()),
        "metrics": app.MetricRecord({"num-examples": len(y)}),
    }
    return app.Message(content=app.RecordDict(content), reply_to=message)


def client_app() -> Any:
    """Create the client app."""
    client = ClientApp()
    client.train()(train)
    return client


def server_app(path: str, rounds: int, steps: int, found: dict[str, list[float]]) -> Any:
    """Create the server app, which runs the rounds and appends the time of each to ``found``."""
    server = ServerApp()

    def main(grid: Any, context: Any) -> None:
        arrays = app.ArrayRecord(AvgCNN().state_dict())
        for kind, count in (("rounds", steps), ("empty", 0)):
            ended: list[float] = []

            def note(number: int, arrays: Any, ended: list[float] = ended) -> None:
                ended.append(time.perf_counter())

            FedAvg(fraction_train=1.0, fraction_evaluate=0.0).start(
                grid=grid,
                initial_arrays=arrays,
                num_rounds=rounds,
                train_config=app.ConfigRecord({"data": path, "steps": count}),
                evaluate_fn=note,
            )
            found[kind] = np.diff(ended).tolist()

    server.main()(main)
    return server


def main() -> None:
    """Run the simulation and print the seconds."""
    parser = argparse.ArgumentParser(description="Federated averaging by Flower's simulation.")
    parser.add_argument("data")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--cpus", type=int, default=2)
    options = parser.parse_args()
    devices = len(data(options.data)[1])
    found: dict[str, list[float]] = {}
    # Flower refers to clients by module name in Ray's processes, where __main__ is another module.
    clients = import_module("with_flower").client_app()
    run_simulation(
        server_app=server_app(options.data, options.rounds, options.steps, found),
        client_app=clients,
        num_supernodes=devices,
        backend_config={
            "init_args": {"num_cpus": options.cpus, "logging_level": "ERROR"},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
