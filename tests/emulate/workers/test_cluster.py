"""Workers that have no files of their own, and an emulation on a Ray cluster one of whose hosts is lost."""

import subprocess
import sys
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.emulate.workers.fleet_of_four import OrderMaker
from tests.fleet import begin_emulation

from sedge_edge.jobs.job import Job, Kept
from sedge_emulate.data.shares import Shares
from sedge_emulate.workers import cluster
from sedge_emulate.workers.cluster import Placed, versions_of
from sedge_emulate.workers.job_disk import Carried
from sedge_emulate.workers.setup import WorkerSetup
from sedge_emulate.workers.worker import Finished, Request, Worker
from sedge_protocol.errors import ConfigError
from sedge_protocol.wire.bundle import load
from sedge_protocol.wire.work import Codec


def test_what_is_carried_gives_what_a_disk_gives(setup: WorkerSetup, tmp_path: Path) -> None:
    """Two rounds of a device, the second with the residual that the first left."""
    here, there = OrderMaker(setup, tmp_path / "here"), OrderMaker(setup, tmp_path / "there")
    elsewhere = Worker(replace(setup, data=Path("none"), bundle=Path("none")),
                       Shares.open(setup.data), load(setup.bundle)[0])  # fmt: skip
    kept = Kept()
    for number in (1, 2):
        codec = Codec(fraction=0.1)
        job = Job(here.order(number, codec=codec), kept)
        there.order(number, codec=codec)
        request = Request(0, job, here.home, bytes([number]) * 32, 1.0)
        (on_disk,) = Worker(setup).perform([request]).answers
        sent = replace(request, home=there.home)
        files = [(name, path) for name, path in cluster._files_of(sent) if path.exists()]
        carried = Carried({name: np.fromfile(path, np.uint8) for name, path in files})
        answers = elsewhere.perform([replace(sent, home=Path("none"), carried=carried)])
        assert answers.answers == [on_disk]
        cluster._keep(there.home, answers, carried.written)
        assert isinstance(on_disk, Finished)
        kept = on_disk.outcome.kept
        assert kept.residual is not None
    for folder in ("vectors", "shared"):
        files_here = {path.name: path.read_bytes() for path in (here.home / folder).iterdir()}
        assert files_here
        assert {p.name: p.read_bytes() for p in (there.home / folder).iterdir()} == files_here


def test_a_host_that_may_compute_other_bits_is_refused(setup: WorkerSetup) -> None:
    bundle, _ = load(setup.bundle)
    for name in ("numpy", "torch", "machine", "model.factory"):
        versions = {**versions_of(setup), name: "other"}
        placed = Placed(setup, Shares.open(setup.data), bundle, versions)
        with pytest.raises(ConfigError, match=f"{name}: found .* on .*, expected other, as on"):
            cluster._require_same(placed)


FLEET = """\
devices = 12
[data]
dataset = "digits"
examples = 600
alpha = 1.0
[rounds]
num_rounds = 12
[trainer]
backend = "onnx"
[[strategies]]
name = "fedobp"
options = { quantile = 0.99 }
"""


@pytest.fixture
def two_hosts(monkeypatch: pytest.MonkeyPatch) -> Generator[Any]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    host: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    host["include_dashboard"] = False
    made: Any = Cluster(initialize_head=True, head_node_args=host)
    try:
        yield made, made.add_node(**host)
    finally:
        made.shutdown()


def working_below(raylet: int) -> list[str]:
    """The command lines of Ray's workers of one host."""
    children = Path(f"/proc/{raylet}/task/{raylet}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    return [line for line in lines if line.startswith("ray::")]


@pytest.mark.slow
def test_a_host_lost_in_mid_run_changes_no_byte(tmp_path: Path, two_hosts: Any) -> None:
    nodes, lost = two_hosts
    raylet = lost.all_processes["raylet"][0].process.pid
    said: list[str] = []
    with begin_emulation(tmp_path / "ray", FLEET, "--ray", nodes.address) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if "round 2/" in line:
                assert working_below(raylet), "the second host has no part in it"
                nodes.remove_node(lost, allow_graceful=False)
    assert process.returncode == 0, "".join(said)
    expected = "is starting its workers; on a busy host this takes a minute"
    assert f"Ray ({nodes.address}) {expected}\n" in said
    assert sum("round 12/" in line for line in said) == 1
    with begin_emulation(tmp_path / "local", FLEET) as process:
        process.communicate()
    assert process.returncode == 0
    for model in (tmp_path / "local/out/models").iterdir():
        assert (tmp_path / "ray/out/models" / model.name).read_bytes() == model.read_bytes()


OTHER = """
import sys, ray
from sedge_cloud.compute import connected_ray
ray.__version__ = "2.0.0"
try:
    connected_ray(sys.argv[1], "--ray", 2)
except Exception as exc:
    print(type(exc).__name__, exc)
"""


@pytest.mark.slow
def test_a_cluster_of_another_version_is_refused_in_one_line(two_hosts: Any) -> None:
    nodes, _ = two_hosts
    command = [sys.executable, "-c", OTHER, nodes.address]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (line,) = said.splitlines()
    assert line.startswith(f"ConfigError --ray: found '{nodes.address}', expected a Ray cluster")
    assert "was started with: Ray: 2.0.0 Python: " in line
