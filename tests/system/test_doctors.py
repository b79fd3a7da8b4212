"""Both doctors on a real broker: what each finds, and that neither disturbs the process that runs."""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.bench.parts.real_fleet import RealFleet, wait_until

from sedge_cloud.admin import doctor as cloud_doctor
from sedge_edge import doctor as edge_doctor
from sedge_edge import question

pytestmark = pytest.mark.fleet


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """A broker that can be told to reload, a coordinator, and an agent that runs."""
    fleet = RealFleet(tmp_path_factory.mktemp("doctors"))
    fleet.start_cloud()
    for seed, device in enumerate(("pi-1", "pi-2", "pi-3")):
        fleet.add_device(device, seed, examples=20)
    fleet.start_agent("pi-1")
    wait_until(lambda: "welcomed" in fleet.log("pi-1"), 20, "pi-1 is welcomed")
    yield fleet
    fleet.close()


def problems(module: object, config: Path) -> list[str]:
    """What a doctor complains of, one line each."""
    found: list[str] = []

    def tell(good: bool, text: str) -> None:
        assert "\n" not in text
        if not good:
            found.append(text)

    healthy = module.examine(config, tell)  # type: ignore[attr-defined]
    assert healthy is not found
    return found


def edge(fleet: RealFleet, device: str) -> list[str]:
    return problems(edge_doctor, fleet.folder / device / "edge.toml")


def cloud(fleet: RealFleet) -> list[str]:
    return problems(cloud_doctor, fleet.folder / "cloud.toml")


def edited(fleet: RealFleet, device: str, old: str, new: str) -> Path:
    folder = fleet.folder / f"{device}-edited"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(fleet.folder / device, folder)
    text = (folder / "edge.toml").read_text()
    assert old in text
    (folder / "edge.toml").write_text(text.replace(old, new))
    return folder / "edge.toml"


def test_neither_disturbs_the_processes_that_run(fleet: RealFleet) -> None:
    before = fleet.log("pi-1"), fleet.log("cloud")
    assert edge(fleet, "pi-1") == []
    assert cloud(fleet) == []
    assert edge(fleet, "pi-2") == []  # which has never run, and is not taken for online
    assert (fleet.log("pi-1"), fleet.log("cloud")) == before
    assert fleet.processes["pi-1"].poll() is None


def test_a_wrong_fleet(fleet: RealFleet) -> None:
    (found,) = problems(edge_doctor, edited(fleet, "pi-2", 'fleet = "test"', 'fleet = "tset"'))
    assert found.startswith("broker: the broker accepts pi-2, but not in fleet 'tset': set `fleet`")


def test_a_clock_that_is_behind(fleet: RealFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    yesterday = time.time() - 86400
    monkeypatch.setattr("sedge_edge.question.time.time", lambda: yesterday)
    (found,) = edge(fleet, "pi-2")
    assert "the coordinator's said" in found and found.endswith("timedatectl set-ntp true")


def test_a_unit_that_cannot_write(fleet: RealFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_doctor, "SERVICE_CONFIG", fleet.folder)
    (found,) = cloud(fleet)
    assert (
        found.startswith("unit: ")
        and "expected /var/lib/sedge-cloud, the only folder that sedge-cl" in found
    )


def test_no_coordinator(fleet: RealFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(question, "ANSWER_S", 1.0)
    fleet.processes["cloud"].send_signal(signal.SIGSTOP)
    (found,) = edge(fleet, "pi-2")
    fleet.processes["cloud"].send_signal(signal.SIGCONT)
    assert "no coordinator answers pi-2: `sedge-cloud serve` is not running" in found


def test_passwords_that_the_broker_has_not_read(fleet: RealFleet) -> None:
    fleet.cloud("device", "add", "pi-4", "--out", str(fleet.folder / "pi-4"))
    shutil.copy(fleet.folder / "pi-1" / "train.npz", fleet.folder / "pi-4")
    (found,) = edge(fleet, "pi-4")
    assert "refused 'pi-4': Not authorized" in found and "`sedge-cloud doctor` on the coor" in found
    (found,) = cloud(fleet)
    assert found.startswith(f"passwords: {fleet.url} refuses pi-4: the broker has not reread ")
    assert found.endswith("broker-passwords: pkill -HUP mosquitto")
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    wait_until(lambda: not cloud(fleet), 30, "the broker has read them")


def test_revoked(fleet: RealFleet) -> None:
    """Told while it is still let in; then cut off, at once, and let in again when it is issued anew."""
    fleet.cloud("device", "revoke", "pi-3")  # without a reload
    wait_until(lambda: "revoked" in "".join(edge(fleet, "pi-3")), 30, "it has read that")
    (found,) = edge(fleet, "pi-3")
    assert (
        "pi-3 is revoked: run `sedge-cloud device reissue pi-3` on the coordinator, then copy"
        in found
    )
    (found,) = cloud(fleet)
    assert found.startswith(f"passwords: {fleet.url} still lets in pi-3, which is revoked: ")
    config = fleet.folder / "cloud.toml"
    reload = f'reload = "kill -HUP {fleet.processes["broker"].pid}"\n'
    config.write_text(config.read_text() + reload)
    assert "The broker has ended its connection" in fleet.cloud("device", "revoke", "pi-1")
    wait_until(lambda: "refused 'pi-1': Not authorized" in fleet.log("pi-1"), 30, "it is cut off")
    assert "the coordinator refuses: revoked: this device no longer takes part" in fleet.log("pi-1")
    assert cloud(fleet) == []
    fleet.stop("pi-1")
    new = fleet.folder / "pi-1-again"
    fleet.cloud("device", "reissue", "pi-1", "--out", str(new))
    shutil.copy(new / "secret", fleet.folder / "pi-1" / "secret")
    wait_until(lambda: not edge(fleet, "pi-1"), 30, "the new secret is let in")
