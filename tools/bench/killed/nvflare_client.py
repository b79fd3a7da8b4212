"""The NVFlare client of the benchmark "killed". It takes two seconds per round."""

import time
from importlib import import_module
from typing import Any

# Imported by name, because NVFlare is missing where this repository is type-checked.
flare: Any = import_module("nvflare.client")

flare.init()
while flare.is_running():
    model = flare.receive()
    time.sleep(2)
    grown = {name: value + 1 for name, value in model.params.items()}
    flare.send(flare.FLModel(params=grown, meta={"NUM_STEPS_CURRENT_ROUND": 1}))
