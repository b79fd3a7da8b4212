"""A fleet whose devices have models of different width, from the file to the report."""

from pathlib import Path

import pytest
from tests.fleet import begin_emulation

from sedge_emulate.result import StrategyResult, read_json
from sedge_protocol.wire.bundle import load

pytestmark = pytest.mark.fleet

FLEET = """\
devices = 6
workers = 1
link = "{link}"
[data]
dataset = "digits"
examples = 400
alpha = 1.0
[model]
batch_size = 16
widths = [0, 0.5, 0.75]
[trainer]
backend = "onnx"
[rounds]
num_rounds = 2
[codec]
values = "fp32"
fraction = 1
[training]
local_epochs = {epochs}
learning_rate = 0.05
{more}
[[strategies]]
name = "sedge_cloud.strategies.heterofl:HeteroFL"
label = "heterofl"
options = {{ {options} }}
"""


CLASSES = """\
[[classes]]
name = "large"
memory_mb = 4000
[[classes]]
name = "small"
memory_mb = 100
"""


def played(
    folder: Path, link: str, options: str, more: str = "", epochs: int = 1
) -> StrategyResult:
    text = FLEET.format(link=link, options=options, more=more, epochs=epochs)
    said, _ = (process := begin_emulation(folder, text)).communicate(timeout=240)
    assert process.returncode == 0, said
    (strategy,) = read_json(folder / "out" / "result.json").strategies
    return strategy


def test_each_class_gets_the_model_that_it_has_room_for(tmp_path: Path) -> None:
    """What devices send is as long as their models."""
    result = played(tmp_path, "memory", "memory_mb = [2000, 1000]", CLASSES)
    whole, narrow = (load(tmp_path / "out" / n)[1].size for n in ("bundle", "bundle-0.75"))
    large, small = (
        [d.payload_up for d in result.devices if d.class_name == name]
        for name in ("large", "small")
    )
    assert len(large) >= 2 and len(small) >= 2
    assert max(small) / min(large) == pytest.approx(narrow / whole, abs=0.1)


def test_a_narrower_model_takes_less_virtual_time(tmp_path: Path) -> None:
    """As much less as it has fewer parameters."""
    rounds_s: list[float] = []
    for name, memory_mb in (("large", 4000), ("small", 100)):
        one = f'[[classes]]\nname = "{name}"\nmemory_mb = {memory_mb}\nstep_ms = 1000\n'
        result = played(tmp_path / name, "memory", "memory_mb = [2000, 1000]", one, 10)
        rounds_s.append(sum(row.closed_s - row.opened_s for row in result.rounds))
    out = tmp_path / "large" / "out"
    whole, narrow = (load(out / name)[1].size for name in ("bundle", "bundle-0.75"))
    assert rounds_s[1] / rounds_s[0] == pytest.approx(narrow / whole, rel=0.1)


def test_the_global_model_is_the_same_over_any_link(tmp_path: Path) -> None:
    """Virtual devices on a host's disk, real agents on their own, each with what its width needs."""
    models: list[bytes] = []
    for link in ("memory", "broker"):
        played(tmp_path / link, link, "dropped = [0, 0.5, 0.75]")
        models.append((tmp_path / link / "out" / "models" / "heterofl.bin").read_bytes())
    assert len(models[0]) == 4 * load(tmp_path / "memory" / "out" / "bundle")[1].size
    assert models[0] == models[1]
