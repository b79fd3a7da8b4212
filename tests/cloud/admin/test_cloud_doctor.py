"""The doctor finds what is wrong, says it in one line each, and goes on to the next thing."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from msgspec import msgpack
from tests.cloud.helper import CONFIG, as_nobody, make_bundle
from tests.cloud.stores import in_a_folder, open_store
from tests.fleet import always
from tools.bench.parts.blob_server import serving
from tools.bench.parts.real_fleet import RealFleet, free_port, wait_until

from sedge_cloud.admin import doctor
from sedge_cloud.admin.doctor import examine
from sedge_cloud.admin.runs import start_run
from sedge_cloud.admin.templates import write_first_files
from sedge_cloud.broker.accounts import add_passwords
from sedge_protocol.wire.keys import DeviceKeys
from sedge_protocol.wire.topics import ITSELF, down

Edit = Callable[[Path], object]


class Findings(NamedTuple):
    """What the doctor said, good and bad, by what it looked at."""

    good: dict[str, str]
    bad: dict[str, str]


def examined(path: Path) -> Findings:
    """The doctor's findings; it is healthy exactly when none is bad, and each is one line."""
    found = Findings({}, {})

    def tell(good: bool, text: str) -> None:
        assert len(text.splitlines()) == 1
        what, _, rest = text.partition(": ")
        (found.good if good else found.bad)[what] = rest

    healthy = examine(path, tell)
    assert healthy == (not found.bad)
    return found


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    fleet = RealFleet(tmp_path_factory.mktemp("doctor"))
    yield fleet
    fleet.close()


@pytest.fixture
def home(fleet: RealFleet, tmp_path: Path) -> Path:
    """A coordinator's folder for that broker, free to be spoiled."""
    for name in ("cloud.toml", "coordinator-password", "broker-passwords", "broker-acl"):
        shutil.copy(fleet.folder / name, tmp_path / name)
    return tmp_path


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A coordinator's folder without a broker: what is not about the broker is found at once."""
    write_first_files(tmp_path, "test", f"mqtt://127.0.0.1:{free_port()}")
    return tmp_path


def test_all_is_well(fleet: RealFleet, home: Path) -> None:
    store = open_store(home / "state")
    store.add_device("pi-1", b"s" * 32)
    store.add_device("pi-2", b"s" * 32)
    store.revoke_device("pi-2")
    # What the coordinator has written, and what the broker reads.
    for folder in (home, fleet.folder):
        add_passwords(folder / "broker-passwords", {"pi-1": DeviceKeys.of(b"s" * 32).password})
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    for name in ("one", "two"):
        start_run(store, name, make_bundle(home / "bundle"), CONFIG)
    store.set_status("one", "stopped")
    store.close()
    found = examined(home / "cloud.toml")
    assert set(found.good) == {
        "configuration", "disk", "store", "clock", "unit", "broker", "access", "messages", "passwords",
        "coordinator",
    }  # fmt: skip
    assert found.good["store"] == "sound; 1 device, 1 of 2 runs running"
    assert found.good["broker"].endswith("lets the coordinator in")
    assert found.good["coordinator"] == "sedge-cloud serve is not running here"


