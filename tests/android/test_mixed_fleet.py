"""Devices in Java and in Python in one run, over Mosquitto."""

from contextlib import closing
from pathlib import Path

import pytest
import torch
from tests.android import class_means
from tests.android.classes import with_backends
from tests.android.java_fleet import JavaFleet, model_hashes
from tests.edge.backends.conftest import unpacked_wheel
from tools.bench.parts.real_fleet import WITH_EXECUTORCH, RealFleet, wait_until
from torch import nn

from sedge_export import export

pytestmark = pytest.mark.fleet

DEVICES = ("dev-1", "dev-2", "dev-3", "dev-4")
RUN = """
strategy = "{strategy}"
num_rounds = 3
min_train_devices = 4
min_available_devices = 4
deadline_s = 120
options = {{ {options} }}
[training]
local_epochs = 3
learning_rate = {rate}
{training}
[codec]
values = "{values}"
fraction = 0.2
"""
# Between them: patches, steps and error feedback; kept and frozen tensors, phases; corrections.
RUNS = {
    "fedobp": ("quantile = 0.95", "momentum = 0.5\nprox = 0.01", "bf16"),
    "fedrep": ("", 'optimizer = "adamw"\nweight_decay = 0.01\nclip_norm = 50.0', "int4"),
    "scaffold": ("", "", "fp32"),
}


def global_models(
    fleet: RealFleet, java: JavaFleet, bundle: Path, text: str, in_java: int, script: str = ""
) -> list[bytes]:
    """The hash of each round's global model, with so many devices in Java.

    With ``script``, which takes the place of ``sedge-edge``, those in Python train with ExecuTorch.
    """
    fleet.start_cloud()
    for number, device in enumerate(DEVICES):
        home = java.add(device, seed=number)
        if number < in_java:
            java.start(device)
            continue
        if script:
            with (home / "edge.toml").open("a") as config:
                config.write('\n[backend]\nname = "executorch"\n')
        fleet.start_agent(device, script=script)
    fleet.start_run(bundle, text)
    wait_until(fleet.finished, 120, "the run ends")
    assert [len(summary.devices) for summary in fleet.rounds()] == [4] * 4
    return model_hashes(fleet)


@pytest.mark.parametrize("strategy", RUNS)
def test_a_mixed_fleet_ends_where_one_in_python_does(
    fleet: RealFleet,
    class_path: str,
    means: Path,
    tmp_path_factory: pytest.TempPathFactory,
    strategy: str,
) -> None:
    """Round for round the same global model, to the last byte, by a trainer in Java and ONNX Runtime."""
    options, training, values = RUNS[strategy]
    text = RUN.format(
        strategy=strategy, options=options, rate=0.1, training=training, values=values
    )
    mixed = global_models(fleet, JavaFleet(fleet, class_path), means, text, in_java=2)
    fleet.close()
    with closing(RealFleet(tmp_path_factory.mktemp("alike"))) as alike:
        single = global_models(alike, JavaFleet(alike, class_path), means, text, in_java=0)
    assert mixed == single
    assert len(set(mixed)) == 4  # the last one is evaluated


def test_a_mixed_fleet_on_one_pte_ends_where_one_in_python_does(
    fleet: RealFleet, class_path: str, jni_library: Path, tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:  # fmt: skip
    """ExecuTorch by JNI, and by Python: a model with running statistics, two linear layers and dropout."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(class_means.F, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(32, class_means.C),
    )  # fmt: skip
    export(
        model, torch.rand(16, class_means.F) * 15, batch_size=16, name="pte", num_classes=class_means.C,
        folder=tmp_path / "pte", backends=("executorch",),
    )  # fmt: skip
    options = [f"-Dsedge.executorch={jni_library}"]
    backend = "org.sedge.executorch.JvmExecutorch"
    script = WITH_EXECUTORCH.format(folder=str(unpacked_wheel()))
    training = 'optimizer = "adam"\noptimizer_state = "keep"'
    text = RUN.format(
        strategy="fedobp", options="quantile = 0.95", rate=0.01, training=training, values="bf16"
    )
    found: list[list[bytes]] = []
    for in_java in (2, 0):
        with closing(fleet if in_java else RealFleet(tmp_path_factory.mktemp("alike"))) as own:
            java = JavaFleet(own, with_backends(class_path), backend, options)
            found.append(global_models(own, java, tmp_path / "pte", text, in_java, script))
    assert found[0] == found[1]
    assert len(set(found[0])) == 4
