"""The sedge-export command, run in this process."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace
from tests.export.layers import Body, Lambda
from torch import Tensor, nn

from sedge_edge.backends.guided_losses import GUIDED_LOSSES
from sedge_export.__main__ import main
from sedge_export.exporter import export
from sedge_protocol.wire import bundle

torch.set_num_threads(1)

HERE = "tests.export.command_line.test_export_cli"


def arguments(folder: Path, **changes: str) -> list[str]:
    """A small good command line."""
    options = {"sample-shape": "1,28,28", "batch-size": "2", "num-classes": "10", "name": "m"}
    options |= {"out": str(folder)} | {k.replace("_", "-"): value for k, value in changes.items()}
    model = options.pop("model", "sedge_export.models:mlp")
    return [model, *(f"--{key}={value}" for key, value in options.items())]


Made = tuple[Path, str]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The folder of an export in three widths, ``b``, ``b-0.25`` and ``b-0.75``, and what was printed."""
    folder, printed = tmp_path_factory.mktemp("made"), io.StringIO()
    with contextlib.redirect_stdout(printed):
        words = {"widths": "0,0.25,0.75", "labels": ",".join("abcdefghij"), "seed": "1"}
        assert main(arguments(folder / "b", **words)) == 0
    return folder, printed.getvalue()


