"""What an operator does: runs begin or not at all, devices are enrolled whole, passwords really work."""

import base64
import hashlib
import os
import signal
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud import given
from tests.cloud.helper import (
    AXES,
    CONFIG,
    LAYOUT,
    as_nobody,
    make_bundle,
    make_width,
    mode,
    open_store,
    random_theta,
)
from tests.system.harness import RealFleet, wait_until

from sedge_cloud import administration
from sedge_cloud.administration import add_device, add_password, initialise, start_run, stop_run
from sedge_cloud.config import (
    BroadcastConfig,
    BrokerConfig,
    CloudConfig,
    RobustConfig,
    TrainingConfig,
    broker_settings,
    load_cloud,
)
from sedge_cloud.ledger import Ledger, Run, RunState
from sedge_cloud.robust import Rule
from sedge_cloud.store import Store
from sedge_cloud.strategy import Assignment, State
from sedge_edge.config import load_config
from sedge_protocol.codec import ValueCoding
from sedge_protocol.errors import CodecError, ConfigError, LinkError, LocalError, StorageError
from sedge_protocol.keys import DeviceKeys, parse_secret
from sedge_protocol.layout import Layout, Role, Theta
from sedge_protocol.mqtt import BrokerSettings, probe
from sedge_protocol.topics import all_up, down

