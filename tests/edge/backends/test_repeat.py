"""Settings of a GPU that make its bits repeat, and their end."""

import os
from typing import Any

import pytest
import torch

from sedge_edge.backends.repeat import repeatable


def test_repeatable_settings_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    memory: Any = torch.utils.deterministic

    def found() -> list[Any]:
        return [
            cudnn.benchmark, cudnn.allow_tf32, matmul.allow_tf32,
            matmul.allow_bf16_reduced_precision_reduction, memory.fill_uninitialized_memory,
        ]  # fmt: skip

    before = found()
    with pytest.raises(KeyError), repeatable(torch.device("cuda")):
        assert torch.are_deterministic_algorithms_enabled()
        assert cudnn.enabled
        assert not any(found())
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        raise KeyError
    assert not torch.are_deterministic_algorithms_enabled()
    assert found() == before
    assert memory.fill_uninitialized_memory


def test_tf32_is_on_where_it_is_asked_for() -> None:
    with repeatable(torch.device("cuda"), tf32=True):
        assert torch.backends.cudnn.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cuda.matmul.allow_tf32


def test_a_cpu_needs_none() -> None:
    with repeatable(torch.device("cpu")):
        assert not torch.are_deterministic_algorithms_enabled()