def test_export_and_show(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    folder, printed = made[0] / "b", made[1].split("\n\n")[0]
    # Of a batch of 2: forward, and backward to all weights and to the second layer's input.
    cost = 2 * (2 * (784 * 200 + 200 * 10) + 200 * 10) / 1e6
    step = rf"a step +{cost:.1f} million multiply-adds"
    job = r"a job +\d+ MB of a device's memory with SGD, \d+ MB with Adam"
    patterns = "159,010 in 4 tensors", r"gradient .* bytes", r"step \d\.\de-0\d, epoch", step, job
    for pattern in patterns:
        assert re.search(pattern, printed)
    manifest = bundle.load(folder)[0].manifest
    assert 2 * 4 * 159_010 < manifest.programs[0].memory_bytes < 2 * 10**7  # without the runtime
    assert 75 < manifest.memory_mb(["onnxruntime"], 4) < 95
    assert manifest.memory_mb(["onnxruntime", "torch"], 4) == 0
    assert manifest.memory_mb(["executorch"], 4) == 0
    assert main(["show", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == printed.strip()


def test_memory_is_measured_on_rows_that_the_model_takes(tmp_path: Path) -> None:
    """A row's shares of its sum are NaN for a row of zeros."""
    shares = Lambda(lambda layer, x: layer(x / x.sum(1, keepdim=True)), nn.Linear(4, 3))
    manifest = export(
        shares, torch.rand(4, 4) + 1, batch_size=4, name="m", num_classes=3, folder=tmp_path,
        measure=True, guided=GUIDED_LOSSES["fedlc"],
    )  # fmt: skip
    measured = [program.name for program in manifest.programs if program.memory_bytes > 1]
    assert measured == ["gradient", "guided"]


def test_the_classes_have_names(made: Made) -> None:
    assert bundle.load(made[0] / "b")[0].manifest.labels == tuple("abcdefghij")
    assert "10 classes: a, b, c" in made[1]


def test_a_bundle_without_programs(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``sedge-export bundle`` writes it."""
    whole, theta = bundle.load(made[0] / "b")
    manifest = replace(whole.manifest, programs=(), verification=None)
    bundle.save(tmp_path / "own", bundle.Bundle(manifest, {}), theta)
    assert main(["show", str(tmp_path / "own")]) == 0
    printed = capsys.readouterr().out
    assert "159,010 in 4 tensors" in printed
    assert re.search(r"programs +none: devices train with their own code", printed)


def test_a_form_for_each_width(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    folder, printed = made
    assert sorted(path.name for path in folder.iterdir()) == ["b", "b-0.25", "b-0.75"]
    whole, theta = bundle.load(folder / "b")
    for dropped, hidden in ((0.0, 200), (0.25, 150), (0.75, 50)):
        found, narrow = bundle.load(folder / (f"b-{dropped}" if dropped else "b"))
        manifest = found.manifest
        assert manifest.axes is not None
        assert (manifest.dropped, manifest.axes.channels) == (dropped, (hidden,))
        assert manifest.layout.size == 794 * hidden + hidden + 10
        assert f"{manifest.layout.size:,} in 4 tensors" in printed
        views, wholes = manifest.layout.views(narrow), whole.manifest.layout.views(theta)
        assert (views["1.weight"] == wholes["1.weight"][:hidden]).all()
        assert (views["3.weight"] == wholes["3.weight"][:, :hidden]).all()
    for line in (
        "axis 0 +200 channels of 3 tensors: 1.weight, 1.bias, 3.weight",
        "narrower by 0.5 +79,510 parameters",
        "left out +0.25 of the whole model's channels",
    ):
        assert re.search(line, printed)
    assert main(["show", str(folder / "b-0.75")]) == 0
    assert capsys.readouterr().out.strip() == printed.split("\n\n")[-1].strip()


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))


def test_a_model_of_one_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(tmp_path / "b", model=f"{HERE}:linear")) == 0
    assert re.search("axes +none: it has a single width", capsys.readouterr().out)
    assert bundle.load(tmp_path / "b")[0].manifest.axes is None
    assert main(arguments(tmp_path / "c", model=f"{HERE}:linear", widths="0,0.5")) == 3
    assert "nothing can be narrowed" in capsys.readouterr().err


def test_same_seed_gives_same_model(made: Made, tmp_path: Path) -> None:
    for seed in "12":
        assert main(arguments(tmp_path / seed, seed=seed)) == 0
    again, other = (bundle.load(tmp_path / seed)[1].tobytes() for seed in "12")
    assert again == bundle.load(made[0] / "b")[1].tobytes() != other


def reader() -> nn.Module:
    return nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 10))


def unknown(row: int = 3) -> tuple[Tensor, Tensor]:
    """Tokens and labels; one of the row is unknown."""
    x = torch.arange(180).reshape(60, 3) % 9
    x[row, 2] = 12
    return x, torch.arange(60) % 10


def unknown_later() -> tuple[Tensor, Tensor]:
    return unknown(50)


def test_tokens_that_are_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"sample_shape": "3", "vocabulary": "9", "model": f"{HERE}:reader"}
    assert main(arguments(tmp_path / "b", **options)) == 0
    manifest = bundle.load(tmp_path / "b")[0].manifest
    assert (manifest.input.dtype, manifest.vocabulary) == ("int64", 9)
    capsys.readouterr()
    known = "but the model knows 0 to 8: use one of these for all others"
    for changes, message in (
        ({"vocabulary": "12"}, "--vocabulary: larger than the model's: sample_input[1, 2] is 11"),
        ({"data": f"{HERE}:unknown"}, "real_data: x[3, 2] is 12"),
        ({"data": f"{HERE}:unknown_later"}, "real_data: x[50, 2] is 12"),
    ):
        assert main(arguments(tmp_path / "c", **options | changes)) == 3
        assert capsys.readouterr().err == f"sedge-export: {message}, {known}\n"
    words = ["personal", options["model"], f"--weights={tmp_path / 'b'}", "--int8"]
    words += ["--sample-shape=3", "--vocabulary=9", f"--data={HERE}:unknown_later"]
    assert main([*words, f"--out={tmp_path / 'm.onnx'}"]) == 3
    assert f"data: x[50, 2] is 12, {known}" in capsys.readouterr().err


def two_heads() -> nn.Module:
    return nn.Linear(4, 5)


def both(output: Tensor, y: Tensor) -> Tensor:
    """The loss of a class and of two numbers."""
    classes = nn.functional.cross_entropy(output[:, :3], y[:, 0].long(), reduction="none")
    return classes + (output[:, 3:] - y[:, 1:]).square().mean(1)


def of_both() -> tuple[Tensor, Tensor]:
    return torch.randn(30, 4), torch.cat([torch.arange(30)[:, None] % 3, torch.randn(30, 2)], 1)


def test_a_class_and_numbers_are_one_target(tmp_path: Path) -> None:
    """Which the loss takes apart; random numbers are no classes, so that y is the user's rows."""
    options = {"sample_shape": "4", "num_classes": "0", "target": "float", "target_shape": "3"}
    own = {"model": f"{HERE}:two_heads", "loss": f"{HERE}:both", "data": f"{HERE}:of_both"}
    assert main(arguments(tmp_path / "b", **options, **own)) == 0
    target = bundle.load(tmp_path / "b")[0].manifest.target
    assert target == bundle.TensorSpec("float32", (3,))


def embedded(table: Body, x: Tensor) -> Tensor:
    """Ten numbers and three codes."""
    return torch.cat([x[:, :10], table(x[:, 10:].long()).flatten(1)], 1)


def model_of_codes() -> nn.Module:
    return nn.Sequential(Lambda(embedded, nn.Embedding(20, 4)), nn.Linear(22, 10))


def coded() -> tuple[Tensor, Tensor]:
    codes = torch.randint(20, (64, 3)).float()
    return torch.cat([30 * torch.randn(64, 10), codes], 1), torch.randint(10, (64,))


def test_category_codes_among_numbers_need_real_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random numbers are no codes; nor is one column's code valid in another."""
    options = {"sample_shape": "13", "model": f"{HERE}:model_of_codes"}
    assert main(arguments(tmp_path / "b", **options)) == 3
    assert "IndexError: index out of range in self; the sample is random" in capsys.readouterr().err
    assert main(arguments(tmp_path / "b", **options, data=f"{HERE}:coded")) == 0
    assert bundle.load(tmp_path / "b")[0].manifest.verification is not None


@pytest.mark.parametrize(
    ("changes", "status", "pattern"),
    [
        ({"model": "no.such.module:f"}, 2, "model: found 'no.such.module:f', expected module:fun"),
        ({"model": "sedge_export.models:nothing"}, 2, "nothing"),
        ({"model": "sedge_export.models"}, 2, "expected module:function"),
        ({"model": "pathlib:Path"}, 2, "expected an nn.Module, not a"),
        ({"sample_shape": "3"}, 3, "fails on the sample input .*; the sample is random .* --data "),
        ({"num_classes": "7"}, 3, "expected float32"),
        ({"labels": "a,b"}, 3, "2 labels, expected 10, one for each class"),
        ({"class_weights": ",".join("0" * 10)}, 3, "loss: all class weights are 0"),
    ],
)
def test_error_is_one_line(
    changes: dict[str, str], status: int, pattern: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert main(arguments(tmp_path / "b", **changes)) == status
    printed, complaint = capsys.readouterr()
    assert printed == "" and re.fullmatch(r"sedge-export: .*\n", complaint)
    assert re.search(pattern, complaint)
    assert not (tmp_path / "b").exists()


def test_fault_in_the_users_module_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_model.py").write_text("raise RuntimeError('first\\nsecond')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(arguments(tmp_path / "b", model="broken_model:build")) == 2
    assert re.fullmatch(r"sedge-export: model: .*first second\)\n", capsys.readouterr().err)


def test_show_of_no_bundle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tmp_path)]) == 2
    assert "a folder that sedge-export wrote" in capsys.readouterr().err


NO_WIDTHS = ("0.25,0.5", "0,0.5,0.25", "0,1", "0,0.5,0.5", "-0.5", "0,x", "")


@pytest.mark.parametrize(
    "changes",
    [
        *({"widths": widths} for widths in NO_WIDTHS),
        {"sample_shape": "1,x"},
        {"tolerance": "inf"},
        {"tolerance": "0"},
        {"tolerance": "nan"},
        {"seed": "-1"},
        {"seed": str(2**63)},
        {"vocabulary": "-1"},
        {"metric": "mine:f1"},
        {"metric": "f1:higher"},
        {"target": "none", "num_classes": "0", "target_shape": "3"},
        {"out": ""},
        {"class_weights": "1,2,x"},
    ],
    ids=str,
)
def test_words_that_are_no_values(
    changes: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments(tmp_path / "b", **changes))
    assert caught.value.code == 2
    assert not list(tmp_path.iterdir())
    assert "invalid _weights" not in capsys.readouterr().err
