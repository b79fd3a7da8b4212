"""ExecuTorch programs: compiled, run in its own runtime, verified like any others, and refused by name."""

import logging
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from sedge_export import export
from sedge_export.__main__ import main
from sedge_export.lowering.executorch import runtime
from sedge_export.lowering.executorch.simplify import PERMUTE, simplified
from sedge_export.lowering.executorch.to_executorch import POOL, POOL_BACKWARD, to_executorch
from sedge_export.lowering.rules.table import RULES
from sedge_export.lowering.target import TARGETS
from sedge_export.tracing.trace import trace
from sedge_protocol.errors import ExportError
from sedge_protocol.wire import bundle

torch.set_num_threads(1)

aten = torch.ops.aten
Array = NDArray[np.generic]
BATCH = 4
BOTH = ("onnxruntime", "executorch")


def model() -> nn.Module:
    """Convolution, batch normalisation, pooling and a linear layer for (1, 8, 8) and three classes."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Flatten(), nn.Linear(64, 3),
    )  # fmt: skip


def feeds(theta: Array) -> dict[str, Array]:
    """Every input of every program."""
    rng = np.random.default_rng(0)
    return {
        "theta": theta,
        "x": rng.standard_normal((BATCH, 1, 8, 8)).astype(np.float32),
        "y": rng.integers(3, size=BATCH),
        "w": np.array([1, 2, 0.5, 1], np.float32),
    }


def test_both_backends_in_one_bundle(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = logging.getLogger().handlers[:]
    manifest = export(
        model(), torch.randn(2, 1, 8, 8), batch_size=BATCH, name="m", num_classes=3,
        folder=tmp_path, backends=BOTH,
    )  # fmt: skip
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger().handlers == handlers
    assert manifest.verification is not None
    assert set(manifest.verification.versions) == {"onnx", "onnxruntime", "executorch", "torch"}
    assert manifest.verification.step_error <= 1e-5
    made, theta = bundle.load(tmp_path)
    assert made.backends() == BOTH
    files = {p.file for p in manifest.programs if p.backend == "executorch"}
    assert files == {"programs.pte"}
    given = feeds(theta)
    for name, signature in manifest.signatures.items():
        feed = {key: given[key] for key in signature.inputs}
        programs = [TARGETS[b].load(made.program(name, b), signature) for b in BOTH]
        found, expected = (program(feed) for program in programs)
        assert tuple(found) == signature.outputs
        for key in signature.outputs:
            assert found[key].dtype == np.float32
            np.testing.assert_allclose(found[key], expected[key], rtol=1e-4, atol=1e-5, err_msg=key)
    assert capfd.readouterr() == ("", "")
    assert main(["show", str(tmp_path)]) == 0
    printed = capfd.readouterr().out
    assert re.search(r"gradient, evaluate, predict \(executorch\) +[\d,]+ bytes", printed)


def test_stock_max_pooling_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ExecuTorch 1.5.1 computes the gradient of max pooling wrongly; verification notices."""
    monkeypatch.delitem(RULES, POOL)
    monkeypatch.delitem(RULES, POOL_BACKWARD)
    torch.manual_seed(0)
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3))
    with pytest.raises(ExportError, match="executorch: program 'gradient' disagrees with torch"):
        export(
            pooled, torch.randn(2, 1, 8, 8), batch_size=BATCH, name="m", num_classes=3,
            folder=tmp_path / "b", backends=("executorch",),
        )  # fmt: skip
    assert not (tmp_path / "b").exists()


def test_refusals_name_operator_and_module(monkeypatch: pytest.MonkeyPatch) -> None:
    def pooled(x: Tensor) -> Tensor:
        values, indices = nn.functional.max_pool2d(x, 2, return_indices=True)
        return values + indices

    kernels = "sedge_export.lowering.executorch.to_executorch.kernels"
    for function, shape, expected in (
        (pooled, (1, 2, 8, 8), r"max_pool.* \(here\): .*its indices are used"),
        (torch.sin, (3,), r"cannot lower aten.sin.default \(here\): ExecuTorch has no"),
    ):
        graph = trace(function, [torch.randn(shape)])
        with pytest.raises(ExportError, match=expected):
            to_executorch({"predict": graph}, lambda _: " (here)")
        monkeypatch.setattr(kernels, lambda: frozenset(["aten::cos"]))


