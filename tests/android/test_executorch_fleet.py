"""A phone's job, on a JVM, and an agent in Python train the same .pte in one run."""

import json
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from tests.android.classes import with_backends
from tests.android.java import JAVA
from tests.edge.backends.conftest import unpacked_wheel
from tests.edge.java_core import HEAD_BYTES
from tools.bench.parts.real_fleet import WITH_EXECUTORCH, RealFleet, wait_until

from sedge_edge.backends import open_trainer
from sedge_emulate.data.datasets import digits
from sedge_export.exporter import export
from sedge_export.models import mlp
from sedge_protocol.wire.bundle import load

pytestmark = pytest.mark.fleet

RUN = """\
strategy = "fedobp"
num_rounds = 3
min_train_devices = 2
min_available_devices = 2
[training]
local_epochs = 5
learning_rate = 0.01
optimizer = "adam"
"""
# A round in the log of the phone: the metric before and after, bytes both ways, and no reason.
ROUND = re.compile(r"^round (\d) of run: (0\.\d+) (0\.\d+) (\d+) (\d+) $", re.MULTILINE)


def start_phone(fleet: RealFleet, join_text: str, class_path: str, library: Path) -> None:
    """Start a phone's jobs, with stand-ins for Android's classes."""
    private = fleet.folder / "private"
    private.mkdir()
    data = private / "examples.npz"
    np.savez(data, x=digits().inputs[:400], y=digits().targets[:400])
    given = (f"-Dsedge.executorch={library}", f"-Dsedge.folder={private}")
    words = ["org.sedge.android.RunJobs", join_text, str(data)]
    fleet.start("phone-1", [*JAVA, *given, "-cp", with_backends(class_path), *words])


def test_a_phone_and_an_agent_in_python_train_together(
    fleet: RealFleet, class_path: str, library: Path, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    export(
        mlp(64, 32, 10), torch.randn(16, 1, 8, 8), batch_size=16, name="digits", num_classes=10,
        folder=tmp_path / "digits", backends=("executorch",),
    )  # fmt: skip
    fleet.start_cloud()
    issued = fleet.cloud("device", "add", "phone-1", "--out", str(tmp_path / "phone-1"), "--join")
    fleet.add_device("pi-1", 2, examples=400)  # and the broker reads its passwords
    start_phone(fleet, issued.splitlines()[-1], class_path, library)
    with (fleet.folder / "pi-1" / "edge.toml").open("a") as config:
        config.write('\n[backend]\nname = "executorch"\n')
    fleet.start_agent("pi-1", script=WITH_EXECUTORCH.format(folder=str(unpacked_wheel())))
    fleet.start_run(tmp_path / "digits", RUN)
    wait_until(fleet.finished, 120, "the run ends")
    for summary in fleet.rounds():
        assert [device.device for device in summary.devices] == ["phone-1", "pi-1"]
    assert all(device.after > 0.8 for device in fleet.rounds()[-1].devices)
    so_far = len(fleet.log("phone-1"))  # it may have had nothing to do between two rounds, too
    wait_until(lambda: "Nothing to do" in fleet.log("phone-1")[so_far:], 60, "its job ends")
    log = fleet.log("phone-1")
    assert "The coordinator did not answer; this phone tries again in its next job." in log
    assert "foreground: Round 1 of run" in log and "notification: Round 2 of run" in log
    newest = ROUND.search(log[log.index("Nothing to do", so_far) :])
    assert newest is not None
    assert all(int(newest[group]) > 100 for group in (4, 5))
    (state,) = (fleet.folder / "private").glob("sedge/state-*")
    journal = msgspec.msgpack.decode((state / "journal").read_bytes()[HEAD_BYTES:])
    theta = np.fromfile(state / "blobs" / journal["runs"]["run"]["model"].hex(), np.float32)
    trainer = open_trainer(load(tmp_path / "digits")[0], "executorch", 1)
    (expected,) = trainer.predictor(theta)(digits().inputs[:1])
    assert log.count("predicts nothing: ") == log.count(
        "expected a run with a model, but none has arrived"
    )
    said = re.findall(r"^predicts (\[.*\]) true$", log, re.MULTILINE)[-1]
    np.testing.assert_array_equal(np.float32(json.loads(said)), expected)
