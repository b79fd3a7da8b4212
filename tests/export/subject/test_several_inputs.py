"""Models of several inputs: exported, trained and asked by name, on every backend and in the emulator."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tests.export.subject import several_inputs_model
from tests.export.subject.several_inputs_model import CLASSES, arrays, build, load

from sedge_edge.backends import UserCode, open_trainer
from sedge_edge.config import BackendConfig
from sedge_edge.data import as_inputs, load_source
from sedge_edge.prediction import PersonalModel, predict_file
from sedge_edge.training.examples import fitting
from sedge_edge.training.trainer import TrainRequest
from sedge_emulate.__main__ import main
from sedge_export import export
from sedge_export.__main__ import main as export_main
from sedge_protocol.errors import DataError, ExportError
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import Bundle
from sedge_protocol.wire.bundle import load as load_bundle
from sedge_protocol.wire.objective import Metric
from sedge_protocol.wire.parts import MAX_INTEGER, InputPart
from sedge_protocol.wire.training import Training

PARTS = (
    InputPart("image", "float32", (1, 6, 6)),
    InputPart("table", "float32", (2,)),
    InputPart("tokens", "int64", (4,)),
)
BATCH = 8
Exported = tuple[Bundle, Theta]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    folder = tmp_path_factory.mktemp("several")
    sample = {name: torch.from_numpy(rows) for name, rows in arrays().items()}
    export(
        build(), sample, batch_size=BATCH, name="several", num_classes=CLASSES, folder=folder,
        real_data=(sample, torch.from_numpy(load()[1])),
    )  # fmt: skip
    return load_bundle(folder)


def test_every_backend_trains_on_arrays_by_name(exported: Exported, tmp_path: Path) -> None:
    """In whatever order a file has them; and what predicts takes them by name as well."""
    bundle, theta = exported
    assert bundle.manifest.parts == PARTS
    inputs, labels = load()
    shuffled = {name: inputs[name] for name in ("tokens", "image", "table")}
    np.savez(tmp_path / "train.npz", **cast(Any, {"y": labels, **shuffled}))
    data = fitting(load_source("train.npz", tmp_path), bundle.manifest)
    code = UserCode(tmp_path, f"{several_inputs_model.__name__}:build")
    ends: list[Theta] = []
    for backend in ("onnxruntime", "torch"):
        trainer = open_trainer(bundle, backend, 1, code)
        request = TrainRequest(theta, Training(2, 0.1), 7)
        ends.append(trainer.train(request, data, lambda: False).theta)
        np.testing.assert_allclose(ends[-1], ends[0], rtol=0, atol=2e-6)
    model = build().eval()
    with torch.no_grad():
        wanted = model(**{name: torch.from_numpy(rows) for name, rows in inputs.items()})
    np.savez(tmp_path / "new.npz", **cast(Any, shuffled))
    found = predict_file(PersonalModel(bundle, theta), tmp_path / "new.npz", BackendConfig())
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_inputs_that_are_not_the_models_are_named(exported: Exported, tmp_path: Path) -> None:
    manifest, inputs = exported[0].manifest, arrays()
    table, tokens = inputs["table"], inputs["tokens"]
    for changed, message in (
        ({"tokens": tokens + np.float32(0.5)}, r"tokens float32 \(4,\), but the model takes"),
        ({"table": table[:, :1]}, r"table float32 \(1,\), tokens .*, but the model takes image"),
        ({"tokens": tokens + MAX_INTEGER}, f"tokens holds .*at most {MAX_INTEGER}"),
        ({"table": table[1:]}, "table has 23 rows, expected 24"),
    ):
        with pytest.raises(DataError, match=message):
            as_inputs({**inputs, **changed}, manifest, "new.npz")
    np.savez(tmp_path / "one.npz", x=table, y=load()[1])
    expected = r"x has rows of shape \(2,\), but the model expects \(42,\)"
    with pytest.raises(DataError, match=expected):
        fitting(load_source("one.npz", tmp_path), manifest)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.float32, np.float64])
def test_the_same_numbers_in_every_type(exported: Exported, kind: type[np.generic]) -> None:
    manifest, inputs = exported[0].manifest, arrays()
    inputs["table"] = np.round(inputs["table"] * 10).clip(0)
    expected = as_inputs(inputs, manifest, "new.npz")
    other = {**inputs, **{name: inputs[name].astype(kind) for name in ("tokens", "table")}}
    found = as_inputs(other, manifest, "new.npz")
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_integers_beyond_float32_do_not_export(tmp_path: Path) -> None:
    sample = {name: torch.from_numpy(rows) for name, rows in arrays().items()}
    sample["tokens"] = sample["tokens"] + MAX_INTEGER
    with pytest.raises(ExportError, match=f"sample_input: tokens holds .*at most {MAX_INTEGER}"):
        export(build(), sample, batch_size=2, name="m", num_classes=CLASSES, folder=tmp_path)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = several_inputs_model.__name__
    words = [
        f"{mine}:build", "--batch-size=4", "--num-classes=3", "--name=m",
        f"--out={tmp_path / 'b'}", "--sample-shape=image:1,6,6", "--sample-shape=table:2",
    ]  # fmt: skip
    words += [f"--data={mine}:load", f"--metric={mine}:top_two:higher"]
    assert export_main([*words, "--sample-shape=tokens:4:9"]) == 0
    manifest = load_bundle(tmp_path / "b")[0].manifest
    assert (manifest.parts, manifest.metric) == (PARTS, Metric(f"{mine}:top_two", "higher"))
    row = "float32 42: image float32 1 x 6 x 6, table float32 2, tokens int64 4"
    assert row in capsys.readouterr().out
    for wrong, said in (
        ("tokens:4:99999999", "VOCABULARY up to"),
        ("4", "needs its own name"),
        ("table:2", "needs its own name"),
    ):
        with pytest.raises(SystemExit):
            export_main([*words, f"--sample-shape={wrong}"])
        assert said in capsys.readouterr().err
    for wrong, status, said in (
        (f"--data={mine}:misshapen", 3, "real_data: x is torch.float32 (24, 2), expected"),
        (f"--data={mine}:arrays", 2, "--data: found"),
        (f"--metric={mine}:top_three:lower", 2, f"--metric: found '{mine}:top_three'"),
    ):
        assert export_main([*words, "--sample-shape=tokens:4:9", wrong]) == status
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "backend",
    ["onnx", *(pytest.param(n, marks=pytest.mark.slow) for n in ("autograd", "vectorised"))],
)
def test_an_emulated_fleet(tmp_path: Path, backend: str) -> None:
    code = Path(several_inputs_model.__file__).read_text()
    (tmp_path / "mine.py").write_text(code)
    (tmp_path / "fleet.toml").write_text(f"""
devices = 2
workers = 1
[model]
factory = "mine:build"
batch_size = 4
metric = "mine:top_two:higher"
[data]
dataset = "mine:load"
split = "iid"
[rounds]
num_rounds = 1
[trainer]
backend = "{backend}"
[[strategies]]
name = "fedavg"
""")
    assert main(["run", str(tmp_path / "fleet.toml"), "--out", str(tmp_path / "out")]) == 0
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["metric"]["name"] == "mine:top_two"
    assert 0 <= found["strategies"][0]["after"]["mean"] <= 1
