"""Frozen data larger than a bundle may be, to an agent that is killed in the middle, over Mosquitto."""

from pathlib import Path

import pytest
import torch
from tests.system.faultproxy import FaultProxy
from tests.system.harness import RealFleet, wait_until
from torch import Tensor, nn

from sedge_cloud.store.opening import open_folder
from sedge_export.exporter import export
from sedge_protocol.wire.bundle import FROZEN_NAME, MAX_BUNDLE_BYTES

pytestmark = pytest.mark.fleet

ROWS, WIDTH = 20_480, 1024  # 80 MiB
RUN = """
strategy = "fedavg"
num_rounds = 1
min_train_devices = 1
min_available_devices = 1
deadline_s = 300
[training]
learning_rate = 0.5
"""


class Looked(nn.Module):
    """A large table that is not trained, looked up by pixels, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH).requires_grad_(False)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (B, 10) of images (B, 1, 8, 8)."""
        places = torch.arange(64) * 320 + (x.flatten(1).abs() * 100).long()
        found: Tensor = self.head(self.table(places).mean(1))
        return found


def test_80_mib_go_on_where_they_were(fleet: RealFleet, proxy: FaultProxy) -> None:
    bundle = fleet.folder / "bundle"
    sample = torch.rand(16, 1, 8, 8)
    manifest = export(Looked(), sample, batch_size=16, name="t", num_classes=10, folder=bundle)
    assert manifest.frozen is not None
    size = manifest.frozen.blob.size
    assert size == 80 * 2**20 > MAX_BUNDLE_BYTES
    fleet.start_cloud()
    fleet.add_device("pi-1", 0, proxy.url)
    fleet.start_agent("pi-1")
    fleet.start_run(bundle, RUN)
    name = manifest.frozen.blob.sha256.hex()
    part = Path(fleet.folder / "pi-1" / "state" / "parts" / f"fleet-{name}.part")

    def arrived() -> int:
        return 512 * part.stat().st_blocks if part.exists() else 0

    wait_until(lambda: arrived() > size // 3, 60, "a third of the frozen data is here")
    fleet.kill("pi-1")
    proxy.cut()
    held = arrived()
    assert held < size
    fleet.start_agent("pi-1")
    wait_until(fleet.finished, 120, "the run ends")
    assert [len(summary.devices) for summary in fleet.rounds()] == [1, 1]
    blob = fleet.folder / "pi-1" / "state" / "blobs" / name
    assert blob.read_bytes() == (bundle / FROZEN_NAME).read_bytes()
    store = open_folder(fleet.folder / "state")
    try:
        (row,) = store.traffic("run", 1)
    finally:
        store.close()
    # Chunks that were on their way when the link was cut come twice; what was on the disk does not.
    assert size < row.down < 2 * size - held // 2
