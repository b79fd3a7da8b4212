"""How many devices train at once. That a GPU's memory holds them is counted in on_a_card."""

from types import SimpleNamespace

import pytest
import torch
from tests.emulate.training.trainings import problem

from sedge_emulate.training.fitting import fitting_width, most_devices, place_bytes
from sedge_emulate.training.tasks import Unsupported

GPU = torch.device("cuda", 0)
GIB = 2**30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU's properties, for a test to change."""
    found = SimpleNamespace(total_memory=40 * GIB)

    def properties(device: torch.device) -> SimpleNamespace:
        return found

    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    return found


def test_a_cpu_has_its_own_width() -> None:
    assert fitting_width(problem("avgcnn", 4096), torch.device("cpu")) == 8


def test_a_gpu_takes_what_fits_up_to_the_limit(memory: SimpleNamespace) -> None:
    small, large = problem("mlp"), problem("avgcnn", 1024)
    assert fitting_width(small, GPU) == fitting_width(small, GPU, processes=16) == 128
    assert 1 < fitting_width(large, GPU) < 128
    memory.total_memory = 8 * GIB
    assert 1 <= fitting_width(large, GPU) < 16


def test_processes_divide_the_memory_among_them(memory: SimpleNamespace) -> None:
    large = problem("avgcnn", 1024)
    assert fitting_width(large, GPU, processes=4) == most_devices(large, 10 * GIB)
    assert fitting_width(large, GPU, processes=4) < fitting_width(large, GPU) / 3


def test_unfolded_convolutions_and_graphs_take_more() -> None:
    of = problem("avgcnn", 64)
    assert place_bytes(of, "unfold") > 1.5 * place_bytes(of)
    assert place_bytes(of, graphs=True) > place_bytes(of)


def test_too_little_memory_for_one_device_says_how_much_it_takes(memory: SimpleNamespace) -> None:
    memory.total_memory = 2 * GIB
    large = problem("avgcnn", 4096)
    with pytest.raises(Unsupported, match=r"cuda:0 has 2\.1 GB, and one device .* needs \d\.\d$"):
        fitting_width(large, GPU)
    with pytest.raises(Unsupported, match=r"2\.1 GB for 16 processes \(workers\), and one"):
        fitting_width(problem("mlp"), GPU, processes=16)
