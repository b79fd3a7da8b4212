"""``sedge-export bundle``: initial parameters of the user's become a bundle, or one line of error."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sedge_export.__main__ import main
from sedge_protocol.layout import Role
from sedge_protocol.wire.bundle import TensorSpec, load, pack, unpack
from sedge_protocol.wire.objective import Metric

NAMED = """
import numpy as np
def initial():
    return {"conv.weight": np.full((2, 3), 0.5), "bn.running_mean": np.ones(2, np.float32)}
"""
LISTED = """
import numpy as np
def initial():
    return [np.zeros((4, 3), np.float32), np.arange(3.0), np.array(7.0)]
"""


def bundle(function: str, folder: Path, *more: str) -> int:
    """The exit status of the command."""
    words = ["--sample-shape", "2,4", "--batch-size", "8", "--num-classes", "3", "--name", "own"]
    return main(["bundle", function, *words, "--out", str(folder / "made"), *more])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, in which modules are looked for."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_named_arrays(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "named_arrays.py").write_text(NAMED)
    assert bundle("named_arrays:initial", folder) == 0
    assert capsys.readouterr().out == f"{folder / 'made'}: 8 parameters in 2 tensors\n"
    made, theta = load(folder / "made")
    assert made.manifest == unpack(pack(made)).manifest
    np.testing.assert_array_equal(theta, np.array([0.5] * 6 + [1, 1], np.float32))
    manifest = made.manifest
    assert [(t.name, t.shape, t.role) for t in manifest.layout.tensors] == [
        ("conv.weight", (2, 3), Role.PARAMETER),
        ("bn.running_mean", (2,), Role.STATISTIC),
    ]
    assert (manifest.name, manifest.batch_size, manifest.num_classes) == ("own", 8, 3)
    assert manifest.input == TensorSpec("float32", (2, 4))
    assert (manifest.programs, manifest.verification) == ((), None)
    assert manifest.uses_batch_statistics


def test_numbers_and_a_metric_of_ones_own(folder: Path) -> None:
    (folder / "rated_arrays.py").write_text(NAMED)
    options = ("--sample-shape=4", "--batch-size=8", "--name=r", f"--out={folder / 'made'}")
    words = ["bundle", "rated_arrays:initial", *options]
    assert main([*words, "--target-shape", "1", "--metric", "rmse:lower"]) == 0
    manifest = load(folder / "made")[0].manifest
    assert (manifest.target, manifest.num_classes) == (TensorSpec("float32", (1,)), 0)
    assert manifest.metric == Metric("rmse", "lower")
    assert main(words) == 0
    manifest = load(folder / "made")[0].manifest
    assert (manifest.target, manifest.metric.name) == (None, "loss")
    assert main([*words, "--target-shape", "4", "--num-classes", "2"]) == 0
    manifest = load(folder / "made")[0].manifest
    assert (manifest.target, manifest.num_classes) == (TensorSpec("int64", (4,)), 2)


def test_a_list(folder: Path) -> None:
    (folder / "listed_arrays.py").write_text(LISTED)
    assert bundle("listed_arrays:initial", folder, "--sample-type", "int64") == 0
    made, theta = load(folder / "made")
    assert [(t.name, t.shape) for t in made.manifest.layout.tensors] == [
        ("0", (4, 3)), ("1", (3,)), ("2", ()),
    ]  # fmt: skip
    np.testing.assert_array_equal(theta, np.array([0] * 12 + [0, 1, 2, 7], np.float32))
    assert made.manifest.input.dtype == "int64"
    assert not made.manifest.uses_batch_statistics


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ("1 / 0", "found 'ZeroDivisionError: division by zero', expected a list or a dict"),
        ("raise SystemExit", "found 'SystemExit: ', expected a list or a dict of arrays"),
        ("return np.zeros(3)", "found 'ndarray', expected a list or a dict of arrays"),
        ("return [np.zeros(3, int)]", "0: found 'int64', expected floating-point numbers"),
        ("return [np.zeros(3), [[1], [2, 3]]]", "1: found 'ValueError: "),
        ("return {'a': np.full(3, np.nan)}", "a: found 'NaN or inf', expected finite numbers"),
        ("return {'a': np.full(3, 1e39)}", "a: found 'NaN or inf', expected finite numbers"),
        ("return []", "found 'layout: 0 tensors, expected 1 to 4096'"),
        ("return [np.zeros((3, 0))]", "found 'layout.tensors[0]: shape (3, 0) has an empty"),
    ],
)
def test_what_are_no_parameters(
    body: str, text: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = f"wrong_initial_{abs(hash(body))}"
    (folder / f"{name}.py").write_text(f"import numpy as np\ndef initial():\n    {body}\n")
    assert bundle(f"{name}:initial", folder) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"sedge-export: {name}:initial: ") and text in error
    assert not (folder / "made").exists()


def test_a_function_that_is_not_there(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("nowhere_at_all:initial", folder) == 2
    assert "there is no module nowhere_at_all" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--sample-shape=2,x", "--batch-size=0", "--num-classes=-1"])
def test_numbers_that_are_none(word: str, folder: Path) -> None:
    with pytest.raises(SystemExit, match="2"):
        bundle("any:initial", folder, word)


# As where there is no torch.
WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from sedge_export.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def without_torch(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, output and error of the command in an interpreter that cannot import torch."""
    command = [sys.executable, "-c", WITHOUT_TORCH, *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    return done.returncode, done.stdout, done.stderr


def test_it_needs_no_torch(folder: Path) -> None:
    (folder / "plain_arrays.py").write_text(NAMED)
    words = ["--sample-shape", "4", "--batch-size", "8", "--name", "p", "--out", "made"]
    made = without_torch(folder, "bundle", "plain_arrays:initial", *words)
    assert made == (0, "made: 8 parameters in 2 tensors\n", "")
    status, shown, error = without_torch(folder, "show", "made")
    assert (status, error) == (0, "") and "none: devices train with their own code" in shown
    status, shown, error = without_torch(folder, "--help")
    assert (status, error) == (0, "") and "usage: sedge-export" in shown
    exported = without_torch(folder, "model:net", *words, "--num-classes", "2")
    expected = "sedge-export needs torch, which is not installed: pip install 'sedge-fl[export]'"
    assert exported == (2, "", f"sedge-export: {expected}\n")
