"""What an operator does: runs begin or not at all, and a first configuration."""

import hashlib
import tomllib
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from onnx import ModelProto, TensorProto
from tests.cloud import given
from tests.cloud.helper import CONFIG, LAYOUT, as_nobody, make_bundle, make_width, random_theta
from tests.cloud.stores import open_store
from tests.edge.backends.softmax import DIVIDING
from tests.fleet import EMPTY_PROGRAM

from sedge_cloud.admin.runs import start_run
from sedge_cloud.admin.templates import write_first_files
from sedge_cloud.config import RobustConfig, TrainingConfig, broker_settings, load_cloud
from sedge_cloud.runs import garbage
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import ClientModelRow, RunRow
from sedge_cloud.strategy import Assignment
from sedge_protocol.errors import CodecError, ConfigError, StorageError, Unencodable
from sedge_protocol.layout import Layout, Role


@pytest.mark.parametrize("name", ["", "Run", "run_1", "-run", "a" * 49, "run\n", "rün", "../run"])
def test_a_name_that_no_run_may_have(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="run: found "):
        start_run(store, name, make_bundle(tmp_path / "bundle"), CONFIG)
    assert store.runs() == []


def reading() -> bytes:
    model = ModelProto.FromString(EMPTY_PROGRAM)
    tensor = model.graph.initializer.add(name="weights", data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="secret")
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (reading(), r"model.graph.initializer\[0\]: external_data is not allowed"),
        (DIVIDING, r"model.graph.node\[6\]: Div of integers, expected a constant"),
    ],
)
def test_a_program_devices_refuse(store: Store, tmp_path: Path, program: bytes, said: str) -> None:
    """Also where only a narrower form has it."""
    bad = make_bundle(tmp_path / "bad", program=program)
    said = f"bundle 'bench': program 'gradient': {said}"
    with pytest.raises(CodecError, match=said):
        start_run(store, "run", bad, CONFIG)
    with pytest.raises(CodecError, match=said):
        start_run(store, "run", make_bundle(tmp_path / "bundle"), CONFIG, [bad])
    assert store.runs() == []


def test_a_strategy_that_cannot_plan_for_this_model(store: Store, tmp_path: Path) -> None:
    """It is asked before the run is there: nobody wants to hear of it from the log."""
    given.PLANS[""] = lambda context, client: Assignment(width=len(context.widths))
    config = msgspec.structs.replace(CONFIG, strategy=given.NAME)
    with pytest.raises(ConfigError, match=r"strategy: .*width 1, but the run has 1 bundles"):
        start_run(store, "run", make_bundle(tmp_path / "bundle"), config)
    assert store.runs() == []


def test_a_strategy_that_says_no_coding(store: Store, tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, strategy="tests.cloud.given:Miscoded")
    with pytest.raises(ConfigError, match="patch_values"):
        start_run(store, "run", make_bundle(tmp_path / "bundle"), config)


