"""cloud.toml and run.toml: the shipped one loads, and every mistake is one clear line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sedge_cloud.config import BrokerConfig, CloudConfig, broker_settings, load_cloud
from sedge_cloud.run_file import load_run
from sedge_protocol.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "cloud" / "cloud.toml"
RUN = 'strategy = "fedobp"\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "file.toml"
    path.write_text(text)
    return path


def test_the_file_as_shipped() -> None:
    cloud = load_cloud(SHIPPED)
    assert cloud.fleet == "home" and cloud.state_dir == "/var/lib/sedge-cloud"
    assert cloud.gather_ms == CloudConfig("x").gather_ms and cloud.log_level == "info"
    assert cloud.broker.ca_file == "/etc/sedge/ca.crt"
    settings = broker_settings(cloud)
    assert settings.endpoint() == ("broker.example", 8883, True, None)
    assert (settings.name, settings.username) == ("coordinator-home", "coordinator-home")
    assert settings.cert_file == "/etc/sedge/coordinator.crt"
    assert settings.key_file == "/etc/sedge/coordinator.key"


def test_what_the_file_as_shipped_has_in_comments_is_right(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    everything = "\n".join(
        line.removeprefix("# ") if " = " in line and line.startswith("# ") else line
        for line in text.splitlines()
    )
    cloud = load_cloud(written(tmp_path, everything))
    for part in (cloud.broker, cloud.http, cloud.notify, cloud.home_assistant):
        assert all(getattr(part, key) for key in part.__struct_fields__)


def test_a_token_that_can_be_guessed_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    path = written(tmp_path, 'fleet = "f"\n[http]\nlisten = "[::]:1"\ntoken_file = "token"')
    with pytest.raises(ConfigError, match="found '6 characters', expected 32 or more"):
        load_cloud(path).http.token()
    (tmp_path / "token").write_text("0123456789abcdef" * 2 + "\n")
    assert load_cloud(path).http.token() == "0123456789abcdef" * 2


def test_relative_paths_start_at_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "etc"
    home.mkdir()
    keys = ("password_file", "ca_file", "cert_file", "key_file", "device_password_file")
    lines = [f'{key} = "tls/{key}"' for key in keys]
    written(home, "\n".join(['fleet = "f"', 'state_dir = "var"', "[broker]", *lines]))
    monkeypatch.chdir(home)
    for path in (home / "file.toml", Path("file.toml"), Path("../etc/file.toml")):
        cloud = load_cloud(path)
        assert cloud.state_dir == str(home / "var")
        for key in keys:
            assert getattr(cloud.broker, key) == str(home / "tls" / key)
    absolute = load_cloud(written(home, 'fleet = "f"\nstate_dir = "/var/x"\n'))
    assert absolute.state_dir == "/var/x" and absolute.broker.password_file is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('state_dir = "a\\u0000b"', "state_dir: found 'a\\x00b', expected a path without NUL"),
        ('[broker]\npassword_file = "\\u0000"', "broker.password_file: found '\\x00', expected a path"),
        ('[broker]\nurl = "h"', "broker.url: found 'h', expected mqtt://host"),
        ('[broker]\ndevice_url = "http://h"', "broker.device_url: found 'http://h', expected mqtt://"),
        ("[broker]\ndevice_url = 'mqtt://h\"\\'", "expected mqtt://host[:port] or mqtts://host[:port]"),
        ('[http]\nlisten = "0.0.0.0:1"', "expected a loopback address, unless token_file is set"),
        ('[http]\nlisten = "sedge.example:1"', "expected a loopback address"),
        ('[http]\nlisten = "8470"', "http.listen: found '8470', expected host:port"),
        ('[http]\nlisten = "127.0.0.1:70000"', "http.listen: found '127.0.0.1:70000', expected host:"),
        ('[notify]\nwebhook = "file:///etc/passwd"', "expected http://… or https://…"),
        ('[store]\nurl = "mysql://h/d"', "store.url: found 'mysql://h/d', expected postgresql:"),
        ('[store]\nurl = "postgresql://u:secret@h/d"', "with the password in store.password_file"),
        ('[store]\npassword_file = "p"', "store.password_file: found 'p', expected store.url"),
        ('[store]\nurl = "postgresql://[h"', "store.url: found "),
        ('[blobs]\nurl = "http://h/b"', "blobs.url: found 'http://h/b', expected s3://"),
        ('[blobs]\nendpoint = "http://h"', "blobs.endpoint: found 'http://h', expected blobs.url"),
        ('[blobs]\nurl = "s3://b"\nendpoint = "h:1"', "blobs.endpoint: found 'h:1', expected http://host:"),
        ('[blobs]\nurl = "s3://b"\nkey_id = "k"', "blobs.key_id: found 'k', expected both key_id and "),
        ('[blobs]\npublic = "file:///x"', "blobs.public: found 'file:///x', expected https://host"),
        ('[blobs]\npublic = "https://u:secret@h/x"', "blobs.public: found 'https://...@h/x', expected ht"),
        ('[blobs]\npublic = "presigned"', "blobs.public: found 'presigned', expected blobs.url ="),
    ],
)  # fmt: skip
def test_a_mistake_in_cloud_toml_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    said = refusal(load_cloud, written(tmp_path, f'fleet = "f"\n{text}'))
    assert message in said and ":secret" not in said


def refusal(load: Callable[[Path], object], path: Path) -> str:
    """What is said of a file, in one line."""
    with pytest.raises(ConfigError) as caught:
        load(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and len(said.splitlines()) == 1
    return said


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: file: No such file or directory"):
        load_cloud(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="expected a readable TOML file"):
        load_run(tmp_path)


def test_the_password_comes_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "password"
    path.write_text("  secret words \n")
    cloud = CloudConfig("f", broker=BrokerConfig(username="u", password_file=str(path)))
    settings = broker_settings(cloud)
    assert (settings.username, settings.password) == ("u", "secret words")
    assert "secret" not in repr(settings)
    assert broker_settings(CloudConfig("f")).password is None


def test_a_password_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name in ("none", ".", "binary"):
        cloud = CloudConfig("f", broker=BrokerConfig(password_file=str(tmp_path / name)))
        with pytest.raises(ConfigError, match=r"password_file: .*a (readable|text) file") as caught:
            broker_settings(cloud)
        assert len(str(caught.value).splitlines()) == 1


def test_a_run_file(tmp_path: Path) -> None:
    text = """
