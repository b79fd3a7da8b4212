"""A fleet of real processes whose devices run the same bundle in different runtimes."""

from pathlib import Path

import msgspec
import pytest
import torch
from tests.edge.backends.conftest import unpacked_wheel
from tests.system.harness import WITH_EXECUTORCH, RealFleet, wait_until

from sedge_cloud.store.database import Store
from sedge_export.export import export
from sedge_export.models import mlp
from sedge_protocol.wire.messages import Hello

pytestmark = pytest.mark.fleet

RUN = """\
strategy = "fedobp"
num_rounds = 3
options = { quantile = 0.99 }
[training]
local_epochs = 5
learning_rate = 0.01
optimizer = "adam"
clip_norm = 5.0
"""


@pytest.fixture(scope="module")
def two_runtimes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLP for the 8x8 digits, for both."""
    folder = tmp_path_factory.mktemp("bundle") / "both"
    torch.manual_seed(0)
    export(
        mlp(64, 32, 10), torch.randn(16, 1, 8, 8), batch_size=16, name="digits", num_classes=10,
        folder=folder, backends=("onnxruntime", "executorch"),
    )  # fmt: skip
    return folder


def test_onnxruntime_and_executorch_train_together(fleet: RealFleet, two_runtimes: Path) -> None:
    """With Adam, which the runtimes know nothing of."""
    fleet.start_cloud()
    for seed, (device, runtime) in enumerate((("pi-1", "onnxruntime"), ("pi-2", "executorch"))):
        fleet.add_device(device, seed)
        with (fleet.folder / device / "edge.toml").open("a") as config:
            config.write(f'\n[backend]\nname = "{runtime}"\n')
    fleet.start_agent("pi-1")
    fleet.start_agent("pi-2", script=WITH_EXECUTORCH.format(folder=str(unpacked_wheel())))
    fleet.start_run(two_runtimes, RUN)
    wait_until(fleet.finished, 120, "the run ends")
    assert [len(summary.devices) for summary in fleet.rounds()] == [2, 2, 2, 2]
    store = Store(fleet.folder / "state")
    hellos = [msgspec.msgpack.decode(row.hello or b"", type=Hello) for row in store.devices()]
    store.close()
    assert hellos[0].backends == ("onnxruntime",) and hellos[1].backends == ("executorch",)
    assert all(device.after > 0.8 for device in fleet.rounds()[-1].devices)
