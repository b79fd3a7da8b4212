"""Measures the agent during and after a job; agent_memory.py runs it where only the agent is installed.

    python tools/bench/elsewhere/agent.py BUNDLE BACKEND EPOCHS EXAMPLES

Prints one line of JSON: time and memory.
"""

import importlib
import json
import sys
import time
from pathlib import Path

FORBIDDEN = ("torch", "executorch", "onnx", "PIL", "scipy")


def memory() -> dict[str, float]:
    """Return peak and current memory of this process, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    names = {"peak": "VmHWM", "now": "VmRSS"}
    return {name: int(fields[field].split()[0]) / 1024 for name, field in names.items()}


def train(folder: Path, backend: str, epochs: int, num_examples: int) -> dict[str, object]:
    """Load everything, train, and return time and memory. This runs inside the new environment."""
    row: dict[str, object] = {"interpreter_mib": memory()["now"]}
    # Imported one by one, because the memory that the imports take is measured as well.
    import numpy as np

    from sedge_edge.backends import open_trainer
    from sedge_edge.training.examples import Examples
    from sedge_edge.training.trainer import TrainRequest
    from sedge_protocol.host.memory_limit import release_memory
    from sedge_protocol.wire.bundle import load
    from sedge_protocol.wire.training import Training

    importlib.import_module("sedge_edge.__main__")  # everything that an agent's process loads
    row["agent_mib"] = memory()["now"]
    bundle, theta = load(folder)
    manifest = bundle.manifest
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((num_examples, *manifest.input.shape)).astype(np.float32)
    examples = Examples(inputs, rng.integers(0, manifest.num_classes, num_examples, np.int64))
    row["data_mib"] = (inputs.nbytes + theta.nbytes) / 2**20
    trainer = open_trainer(bundle, backend, 1)
    row["opened_mib"] = memory()["now"]
    trainer.evaluate(theta, examples)
    started = time.perf_counter()
    trained = trainer.train(TrainRequest(theta, Training(epochs), 0), examples, lambda: False)
    row["ms_per_step"] = (time.perf_counter() - started) * 1e3 / trained.steps
    trainer.evaluate(trained.theta, examples)
    row |= {"steps": trained.steps, "parameters": theta.size, "batch_size": manifest.batch_size}
    row |= {"peak_mib": memory()["peak"], "after_mib": memory()["now"]}
    del trained
    release_memory()
    row["idle_mib"] = memory()["now"]
    loaded = [name for name in FORBIDDEN if name in sys.modules]
    if loaded:
        raise SystemExit(f"the agent loaded {', '.join(loaded)}")
    return row


if __name__ == "__main__":
    bundle, backend, epochs, examples = sys.argv[1:]
    print(json.dumps(train(Path(bundle), backend, int(epochs), int(examples))))