def test_what_a_run_begins_with_is_not_collected_before_it_has_a_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a slow disk, or over a slow link to an object store, the last blob comes long after the first."""
    monkeypatch.setattr(garbage, "ORPHAN_AGE_S", -60.0)
    add_run = store.add_run

    def late(row: RunRow, past: Sequence[ClientModelRow]) -> None:
        Garbage(open_store(tmp_path / "state")).collect()
        add_run(row, past)

    monkeypatch.setattr(store, "add_run", late)
    start_run(store, "run", make_bundle(tmp_path / "bundle"), CONFIG)
    (row,) = store.runs()
    assert Run(row, store).manifest.layout == LAYOUT


def test_a_model_whose_orders_no_frame_holds(store: Store, tmp_path: Path) -> None:
    names = [f"{i:04}".ljust(230, "x") + ".weight" for i in range(1200)]
    layout = Layout.of([(name, (2,), Role.PARAMETER) for name in [*names, "head.weight"]])
    config = msgspec.structs.replace(CONFIG, strategy="lg_fedavg")
    said = r"strategy: found 'lg_fedavg', .*, a new device: an order of \d+ bytes, of which work"
    with pytest.raises(ConfigError, match=said):
        start_run(store, "large", make_bundle(tmp_path / "bundle", layout), config)
    assert store.runs() == []


def test_a_frozen_tensor_that_is_not_there(store: Store, tmp_path: Path) -> None:
    """Every device would decline its order."""
    bundle = make_bundle(tmp_path / "bundle")
    training = TrainingConfig(freeze=("body.weight", "head.bais"))
    wrong = msgspec.structs.replace(CONFIG, training=training)
    expected = r"training.freeze: found 'head.bais', expected one of .*'head.bias'"
    with pytest.raises(ConfigError, match=expected):
        start_run(store, "run", bundle, wrong)
    assert store.runs() == []
    training = TrainingConfig(freeze=("body.weight", "head.bias"))
    start_run(store, "run", bundle, msgspec.structs.replace(CONFIG, training=training))


def test_krum_is_for_one_width(store: Store, tmp_path: Path) -> None:
    """The run would fail when its first round closes."""
    whole, half = make_width(tmp_path / "whole", 0.0), make_width(tmp_path / "half", 0.5)
    config = msgspec.structs.replace(CONFIG, strategy="heterofl", robust=RobustConfig(rule="krum"))
    with pytest.raises(ConfigError, match=r"robust\.rule: found 'krum', expected a rule that"):
        start_run(store, "run", whole, config, [half])
    assert store.runs() == []
    start_run(store, "one-width", whole, config)
    clipped = msgspec.structs.replace(config, robust=RobustConfig())
    start_run(store, "clipped", whole, clipped, [half])


def test_a_run_begins_with_the_model_that_its_strategy_makes(store: Store, tmp_path: Path) -> None:
    """Of the bundle's own nothing is left."""
    given.INITS.append(lambda context: context.replaced(context.theta * np.float32(2)))
    config = msgspec.structs.replace(CONFIG, strategy=given.NAME)
    start_run(store, "run", make_bundle(tmp_path / "bundle"), config)
    run = Run(store.runs()[0], store)
    context, doubled = RunStore(store).context(run), random_theta(1) * np.float32(2)
    assert context.theta.tobytes() == context.initial.tobytes() == doubled.tobytes()
    assert run.state.model_hash == hashlib.sha256(doubled.tobytes()).digest()


def test_a_first_model_that_is_not_finite(store: Store, tmp_path: Path) -> None:
    broken = np.full(LAYOUT.size, np.inf, np.float32)
    with pytest.raises(Unencodable):
        start_run(store, "run", make_bundle(tmp_path / "bundle", init=broken), CONFIG)
    assert store.runs() == []


def test_a_first_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    write_first_files(folder, "home", "mqtt://192.168.1.10:2883")
    cloud = load_cloud(folder / "cloud.toml")
    assert (cloud.fleet, cloud.broker.url) == ("home", "mqtt://192.168.1.10:2883")
    assert cloud.state_dir == str(folder / "state")
    password = broker_settings(cloud).password
    assert password is not None and len(password) == 48
    assert "listener 2883\n" in (folder / "mosquitto.conf").read_text()
    assert cloud.broker.device_password_file == str(folder / "broker-passwords")
    again = tomllib.loads((folder / "cloud.toml").read_text())
    with pytest.raises(ConfigError, match=r"folder: found .*fleet', expected a folder without"):
        write_first_files(folder, "other", "mqtt://h:1")
    assert tomllib.loads((folder / "cloud.toml").read_text()) == again


@pytest.mark.parametrize(
    "url",
    [
        "mqtts://h:8883", "mqtt://h", "mqtt://h:x", "mqtt://h:0", "mqtt://h:65536", "mqtt://:1883",
        "mqtt://h:1883/", 'mqtt://h"\nx = "y:1883', "h:1883", "",
    ],
)  # fmt: skip
def test_a_url_that_a_first_broker_cannot_have(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"url: found .* expected mqtt://host:port"):
        write_first_files(tmp_path / "fleet", "home", url)
    assert not (tmp_path / "fleet").exists()


def test_a_folder_that_cannot_be_written() -> None:
    with as_nobody() as folder:
        (folder / "fleet").mkdir(0o500)
        with pytest.raises(StorageError, match=r"fleet.*: Permission denied") as caught:
            write_first_files(folder / "fleet", "home", "mqtt://h:1883")
        assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(StorageError, match="Permission denied"):
            write_first_files(folder / "fleet" / "deeper", "home", "mqtt://h:1883")
