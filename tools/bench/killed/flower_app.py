"""The Flower app of the benchmark "killed": FedAvg of an array. A client takes two seconds per round."""

import time
from importlib import import_module
from typing import Any

import numpy as np

# Imported by name, because Flower is missing where this repository is type-checked.
app = import_module("flwr.app")
# Not annotated, because Flower looks for plain assignments of these names.
client = import_module("flwr.clientapp").ClientApp()
server = import_module("flwr.serverapp").ServerApp()
FedAvg: Any = import_module("flwr.serverapp.strategy").FedAvg


@client.train()  # type: ignore[untyped-decorator]
def train(message: Any, context: Any) -> Any:
    """Train one client for a round."""
    arrays = message.content["arrays"].to_numpy_ndarrays()
    print(f"trains in round {message.content['config']['server-round']}", flush=True)
    time.sleep(2)
    content = {
        "arrays": app.ArrayRecord([array + 1 for array in arrays]),
        "metrics": app.MetricRecord({"num-examples": 1}),
    }
    return app.Message(content=app.RecordDict(content), reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def main(grid: Any, context: Any) -> None:
    """Run all rounds."""
    FedAvg(fraction_evaluate=0.0, min_train_nodes=3, min_available_nodes=3).start(
        grid=grid,
        initial_arrays=app.ArrayRecord([np.zeros(1000, np.float32)]),
        num_rounds=int(context.run_config["rounds"]),
    )