def test_without_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "executorch.extension.pybindings.portable_lib", None)
    runtime.library.cache_clear()
    words = ["sedge_export.models:mlp", "--sample-shape=1,28,28", "--batch-size=2", "--num-classes=10",
             "--name=m", f"--out={tmp_path / 'b'}", "--backend=onnxruntime,executorch"]  # fmt: skip
    assert main(words) == 3
    complaint = capsys.readouterr().err
    assert re.fullmatch(
        r"sedge-export: .*pip install 'sedge-fl\[export-executorch\].*\n", complaint
    )
    assert not (tmp_path / "b").exists()
    runtime.library.cache_clear()


@pytest.mark.parametrize("backends", ["", "tensorflow", "onnxruntime,onnxruntime"])
def test_backends_that_are_none(backends: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["m:f", "--sample-shape=1", "--batch-size=2", "--num-classes=2", "--name=m",
              f"--out={tmp_path / 'b'}", f"--backend={backends}"])  # fmt: skip
    expected = r"backends: .*expected one or more of onnxruntime, executorch"
    with pytest.raises(ExportError, match=expected):
        export(
            nn.Linear(2, 2), torch.randn(1, 2), batch_size=2, name="m", num_classes=2,
            folder=tmp_path / "b", backends=tuple(filter(None, backends.split(","))),
        )  # fmt: skip


# The simplifier: the same values, and transposes that cancel.


def counts(graph: fx.GraphModule) -> Mapping[object, int]:
    targets = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return {target: targets.count(target) for target in targets}


def test_transposes_cancel() -> None:
    def function(x: Tensor, bias: Tensor) -> Tensor:
        last = x.permute(0, 2, 3, 1)
        first = torch.relu(last + bias).permute(0, 3, 1, 2)
        shifted = nn.functional.pad(first, (1, -1, 0, 2)) * bias[:, None, None]
        return torch.cat([shifted, shifted * 2], 2).sum((0, 3)).unsqueeze(0)

    inputs = [torch.randn(2, 5, 3, 4), torch.randn(5)]
    graph = simplified(trace(function, inputs))
    torch.testing.assert_close(graph(*inputs)[0], function(*inputs))
    assert PERMUTE not in counts(graph)


def test_small_side_of_a_product_is_transposed() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        return torch.relu(torch.bmm(x, weight.transpose(1, 2)))

    inputs = [torch.randn(1, 2, 30), torch.randn(1, 40, 30)]
    graph = simplified(trace(function, inputs))
    torch.testing.assert_close(graph(*inputs)[0], function(*inputs))
    moved = [node.meta["val"].numel() for node in graph.graph.nodes if node.target is PERMUTE]
    assert moved == [60, 80]


def test_equal_nodes_are_one_and_concatenations_are_short() -> None:
    sizes = [90, 1, 2, 3, 4, 80, 70]

    def function(x: Tensor) -> Tensor:
        parts = [torch.exp(part) for part in x.split_with_sizes(sizes)]
        return torch.cat([*parts, torch.exp(x[:90])])

    inputs = [torch.randn(sum(sizes))]
    graph = simplified(trace(function, inputs))
    torch.testing.assert_close(graph(*inputs)[0], function(*inputs))
    found = counts(graph)
    assert found[aten.exp.default] == len(sizes)
    joined = [n for n in graph.graph.nodes if n.target is aten.cat.default]
    assert all(len(node.args[0]) <= 5 for node in joined)
    assert sorted(n.meta["val"].numel() for n in joined) == [10, sum(sizes) + 90]
