"""A run that begins with another one's model, or a file's: exactly that, or refused by tensor."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from tests.cloud.contexts import a_layout
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, make_bundle, random_theta

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import BroadcastConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_protocol.errors import ConfigError, DataError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order

OBP = RunConfig(strategy="fedobp", num_rounds=1, evaluate=False, options={"quantile": 0.9})


def model_of(cloud: Cloud, name: str) -> Theta:
    row = next(row for row in cloud.store.runs() if row.run == name)
    return RunStore(cloud.store).context(Run(row, cloud.store)).theta


def trained(folder: Path, config: RunConfig = OBP) -> Cloud:
    """A coordinator whose run has had its one round."""
    cloud = Cloud(folder, config)
    cloud.hello()
    cloud.send("a", "b")
    cloud.poll()
    assert cloud.run_row().status == "finished"
    return cloud


@pytest.mark.parametrize("broadcast", [BroadcastConfig(), BroadcastConfig(fraction=1.0)])
def test_another_runs_model_is_taken_exactly(tmp_path: Path, broadcast: BroadcastConfig) -> None:
    """Also where the new run's broadcast is on a grid: what was learned is not rounded away."""
    cloud = trained(tmp_path)
    config = msgspec.structs.replace(CONFIG, broadcast=broadcast)
    start_run(cloud.store, "second", cloud.bundle, config, source=RUN)
    assert model_of(cloud, "second").tobytes() == model_of(cloud, RUN).tobytes()


def test_the_devices_own_models_come_along(tmp_path: Path) -> None:
    """The first order of the new run has each device's personal parameters in it already."""
    cloud = trained(tmp_path)
    start_run(cloud.store, "second", cloud.bundle, OBP, source=RUN)
    start_run(cloud.store, "fresh", cloud.bundle, OBP)
    run_store = RunStore(cloud.store)
    runs = {row.run: Run(row, cloud.store) for row in cloud.store.runs()}
    for device in "ab":
        one, other = (run_store.client_model(runs[n], device).trained for n in (RUN, "second"))
        assert one is not None and other is not None and one.tobytes() == other.tobytes()
    cloud.come_back()
    for device in "ab":
        orders = {order.run: order for order in cloud.messages(device, Order)}
        assert orders["second"].patch_hash and not orders["fresh"].patch_hash


Tensors = dict[str, NDArray[np.generic]]
GOOD: Tensors = {**LAYOUT.views(random_theta(9))}
BIAS, WEIGHT = GOOD["head.bias"], GOOD["body.weight"]
WRONG: dict[str, tuple[Tensors, str]] = {
    "missing": ({"body.weight": WEIGHT}, "'head.bias' is missing"),
    "shape": (
        GOOD | {"body.weight": WEIGHT[:, :-1]},
        r"'body.weight' is float32 \(100, 118\) there and float32 \(100, 119\) in the bundle",
    ),
    "type": (GOOD | {"head.bias": BIAS.astype(np.float64)}, "'head.bias' is float64"),
    "value": (GOOD | {"head.bias": np.full_like(BIAS, np.nan)}, "'head.bias' holds NaN or inf"),
    "unknown": (GOOD | {"tail.bias": BIAS}, "the bundle has no 'tail.bias'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_file_with_other_tensors_is_refused_by_the_first(tmp_path: Path, case: str) -> None:
    cloud, (tensors, said) = Cloud(tmp_path, config=None), WRONG[case]
    source = str(tmp_path / "model.npz")
    np.savez(source, **tensors)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=rf"--from: found .*model\.npz.*{said}"):
        start_run(cloud.store, "run", cloud.bundle, CONFIG, source=source)
    assert cloud.store.runs() == []


def test_a_run_of_another_layout_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    layout = a_layout({"body.weight": (100, 119), "head.bias": (99,)})
    other = make_bundle(tmp_path / "other", layout)
    with pytest.raises(ConfigError, match=r"--from: found 'run', .*'head.bias' is float32 \(100"):
        start_run(cloud.store, "second", other, CONFIG, source=RUN)
    with pytest.raises(ConfigError, match="run: found 'none', expected the name of a run"):
        start_run(cloud.store, "second", other, CONFIG, source="none")
    (tmp_path / "text.npz").write_text("1,2")
    with pytest.raises(DataError, match=r"text\.npz"):
        start_run(cloud.store, "second", other, CONFIG, source=str(tmp_path / "text.npz"))
    assert [row.run for row in cloud.store.runs()] == [RUN]
