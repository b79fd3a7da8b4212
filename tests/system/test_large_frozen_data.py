"""Frozen data larger than a bundle may be, to agents that are killed in the middle."""

import sys
from contextlib import closing

import pytest
import torch
from tests.system.conftest import run_text
from tests.system.faultproxy import FaultProxy
from tools.bench.parts.blob_server import serving
from tools.bench.parts.real_fleet import RealFleet, wait_until
from torch import Tensor, nn

from sedge_cloud.rounds.accounts import read_sums
from sedge_cloud.store.opening import open_folder
from sedge_export.exporter import export
from sedge_protocol.wire.bundle import FROZEN_NAME, MAX_BUNDLE_BYTES

pytestmark = pytest.mark.fleet

ROWS, WIDTH = 20_480, 1024  # 80 MiB, coded 70 MB
RUN = run_text("fedavg", 1, 2, "deadline_s = 300\n[training]\nlearning_rate = 0.5\n")


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
    """One device fetches them over MQTT, and one over HTTP; both are killed in the middle."""
    bundle = fleet.folder / "bundle"
    sample = torch.rand(16, 1, 8, 8)
    manifest = export(Looked(), sample, batch_size=16, name="t", num_classes=10, folder=bundle)
    assert manifest.frozen is not None
    size = manifest.frozen.blob.size
    assert MAX_BUNDLE_BYTES < size < 80 * 2**20
    half = size // 2 // manifest.frozen.blob.chunk_bytes * manifest.frozen.blob.chunk_bytes
    name = manifest.frozen.blob.sha256.hex()

    def arrived(device: str) -> int:
        part = fleet.folder / device / "state" / "parts" / f"fleet-{name}.part"
        return 512 * part.stat().st_blocks if part.exists() else 0

    with serving("stalls", folder=fleet.folder / "state" / "blobs") as server:
        config = fleet.folder / "cloud.toml"
        config.write_text(config.read_text() + f'[blobs]\npublic = "{server.url}"\n')
        fleet.start_cloud()
        for device, url, more in (
            ("pi-1", proxy.url, '[download]\nhttp = "never"\n'),
            ("pi-2", fleet.url, '[download]\nhosts = ["127.0.0.1"]\n'),
        ):
            fleet.add_device(device, 0, url)
            edge = fleet.folder / device / "edge.toml"
            edge.write_text(edge.read_text() + more)
            fleet.start_agent(device)
        proxy.most = 2 * size // 3  # however late the kill comes, not all has arrived
        fleet.start_run(bundle, RUN)
        wait_until(lambda: arrived("pi-2") == half, 60, "half is here over HTTP")
        fleet.kill("pi-2")
        wait_until(lambda: arrived("pi-1") > size // 3, 60, "a third is here over MQTT")
        fleet.kill("pi-1")
        proxy.cut()
        held = arrived("pi-1")
        assert held < size
        proxy.most = sys.maxsize
        server.manner = "ranges"
        for device in ("pi-1", "pi-2"):
            fleet.start_agent(device)
        wait_until(fleet.finished, 120, "the run ends")
        assert server.asked == [f"bytes=0-{size - 1}", f"bytes={half}-{size - 1}"]
    assert [len(summary.devices) for summary in fleet.rounds()] == [2, 2]
    for device in ("pi-1", "pi-2"):
        blob = fleet.folder / device / "state" / "blobs" / name
        assert blob.read_bytes() == (bundle / FROZEN_NAME).read_bytes()
    with closing(open_folder(fleet.folder / "state")) as store:
        over_mqtt, over_http = store.traffic("run", 1)
        sums = read_sums(store.sums("run"))
    # Chunks that were on their way when the link was cut come twice; what was on the disk does not.
    assert size < over_mqtt.down < 2 * size - held // 2
    assert over_http.down < 100_000
    assert sums.http == size - half  # what came before the kill is in no report
