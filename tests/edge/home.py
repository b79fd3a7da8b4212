"""A device's folder as ``sedge-cloud device add`` leaves it, with data and, if wanted, a personal model."""

from pathlib import Path

import numpy as np
import torch

from sedge_edge.jobs.job import Kept
from sedge_edge.rounds.run_state import RunState
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_export import export
from sedge_export.models import mlp
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta
from sedge_protocol.wire import bundle as bundles

# Nobody listens on port 1 of the loopback interface.
DEAD_URL = "mqtt://127.0.0.1:1"

EDGE_TOML = """\
device = "pi-1"
fleet = "home"
secret_file = "secret"
state_dir = "state"
[broker]
url = "{url}"
[data]
train = "train.npz"
"""


def make_home(folder: Path, url: str = DEAD_URL) -> Path:
    """A device with 20 examples that has never run; the path of its edge.toml."""
    folder.mkdir(parents=True, exist_ok=True)
    secret = folder / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    rng = np.random.default_rng(0)
    np.savez(folder / "train.npz", x=rng.normal(size=(20, 6)), y=rng.integers(0, 3, 20))
    config = folder / "edge.toml"
    config.write_text(EDGE_TOML.format(url=url))
    return config


def make_bundle(folder: Path) -> tuple[bytes, Theta]:
    """A packed bundle of a small network for rows of six numbers, and its first theta (n,)."""
    torch.manual_seed(0)
    export(mlp(6, 4, 3), torch.randn(4, 6), batch_size=4, name="tiny", num_classes=3, folder=folder)
    bundle, theta = bundles.load(folder)
    return bundles.pack(bundle), theta


def put_models(config: Path, bundle: bytes, models: dict[str, Theta | None]) -> None:
    """Let the device have these runs, oldest first, with a personal model each, or without."""
    state_dir = config.parent / "state"
    blobs = BlobFolder(state_dir, 0)
    name = blobs.write(bundle)
    runs: dict[str, RunState] = {}
    for run, theta in models.items():
        model = None if theta is None else blobs.write(theta.astype("<f4").tobytes())
        runs[run] = RunState(name, bytes(32), 3, Kept(model))
    Journal(state_dir / "journal", AgentState, SCHEMA).commit(AgentState(incarnation=12, runs=runs))