strategy = "fedobp"
num_rounds = 20
evaluate = false
[options]
quantile = 0.999
classifier_only = ["head.bias"]
[training]
learning_rate = 1
[broadcast]
values = "fp32"
fraction = 1
"""
    config = load_run(written(tmp_path, text))
    assert config.options == {"quantile": 0.999, "classifier_only": ["head.bias"]}
    assert not config.evaluates and config.total_rounds == 20
    assert config.training.learning_rate == 1.0 and config.broadcast.whole


@pytest.mark.parametrize(
    ("strategy", "average", "follows"),
    [
        ("fedcac", "", True), ("fedpurin", "filled", True), ("fedpurin", "counted", False),
        ("fedpurin", "shrunk", False), ("fedpurin", "", False),
    ],
)  # fmt: skip
def test_rules_by_coordinate_are_for_averages_that_follow_them(
    strategy: str, average: str, follows: bool, tmp_path: Path
) -> None:
    options = f'options = {{average = "{average}"}}\n' if average else ""
    path = written(tmp_path, f'strategy = "{strategy}"\n{options}[robust]\nrule = "median"')
    if follows:
        assert load_run(path).robust.rule == "median"
    else:
        said = "robust.rule: found 'median', expected direction, mean, krum or"
        assert said in refusal(load_run, path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('strategy = "fedsgd"', "strategy: found 'fedsgd', expected one of apfl, "),
        ('strategy = "no_such_module:Mine"', "expected module:Class that can be imported (Module"),
        (RUN + '[training]\noptimizer = "adam"\nmomentum = 0.5', "training.momentum: found 0.5, expected"),
        (RUN + "[training]\nnesterov = true", "training.nesterov: found True, expected false: Nesterov's"),
        (RUN + "num_rounds = 5\n[schedule]\nwarmup_rounds = 5", "schedule.warmup_rounds: found 5, expec"),
        (RUN + '[schedule]\nkind = "exponential"', "schedule.final: found 0.0, expected above 0: an expo"),
        ('strategy = "fedselect"\n[robust]\nrule = "median"', "krum or multi_krum: fedselect "),
        (RUN + "[options]\nquantil = 0.5", "options.quantil: found 0.5, expected an option of fedobp: "),
        (RUN + "[options]\nquantile = 1979-05-27", "options.quantile: found datetime.date(1979, 5, 27)"),
        (RUN + "min_train_devices = 3", "min_available_devices: found 2, expected at least min_train_dev"),
        (RUN + "min_updates = 3", "min_updates: found 3, expected at most 2, the devices of the sma"),
        (RUN + "min_available_devices = 10\nfraction_train = 0.4\nmin_updates = 5", "expected at most 4"),
        (RUN + "[privacy]\nepsilon = 0\ndelta = 0.1\nclip = 1", "privacy.epsilon: found 0, expected "),
        (RUN + "[privacy]\nepsilon = 8\ndelta = 0.1\nclip = nan", "privacy.clip: found nan, expected "),
        (RUN + "[schedule]\nsteps = true", "schedule.steps: found True, expected false: without kind"),
        (
            RUN + '[schedule]\nkind = "linear"\nsteps = true\n[training]\nend_factor = 0.5',
            "training.end_factor: found 0.5, expected 1: schedule.steps sets",
        ),
    ],
)  # fmt: skip
def test_a_mistake_in_run_toml_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(load_run, written(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "min_available_devices = 10\nmin_updates = 10",
        "min_available_devices = 10\nfraction_train = 0.4\nmin_updates = 4",
        "min_train_devices = 1\nmin_available_devices = 1",
    ],
)
def test_what_is_allowed(tmp_path: Path, text: str) -> None:
    load_run(written(tmp_path, RUN + text))