CLOUD = CloudConfig("bench", broker=BrokerConfig("mqtt://broker.example:1883"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return open_store(tmp_path / "state")


def test_a_run_is_stored_whole(store: Store, tmp_path: Path) -> None:
    start_run(store, "first-run", make_bundle(tmp_path / "bundle"), CONFIG)
    (row,) = store.runs()
    run = Run(row, store)
    assert (run.name, run.status, run.config) == ("first-run", "running", CONFIG)
    assert run.manifest.layout == LAYOUT
    state = Ledger(store).state(run)
    assert np.array_equal(state.theta, random_theta(1)) and np.array_equal(
        state.initial, state.theta
    )


@pytest.mark.parametrize("name", ["", "Run", "run_1", "-run", "a" * 49, "run\n", "rün", "../run"])
def test_a_name_that_no_run_may_have(store: Store, tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="run: found "):
        start_run(store, name, make_bundle(tmp_path / "bundle"), CONFIG)
    assert store.runs() == []


def test_a_name_that_is_taken(store: Store, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    start_run(store, "run", bundle, CONFIG)
    before = store.runs()
    with pytest.raises(ConfigError, match="run: found 'run', expected a name that no run has yet"):
        start_run(store, "run", bundle, CONFIG)
    assert store.runs() == before


def test_options_that_do_not_fit_the_model(store: Store, tmp_path: Path) -> None:
    """They would otherwise end the coordinator when it plans the first round."""
    bundle = make_bundle(tmp_path / "bundle")
    options = {"classifier_only": ["head.weight"]}
    wrong = msgspec.structs.replace(CONFIG, strategy="fedobp", options=options)
    with pytest.raises(
        ConfigError, match=r"classifier_only: found \['head.weight'\], expected names"
    ):
        start_run(store, "run", bundle, wrong)
    assert store.runs() == []
    right = msgspec.structs.replace(wrong, options={"classifier_only": ["head.bias"]})
    start_run(store, "run", bundle, right)


def test_a_bundle_that_is_none(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="bundle"):
        start_run(store, "run", tmp_path / "none", CONFIG)
    bundle = make_bundle(tmp_path / "bundle")
    (bundle / "train.onnx").write_bytes(b"changed")
    with pytest.raises(CodecError, match="sha256"):
        start_run(store, "run", bundle, CONFIG)
    assert store.runs() == []


def test_a_strategy_that_cannot_plan_for_this_model(store: Store, tmp_path: Path) -> None:
    """It is asked before the run is there: nobody wants to hear of it from the log."""
    given.clear()
    given.PLANS[""] = lambda state, memory, training: Assignment(width=len(state.widths))
    config = msgspec.structs.replace(CONFIG, strategy=given.NAME)
    try:
        with pytest.raises(ConfigError, match=r"strategy: .*width 1, the run has 1 bundles"):
            start_run(store, "run", make_bundle(tmp_path / "bundle"), config)
    finally:
        given.clear()
    assert store.runs() == []


def test_a_model_whose_orders_no_frame_holds(store: Store, tmp_path: Path) -> None:
    names = [f"{i:04}".ljust(230, "x") + ".weight" for i in range(1200)]
    layout = Layout.of([(name, (2,), Role.PARAMETER) for name in [*names, "head.weight"]])
    config = msgspec.structs.replace(CONFIG, strategy="lg_fedavg")
    said = (
        r"strategy: found 'lg_fedavg', .*, a new device: an order of \d+ bytes, of which keep takes"
    )
    with pytest.raises(ConfigError, match=said):
        start_run(store, "large", make_bundle(tmp_path / "bundle", layout), config)
    assert store.runs() == []


def test_a_frozen_tensor_that_is_not_there(store: Store, tmp_path: Path) -> None:
    """Every device would decline its order."""
    bundle = make_bundle(tmp_path / "bundle")
    training = TrainingConfig(freeze=("body.weight", "head.bais"))
    wrong = msgspec.structs.replace(CONFIG, training=training)
    expected = r"training.freeze: found 'head.bais', expected one of .*'head.bias'"
    with pytest.raises(ConfigError, match=expected):
        start_run(store, "run", bundle, wrong)
    assert store.runs() == []
    training = TrainingConfig(freeze=("body.weight", "head.bias"))
    start_run(store, "run", bundle, msgspec.structs.replace(CONFIG, training=training))


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
def test_krum_is_for_one_width(store: Store, tmp_path: Path, rule: Rule) -> None:
    """The run would fail when its first round closes."""
    whole, half = make_bundle(tmp_path / "whole", axes=AXES), make_width(tmp_path / "half", 0.5)
    config = msgspec.structs.replace(CONFIG, strategy="heterofl", robust=RobustConfig(rule=rule))
    with pytest.raises(ConfigError, match=f"robust.rule: found '{rule}', expected a rule that"):
        start_run(store, "run", whole, config, [half])
    assert store.runs() == []
    start_run(store, "one-width", whole, config)
    clipped = msgspec.structs.replace(config, robust=RobustConfig())
    start_run(store, "clipped", whole, clipped, [half])


def test_a_run_begins_with_the_model_that_its_strategy_makes(store: Store, tmp_path: Path) -> None:
    """Of the bundle's own nothing is left."""

    def init(layout: Layout, theta: Theta) -> State:
        return State(layout, theta * np.float32(2), initial=np.zeros_like(theta))

    given.INITS.append(init)
    config = msgspec.structs.replace(CONFIG, strategy=given.NAME)
    try:
        start_run(store, "run", make_bundle(tmp_path / "bundle"), config)
    finally:
        given.clear()
    run = Run(store.runs()[0], store)
    state = Ledger(store).state(run)
    doubled = random_theta(1) * np.float32(2)
    assert state.theta.tobytes() == doubled.tobytes() and not state.initial.any()
    assert run.state.model_hash == hashlib.sha256(doubled.tobytes()).digest()


def test_a_strategy_that_begins_with_a_model_of_its_own_size(store: Store, tmp_path: Path) -> None:
    given.INITS.append(lambda layout, theta: State(layout, theta[:-1], initial=theta))
    config = msgspec.structs.replace(CONFIG, strategy=given.NAME)
    try:
        with pytest.raises(LocalError, match=r"State.theta: found float32 \(11999,\), expected"):
            start_run(store, "run", make_bundle(tmp_path / "bundle"), config)
    finally:
        given.clear()
    assert store.runs() == []


def test_a_first_model_that_is_not_finite(store: Store, tmp_path: Path) -> None:
    broken = np.full(LAYOUT.size, np.inf, np.float32)
    with pytest.raises(LocalError):
        start_run(store, "run", make_bundle(tmp_path / "bundle", init=broken), CONFIG)
    assert store.runs() == []


def test_runs_begin_with_the_exact_model(store: Store, tmp_path: Path) -> None:
    lossy = msgspec.structs.replace(CONFIG, broadcast=BroadcastConfig(ValueCoding.INT8))
    start_run(store, "run", make_bundle(tmp_path / "bundle"), lossy)
    state = msgspec.msgpack.decode(store.runs()[0].state, type=RunState)
    theta = Ledger(store).theta(state.model, LAYOUT.size)
    assert theta.tobytes() == random_theta(1).tobytes()
    assert state.model_hash == hashlib.sha256(theta.tobytes()).digest()


def test_only_a_running_run_is_stopped(store: Store, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"run: found 'run \(no such run\)', expected the name of a"
    ):
        stop_run(store, "run")
    start_run(store, "run", make_bundle(tmp_path / "bundle"), CONFIG)
    stop_run(store, "run")
    assert store.runs()[0].status == "stopped"
    with pytest.raises(ConfigError, match=r"run: found 'run \(stopped\)'"):
        stop_run(store, "run")


def test_a_device_gets_what_it_needs(store: Store, tmp_path: Path) -> None:
    folder = add_device(store, CLOUD, "pi-1", tmp_path / "deep" / "pi-1")
    assert folder == tmp_path / "deep" / "pi-1" and mode(folder) == 0o700
    assert {path.name: mode(path) for path in folder.iterdir()}["secret"] == 0o600
    assert {path.name for path in folder.iterdir()} == {"secret", "edge.toml"}
    secret = parse_secret((folder / "secret").read_text(), "")
    (row,) = store.devices()
    assert (row.device, row.secret, row.revoked) == ("pi-1", secret, False)
    edge = load_config(folder / "edge.toml")  # what the agent itself makes of it
    assert (edge.device, edge.fleet) == ("pi-1", "bench")
    assert edge.state_dir == folder / "state" and edge.secret_file == folder / "secret"
    settings = edge.broker_settings()
    assert (settings.url, settings.password) == (CLOUD.broker.url, DeviceKeys.of(secret).password)


def test_every_device_has_a_secret_of_its_own(store: Store, tmp_path: Path) -> None:
    for number in range(5):
        add_device(store, CLOUD, f"pi-{number}", tmp_path / str(number))
    assert len({row.secret for row in store.devices()}) == 5


def test_a_device_under_systemd(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = add_device(store, CLOUD, "pi-1", tmp_path / "pi-1", service=True)
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (folder / "secret").rename(credentials / "sedge-secret")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    edge = load_config(folder / "edge.toml")
    assert edge.state_dir == Path("/var/lib/sedge") and edge.keys()


@pytest.mark.parametrize(
    ("url", "device_url", "with_ca"),
    [
        ("mqtts://broker.example", None, True),
        ("mqtt://127.0.0.1", "mqtts://broker.example", True),
        ("mqtts://broker.example", "mqtt://gateway.example", False),
    ],
)
def test_the_authority_comes_along_where_there_is_tls(
    store: Store, tmp_path: Path, url: str, device_url: str | None, with_ca: bool
) -> None:
    authority = tmp_path / "etc" / "fleet-ca.crt"
    authority.parent.mkdir()
    authority.write_text("PEM")
    cloud = CloudConfig("bench", broker=BrokerConfig(url, device_url, ca_file=str(authority)))
    folder = add_device(store, cloud, "pi-1", tmp_path / "pi-1")
    settings = load_config(folder / "edge.toml").broker_settings()
    assert settings.url == (device_url or url)
    assert settings.ca_file == (str(folder / "ca.pem") if with_ca else None)
    assert (folder / "ca.pem").exists() == with_ca


@pytest.mark.parametrize("url", ["mqtts://broker.example", "mqtt://broker.example"])
def test_where_certificates_are_shown_a_device_is_told_of_its_own(
    store: Store, tmp_path: Path, url: str
) -> None:
    cloud = CloudConfig("bench", broker=BrokerConfig(url, cert_file="own.crt", key_file="own.key"))
    text = (add_device(store, cloud, "pi-1", tmp_path / "pi-1") / "edge.toml").read_text()
    is_told = "with CN=pi-1:" in text and '# cert_file = "device.pem"' in text
    assert is_told is url.startswith("mqtts")
    load_config(tmp_path / "pi-1" / "edge.toml")


@pytest.mark.parametrize("name", ['our "own".crt', "secret", "edge.toml", "b\udcfc.crt"])
def test_the_authority_may_have_any_name(store: Store, tmp_path: Path, name: str) -> None:
    authority = tmp_path / "etc" / name
    authority.parent.mkdir()
    authority.write_text("PEM")
    url = "mqtts://broker.example"
    cloud = CloudConfig("bench", broker=BrokerConfig(url, ca_file=str(authority)))
    folder = add_device(store, cloud, "pi-1", tmp_path / "pi-1")
    config = load_config(folder / "edge.toml")
    assert config.broker_settings().ca_file == str(folder / "ca.pem")
    assert (folder / "ca.pem").read_text() == "PEM"
    assert config.keys() == DeviceKeys.of(store.devices()[0].secret)


@pytest.mark.parametrize(
    "device", ["", "Pi", "pi_1", "-pi", "p" * 49, "pi\n", "a/b", "..", "pi 1", "+"]
)
def test_an_id_that_no_device_may_have(store: Store, tmp_path: Path, device: str) -> None:
    with pytest.raises(ConfigError, match="device: found "):
        add_device(store, CLOUD, device, tmp_path / "out")
    assert store.devices() == [] and not (tmp_path / "out").exists()


@pytest.mark.parametrize("device", ["coordinator-bench", "coordinator-home", "boss"])
def test_no_device_has_a_coordinators_account(store: Store, tmp_path: Path, device: str) -> None:
    """Its line in the password file would take the place of the coordinator's."""
    passwords = tmp_path / "passwords"
    add_password(passwords, device, "the coordinator's")
    before = passwords.read_text()
    broker = BrokerConfig("mqtt://h", username="boss", device_password_file=str(passwords))
    cloud = CloudConfig("bench", broker=broker)
    with pytest.raises(ConfigError, match=f"device: found '{device}', expected another id: 'boss'"):
        add_device(store, cloud, device, tmp_path / "out")
    assert store.devices() == [] and passwords.read_text() == before
    assert not (tmp_path / "out").exists()


def test_without_a_folder_it_is_the_devices_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert add_device(store, CLOUD, "pi-1", None) == Path("pi-1")
    assert (tmp_path / "pi-1" / "secret").exists()


def test_an_id_that_is_taken_changes_nothing(store: Store, tmp_path: Path) -> None:
    add_device(store, CLOUD, "pi-1", tmp_path / "one")
    before = store.devices()
    with pytest.raises(
        ConfigError, match="device: found 'pi-1', expected an id that is not enrolled"
    ):
        add_device(store, CLOUD, "pi-1", tmp_path / "two")
    store.revoke_device("pi-1")
    with pytest.raises(ConfigError, match="not enrolled"):  # the revoked stay revoked
        add_device(store, CLOUD, "pi-1", tmp_path / "two")
    assert not (tmp_path / "two").exists() and store.devices()[0].secret == before[0].secret


def test_a_folder_that_exists_is_left_alone(store: Store, tmp_path: Path) -> None:
    (tmp_path / "pi-1").mkdir()
    (tmp_path / "pi-1" / "secret").write_text("of another device")
    with pytest.raises(
        ConfigError, match=r"out: found .*pi-1', expected a folder that does not exist"
    ):
        add_device(store, CLOUD, "pi-1", tmp_path / "pi-1")
    assert (tmp_path / "pi-1" / "secret").read_text() == "of another device"
    assert store.devices() == []
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        add_device(store, CLOUD, "pi-1", tmp_path / "file" / "pi-1")


def test_an_error_leaves_nothing_and_can_be_repeated(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = tmp_path / "passwords"
    cloud = CloudConfig("bench", broker=BrokerConfig(device_password_file=str(passwords)))
    out = tmp_path / "pi-1"
    troubles: list[tuple[object, str]] = [
        (administration, "add_password"),
        (administration, "write_private"),
        (store, "add_device"),
    ]
    for owner, name in troubles:
        with monkeypatch.context() as patch:

            def fail(*args: object) -> None:
                raise StorageError("no space left")

            patch.setattr(owner, name, fail)
            with pytest.raises(StorageError, match="no space left"):
                add_device(store, cloud, "pi-1", out)
        assert store.devices() == [] and not out.exists()
    missing = CloudConfig("b", broker=BrokerConfig("mqtts://h", ca_file=str(tmp_path / "none.crt")))
    with pytest.raises(StorageError, match="No such file"):
        add_device(store, missing, "pi-1", out)
    assert store.devices() == [] and not out.exists()
    add_device(store, cloud, "pi-1", out)
    assert len(passwords.read_text().splitlines()) == 1  # in place of the one without a device


def test_a_password_line_is_what_mosquitto_passwd_writes(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    add_password(path, "pi-1", "pässword")
    user, _, coded = path.read_text().strip().partition(":")
    empty, kind, count, salt, digest = coded.split("$")
    assert (user, empty, kind) == ("pi-1", "", "7") and mode(path) == 0o600
    expected = hashlib.pbkdf2_hmac(
        "sha512", "pässword".encode(), base64.b64decode(salt), int(count)
    )
    assert base64.b64decode(digest) == expected and len(base64.b64decode(salt)) == 12


def test_only_the_users_own_line_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("# kept\npi-10:$7$x\npi-1:$7$old\n\nother:pi-1:$7$y")
    add_password(path, "pi-1", "new")
    lines = path.read_text().splitlines()
    assert lines[:-1] == ["# kept", "pi-10:$7$x", "", "other:pi-1:$7$y"]
    assert lines[-1].startswith("pi-1:$7$101$") and path.read_text().endswith("\n")
    assert [found.name for found in tmp_path.iterdir()] == ["passwords"]


def test_the_password_file_stays_readable_to_the_broker(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    path.write_text("other:$7$x\n")
    path.chmod(0o640)
    if os.getuid() == 0:
        os.chown(path, 1234, 5678)
    before = path.stat()
    add_password(path, "pi-1", "secret")
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (
        before.st_uid,
        before.st_gid,
        before.st_mode,
    )


def test_passwords_added_at_once_all_arrive(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    threads = [
        threading.Thread(target=add_password, args=(path, f"pi-{number}", "x"))
        for number in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    users = {line.partition(":")[0] for line in path.read_text().splitlines()}
    assert users == {f"pi-{number}" for number in range(20)}


def test_a_password_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"add a password to .*none/passwords: No such file"):
        add_password(tmp_path / "none" / "passwords", "pi-1", "x")
    with as_nobody() as folder:
        folder.chmod(0o500)
        with pytest.raises(StorageError, match="passwords: Permission denied"):
            add_password(folder / "passwords", "pi-1", "x")
        folder.chmod(0o700)


def test_a_first_configuration(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    initialise(folder, "home", "mqtt://192.168.1.10:2883")
    cloud = load_cloud(folder / "cloud.toml")
    assert (cloud.fleet, cloud.broker.url) == ("home", "mqtt://192.168.1.10:2883")
    assert cloud.state_dir == str(folder / "state")
    password = broker_settings(cloud).password
    assert password is not None and len(password) == 48
    for name in ("coordinator-password", "broker-passwords", "broker-acl"):
        assert mode(folder / name) == 0o600
    assert "listener 2883\n" in (folder / "mosquitto.conf").read_text()
    assert cloud.broker.device_password_file == str(folder / "broker-passwords")
    again = tomllib.loads((folder / "cloud.toml").read_text())
    with pytest.raises(
        ConfigError, match=r"folder: found .*fleet', expected a folder without a cloud"
    ):
        initialise(folder, "other", "mqtt://h:1")
    assert tomllib.loads((folder / "cloud.toml").read_text()) == again


@pytest.mark.parametrize(
    "url",
    [
        "mqtts://h:8883",
        "mqtt://h",
        "mqtt://h:x",
        "mqtt://h:0",
        "mqtt://h:65536",
        "mqtt://:1883",
        "mqtt://h:1883/",
        'mqtt://h"\nx = "y:1883',
        "h:1883",
        "",
    ],
)
def test_a_url_that_a_first_broker_cannot_have(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"url: found .* expected mqtt://host:port"):
        initialise(tmp_path / "fleet", "home", url)
    assert not (tmp_path / "fleet").exists()


def test_a_fleet_name_that_none_may_have(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fleet: found 'My Fleet'"):
        initialise(tmp_path / "fleet", "My Fleet", "mqtt://h:1883")
    assert not (tmp_path / "fleet").exists()


def test_a_folder_that_cannot_be_written() -> None:
    with as_nobody() as folder:
        (folder / "fleet").mkdir(0o500)
        with pytest.raises(StorageError, match=r"fleet.*: Permission denied") as caught:
            initialise(folder / "fleet", "home", "mqtt://h:1883")
        assert len(str(caught.value).splitlines()) == 1
        with pytest.raises(StorageError, match="Permission denied"):
            initialise(folder / "fleet" / "deeper", "home", "mqtt://h:1883")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFleet]:
    """A real broker with the configuration that ``initialise`` wrote."""
    fleet = RealFleet(tmp_path_factory.mktemp("real"))
    yield fleet
    fleet.close()


def lets_in(settings: BrokerSettings, topic: str) -> bool:
    """Whether the broker takes these credentials, and the subscription."""
    try:
        probe(settings, topic)
    except LinkError:
        return False
    return True


def test_mosquitto_believes_the_lines_that_we_write(fleet: RealFleet) -> None:
    cloud = load_cloud(fleet.folder / "cloud.toml")
    store = open_store(fleet.folder / "state")
    folder = add_device(store, cloud, "pi-1", fleet.folder / "pi-1")
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    settings = load_config(folder / "edge.toml").broker_settings()
    own = down("test", "pi-1")
    wait_until(lambda: lets_in(settings, own), 10, "the broker has read its passwords again")
    assert lets_in(broker_settings(cloud), all_up("test"))  # the coordinator's line is still there
    wrong = BrokerSettings(settings.url, "pi-1", "pi-1", "0" * 64)
    assert not lets_in(wrong, own)
    assert not lets_in(BrokerSettings(settings.url, "pi-1"), own)
    stranger = BrokerSettings(settings.url, "pi-2", "pi-2", settings.password)
    assert not lets_in(stranger, down("test", "pi-2"))
    add_password(fleet.folder / "broker-passwords", "pi-1", "another")
    fleet.processes["broker"].send_signal(signal.SIGHUP)
    changed = BrokerSettings(settings.url, "pi-1", "pi-1", "another")
    wait_until(lambda: lets_in(changed, own), 10, "the new password holds")
    assert not lets_in(settings, own)
