"""Federated rounds in which emulated Raspberry Pi take part: the results, and what they cost a device.

Coordinator and broker run on this machine. Processors differ in the last bits of a product, and so do
runtimes on them: results agree within a tolerance, never bit for bit.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from tests.arm64.conftest import started
from tests.arm64.emulated import NUMPY, MixedFleet
from tools.arm64 import guest, packages

from sedge_cloud.store.records import Summary
from sedge_emulate.data.datasets import Dataset
from sedge_protocol.layout import Theta
from sedge_protocol.wire.bundle import FUNCTION, TORCH, load

pytestmark = [pytest.mark.arm64, pytest.mark.usefixtures("emulation")]

BACKENDS = tuple(packages.EXTRAS)
EXAMPLES = 160  # of which a fifth is for testing: four steps an epoch
RUN = """\
strategy = "fedobp"
num_rounds = {rounds}
min_train_devices = {devices}
min_available_devices = {devices}
min_updates = {devices}
deadline_s = 900
options = {{ quantile = 0.9995 }}
[training]
local_epochs = {epochs}
learning_rate = {rate}
momentum = 0.7
[codec]
values = "bf16"
fraction = 0.04
"""
# Just above what is measured, 100 and 104. The aims are 96 and 64; for the first, the kernel of a whole
# emulated machine counts 95 to 96 (test_pi_boot.py).
MAX_MIB = {"onnxruntime": 108, "executorch": 112}
# Just above what is measured, 163 and 111. The aims are 150 and 100, which were met before the agent needed
# cryptography to join.
MAX_INSTALLED_MB = {"onnxruntime": 170, "executorch": 118}
HEAVY = {"torch", "onnx", "executorch", "scipy", "PIL", "sedge_cloud", "sedge_export"}
SECONDS = 1200
ROUNDS = 4
# Of an accuracy on 192 test examples; on x86-64 over three seeds the two fleets are .005 to .031 apart.
NOISE = 0.08


class Result(NamedTuple):
    """A device's round: its model (n,) before and after, and the coordinator's summary."""

    start: Theta
    trained: Theta
    summary: Summary


@pytest.fixture(scope="module", params=BACKENDS)
def here(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    cnn: Path,
    images: Dataset,
) -> Iterator[tuple[str, Result]]:
    """A backend, and the round as an agent on this machine does it."""
    backend: str = request.param
    with started(tmp_path_factory.mktemp("here") / "fleet") as fleet:
        fleet.enrol("pi-1", backend, images, EXAMPLES)
        fleet.start_here("pi-1", backend)
        yield backend, one_round(fleet, cnn)


def one_round(fleet: MixedFleet, bundle: Path) -> Result:
    """One round of training and the evaluation after it, with what the device holds then."""
    fleet.run_to_end(bundle, RUN.format(rounds=1, devices=1, epochs=1, rate=0.01), SECONDS)
    trained, evaluated = fleet.rounds()
    assert len(trained.devices) == len(evaluated.devices) == 1
    return Result(load(bundle)[1], fleet.trained("pi-1"), trained)


@pytest.mark.parametrize("cpu", guest.CPUS)
def test_an_order_is_done_as_here(
    here: tuple[str, Result],
    cpu: str,
    fleet: MixedFleet,
    cnn: Path,
    images: Dataset,
    say: Callable[[str], None],
) -> None:
    """The same device in the same run, emulated: the same model, losses and memory within bounds."""
    backend, expected = here
    fleet.enrol("pi-1", backend, images, EXAMPLES)
    fleet.start_emulated("pi-1", backend, cpu)
    found = one_round(fleet, cnn)
    measured = fleet.measured("pi-1")
    moved = np.abs(expected.trained - expected.start).max()
    apart = np.abs(found.trained - expected.trained).max()
    say(
        f"{backend} on {cpu}: {measured.peak_mib:.1f} MiB, theta {apart / moved:.1e} of its change "
        f"and {apart:.1e} from x86-64's"
    )
    assert moved > 1e-3
    assert apart <= 1e-4 * moved
    assert found.summary.train_loss == pytest.approx(expected.summary.train_loss, rel=1e-5)
    (device,), (twin,) = found.summary.devices, expected.summary.devices
    assert device.num_examples == twin.num_examples == EXAMPLES * 4 // 5
    assert device.after == pytest.approx(twin.after, abs=0.04)  # one of 32 test examples
    assert measured.peak_mib <= MAX_MIB[backend]
    assert not {name.partition(".")[0] for name in measured.modules} & HEAVY


def test_two_machines_and_four_backends_train_together(
    fleet: MixedFleet, alike: MixedFleet, cnn: Path, images: Dataset, say: Callable[[str], None]
) -> None:
    """Three emulated devices and three of this machine in one run of FedOBP, as accurate as six alike."""
    emulated = {
        "pi-1": ("onnxruntime", "cortex-a72"),
        "pi-2": ("executorch", "cortex-a53"),
        "pi-3": (NUMPY, "cortex-a76"),
    }
    near = {"pi-4": "onnxruntime", "pi-5": "executorch", "pi-6": "torch"}
    backends = {**{device: backend for device, (backend, _) in emulated.items()}, **near}
    for device, backend in backends.items():
        fleet.enrol(device, backend, images, EXAMPLES)
        alike.enrol(device, "onnxruntime", images, EXAMPLES)
        alike.start_here(device, "onnxruntime")
    for device, (backend, cpu) in emulated.items():
        fleet.start_emulated(device, backend, cpu)
    for device, backend in near.items():
        fleet.start_here(device, backend)
    run = RUN.format(rounds=ROUNDS, devices=len(backends), epochs=3, rate=0.05)
    single, mixed = (each.run_to_end(cnn, run, SECONDS) for each in (alike, fleet))
    assert {hello.backends for hello in fleet.hellos()} == {
        (backend,) for backend in (*BACKENDS, TORCH, FUNCTION)
    }
    for summary in fleet.rounds():
        assert sorted(row.device for row in summary.devices) == sorted(backends)
    for row in fleet.rounds()[-1].devices:
        say(f"{row.device}: accuracy {row.before:.2f}")
    say(f"accuracy {mixed:.3f} on two machines in four backends, {single:.3f} in one")
    assert fleet.rounds()[-2].personal
    assert abs(mixed - single) <= NOISE


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_installation_is_small(backend: str, say: Callable[[str], None]) -> None:
    found = packages.size_mb(packages.agent(backend))
    say(f"{backend}: {found:.0f} MB installed")
    assert found <= MAX_INSTALLED_MB[backend]