def test_a_coordinator_at_work_is_asked_whether_it_hears(
    fleet: RealFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    (fleet.folder / "cloud.log").unlink(missing_ok=True)  # of its life on another store
    fleet.start_cloud()
    wait_until(lambda: "connected" in fleet.log("cloud"), 20, "the coordinator is connected")
    config = fleet.folder / "cloud.toml"
    assert examined(config).good["coordinator"] == "sedge-cloud serve is running and answers"
    assert "the broker closed" not in fleet.log("cloud")  # nobody pushed it out
    monkeypatch.setattr(doctor, "ANSWER_S", 1.0)
    fleet.processes["cloud"].send_signal(signal.SIGSTOP)
    found = examined(config)
    fleet.processes["cloud"].send_signal(signal.SIGCONT)
    fleet.stop("cloud")
    assert set(found.bad) == {"coordinator"}
    assert f"nothing came back on {down('test', ITSELF)}" in found.bad["coordinator"]


def test_a_wrong_password(home: Path) -> None:
    (home / "coordinator-password").write_text("wrong\n")
    found = examined(home / "cloud.toml")
    assert set(found.bad) == {"broker"}
    assert "refused 'coordinator-test': Not authorized" in found.bad["broker"]


def test_a_user_without_rights(home: Path) -> None:
    """The password is right, but the ACL keeps the fleet's topics for another coordinator."""
    text = (home / "cloud.toml").read_text()
    (home / "cloud.toml").write_text(text.replace('fleet = "test"', 'fleet = "other"'))
    assert set(examined(home / "cloud.toml").bad) == {"broker", "access"}


def change(old: str, new: str) -> Edit:
    return lambda home: (home / "cloud.toml").write_text(
        (home / "cloud.toml").read_text().replace(old, new)
    )


def damage(home: Path) -> None:
    (home / "state").mkdir()
    (home / "state" / "sedge.sqlite").write_bytes(b"rubbish " * 1000)


def first_version(home: Path) -> None:
    lines = (home / "broker-acl").read_text().splitlines()
    kept = [line for line in lines if "/+/%u/" not in line and "/shard/" not in line]
    (home / "broker-acl").write_text("\n".join(kept) + "\n")


def without_bundle(home: Path) -> None:
    """A run whose bundle has rotted away."""
    store = open_store(home / "state")
    start_run(store, "run", make_bundle(home / "bundle"), CONFIG)
    name = store.runs()[0].bundle.hex()
    (home / "state" / "blobs" / name).unlink()
    store.close()


def unreadable_run(home: Path) -> None:
    store = open_store(home / "state")
    start_run(store, "run", make_bundle(home / "bundle"), CONFIG)
    store._db.execute("UPDATE runs SET config = x'81a17801'")
    store.close()


def lost_strategy(home: Path) -> None:
    """A run by a class of the user's own that is not there any more."""
    store = open_store(home / "state")
    start_run(store, "first", make_bundle(home / "bundle"), CONFIG)
    config = msgspec.structs.replace(CONFIG, strategy="tests.cloud.given:Gone")
    row = msgspec.structs.replace(store.runs()[0], run="run", config=msgpack.encode(config))
    store.add_run(row)
    store.close()


PROBLEMS: dict[str, tuple[Edit, str, str]] = {
    "no such file": (lambda home: (home / "cloud.toml").unlink(), "configuration", "No such file"),
    "no password file": (
        lambda home: (home / "coordinator-password").unlink(),
        "broker",
        "broker.password_file: found",
    ),
    "no certificates": (change("mqtt://", "mqtts://"), "broker", "cannot reach mqtts://"),
    "bad authority": (change("[broker]", '[broker]\nca_file = "none.crt"'), "broker", ""),
    "damaged": (damage, "store", "file is not a database"),
    "bundle gone": (without_bundle, "store", "No such file"),
    "run of another version": (unreadable_run, "store", "run run: its row cannot be read"),
    "strategy gone": (lost_strategy, "store", "strategy: found 'tests.cloud.given:Gone'"),
    "access list of version 1": (
        first_version, "access", "restart Mosquitto: pattern write sedge/1/test/device/+/%u/up; pattern ",
    ),
    "state is a file": (lambda home: (home / "state").write_text(""), "disk", "File exists"),
}  # fmt: skip


@in_a_folder
@pytest.mark.parametrize("name", PROBLEMS)
def test_a_problem_is_found(alone: Path, name: str) -> None:
    edit, where, text = PROBLEMS[name]
    edit(alone)
    found = examined(alone / "cloud.toml")
    assert where in found.bad and text in found.bad[where]
    if where != "configuration":  # and the rest was looked at all the same
        assert set(found.good) | set(found.bad) == {
            "configuration", "disk", "store", "clock", "unit", "broker", "access"
        }  # fmt: skip
        assert "clock" in found.good and "configuration" in found.good


@in_a_folder
@pytest.mark.parametrize(
    ("manner", "bad", "says"),
    [
        ("ranges", False, "serves the right bytes"),
        ("whole", False, "serves the right bytes, but ignores ranges"),
        ("lies", True, "sends bytes that differ from the store's"),
        ("larger", True, "bytes, expected"),
        ("fails", True, "answered 503"),
    ],
)
def test_where_devices_find_blobs(alone: Path, manner: str, bad: bool, says: str) -> None:
    folder, config = alone / "state", alone / "cloud.toml"
    with serving(manner) as server:
        config.write_text(config.read_text() + f'[blobs]\npublic = "{server.url}"\n')
        assert "no run yet" in examined(config).good["public"]
        store = open_store(folder)
        start_run(store, "run", make_bundle(alone / "bundle"), CONFIG)
        store.close()
        server.blobs |= {path.name: path.read_bytes() for path in (folder / "blobs").iterdir()}
        found = examined(config)
    assert says in (found.bad if bad else found.good)["public"]


def test_a_state_folder_that_cannot_be_written() -> None:
    with as_nobody() as folder:
        home = folder / "home"
        write_first_files(home, "test", f"mqtt://127.0.0.1:{free_port()}")
        (home / "state").mkdir(0o500)
        found = examined(home / "cloud.toml")
        assert "state" in found.bad["store"]
        (home / "state").rmdir()
        home.chmod(0o500)
        found = examined(home / "cloud.toml")
        assert all("Permission denied" in found.bad[what] for what in ("disk", "store"))
        home.chmod(0o700)


def test_a_disk_that_is_almost_full(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(alone)._replace(free=100_000_000)
    monkeypatch.setattr("sedge_cloud.admin.doctor.shutil.disk_usage", always(usage))
    found = examined(alone / "cloud.toml")
    assert found.bad["disk"].endswith("100 MB free, expected at least 1 GB")


def test_a_clock_that_was_never_set(alone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sedge_cloud.admin.doctor.time.time", lambda: 3600.0)
    assert "the clock says Thu Jan  1" in examined(alone / "cloud.toml").bad["clock"]
