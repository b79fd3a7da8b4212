"""What ``run export`` writes: the global model, the devices' own, and the history."""

import csv
from pathlib import Path

import numpy as np
import pytest
from tests.cloud.admin.test_cloud_models import model_of, trained
from tests.cloud.helper import LAYOUT, RUN, Cloud

from sedge_cloud.admin import model_export
from sedge_cloud.admin.model_export import export_device, export_global, export_history
from sedge_cloud.config import RunConfig
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.model_files import read_tensors
from sedge_protocol.layout import Theta


def theta_in(path: Path) -> Theta:
    tensors = read_tensors(path)
    return LAYOUT.flatten({name: values.astype(np.float32) for name, values in tensors.items()})


def test_the_global_model_and_each_devices_own(tmp_path: Path) -> None:
    cloud = trained(tmp_path)
    export_global(cloud.store, RUN, tmp_path / "global.npz")
    assert theta_in(tmp_path / "global.npz").tobytes() == model_of(cloud, RUN).tobytes()
    remarks = dict(model_export.export_devices(cloud.store, RUN, tmp_path / "own", ".npz"))
    assert remarks == {"a": "", "b": ""}
    run, run_store = Run(cloud.run_row(), cloud.store), RunStore(cloud.store)
    for device in "ab":
        expected = run_store.client_model(run, device).trained
        assert expected is not None
        assert theta_in(tmp_path / "own" / f"{device}.npz").tobytes() == expected.tobytes()
        assert expected.tobytes() != model_of(cloud, RUN).tobytes()


def test_what_stays_on_a_device_is_said(tmp_path: Path) -> None:
    for number, (strategy, said) in enumerate(
        {
            "fedper": "keeps head.bias to itself: the file holds the run's values instead",
            "local_only": "sends no model: the file holds its initial model",
            "ditto": "has a second model, which stays on the device",
            "blended": "predicts with a mean over its rounds, which stays on the device",
        }.items()
    ):
        folder = tmp_path / str(number)
        config = RunConfig(strategy=strategy, num_rounds=1, evaluate=False)
        cloud = Cloud(folder, config)
        codecs = ("own_model", "freeze", "phases", "optimizer", "blend")
        cloud.hello("a", "b", codecs=codecs)
        cloud.answer("a", "b")
        assert export_device(cloud.store, RUN, "a", folder / "a.npz").startswith(said), strategy


def test_the_history_has_a_line_for_each_closed_round(cloud: Cloud, tmp_path: Path) -> None:
    cloud.hello()
    cloud.answer("a", "b")
    export_history(cloud.store, RUN, tmp_path / "rounds.csv")
    with (tmp_path / "rounds.csv").open(newline="") as file:
        head, line = csv.reader(file)
    assert tuple(head) == model_export.COLUMNS
    found = dict(zip(head, line, strict=True))
    (summary,), traffic = cloud.summaries(), cloud.store.traffic(RUN, 1)
    assert (found["round"], found["task"], found["updates"]) == ("1", "train", "2")
    assert (float(found["before"]), float(found["after"])) == (0.25, 0.75)
    assert int(found["update_bytes"]) == summary.update_bytes
    assert int(found["up"]) == sum(row.up for row in traffic) > 0


def test_a_device_without_a_model(cloud: Cloud, tmp_path: Path) -> None:
    said = "--device: found 'a', expected a device with a model in run run: none has one yet"
    with pytest.raises(ConfigError, match=said):
        export_device(cloud.store, RUN, "a", tmp_path / "a.npz")
    with pytest.raises(ConfigError, match="run: found 'x'"):
        export_global(cloud.store, "x", tmp_path / "x.npz")
    with pytest.raises(StorageError, match=r"write the history to .*nowhere"):
        export_history(cloud.store, RUN, tmp_path / "nowhere" / "h.csv")
    assert not (tmp_path / "a.npz").exists()
