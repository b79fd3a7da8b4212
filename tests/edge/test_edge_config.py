"""edge.toml: the file as shipped, and every way to get one wrong."""

from pathlib import Path

import pytest

from sedge_edge.config import BackendConfig, BrokerConfig, DataConfig, EdgeConfig, load_config
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.mqtt import BrokerSettings
from sedge_protocol.wire.keys import DeviceKeys

SHIPPED = Path(__file__).parents[2] / "edge" / "edge.toml"
SECRET = bytes(range(32))
MINIMAL = """
device = "pi-1"
fleet = "demo"
secret_file = "secret"
state_dir = "state"
[broker]
url = "mqtt://localhost"
[data]
train = "train.npz"
"""
TLS = MINIMAL.replace("mqtt://", "mqtts://")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_private(tmp_path / "secret", SECRET.hex() + "\n")
    for name in ("ca.pem", "device.pem", "device.key"):
        write_private(tmp_path / name, "PEM")
    return tmp_path


def write_private(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o400)


def write(folder: Path, text: str) -> Path:
    path = folder / "edge.toml"
    path.write_text(text)
    return path


def with_key(line: str, text: str = MINIMAL) -> str:
    """The text with one more line, or more, in [broker]."""
    return text.replace("[data]", f"{line}\n[data]")


def test_the_file_as_shipped_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_private(tmp_path / "sedge-secret", SECRET.hex())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    config = load_config(SHIPPED)
    assert config.secret_file == tmp_path / "sedge-secret"
    assert config.state_dir == Path("/var/lib/sedge")
    assert config.broker_settings().endpoint() == ("broker.example.org", 8883, True, None)


def test_the_defaults_in_the_shipped_comments_are_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uncommenting "# key = value" of a key with a default changes nothing."""
    write_private(tmp_path / "sedge-secret", SECRET.hex())
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    keys = ("log_level", "username", "test_fraction", "split_seed", "name", "threads")
    lines = SHIPPED.read_text().splitlines()
    uncommented = [
        line.removeprefix("# ") if line.startswith(tuple(f"# {key} = " for key in keys)) else line
        for line in lines
    ]
    assert sum(a != b for a, b in zip(lines, uncommented, strict=True)) == len(keys)
    shipped, changed = load_config(SHIPPED), load_config(write(tmp_path, "\n".join(uncommented)))
    assert (changed.backend, changed.log_level) == (shipped.backend, shipped.log_level)
    assert changed.broker == shipped.broker
    assert changed.data.test_fraction == shipped.data.test_fraction
    assert changed.data.split_seed == shipped.data.split_seed


def test_a_minimal_file_and_the_defaults(folder: Path) -> None:
    config = load_config(write(folder, MINIMAL))
    assert config == EdgeConfig(
        device="pi-1",
        fleet="demo",
        secret_file=folder / "secret",
        state_dir=folder / "state",
        broker=BrokerConfig("mqtt://localhost", None, None, None, "", None),
        data=DataConfig(str(folder / "train.npz"), None, test_fraction=0.2, split_seed=0),
        backend=BackendConfig("auto", threads=1),
        log_level="info",
    )
    keys = DeviceKeys.of(SECRET)
    assert config.keys() == keys
    settings = config.broker_settings()
    assert settings == BrokerSettings("mqtt://localhost", "pi-1", "pi-1", keys.password)
    assert SECRET.hex() not in repr(config) + repr(settings)
    assert keys.password not in repr(config) + repr(settings)


@pytest.mark.parametrize(
    ("keys", "renews"),
    [
        ("", True),
        ('cert_file = "device.pem"\nkey_file = "device.key"', False),
        ('password_file = "device.key"', False),
    ],
)
def test_a_secret_on_which_the_account_depends_can_change(
    folder: Path, keys: str, renews: bool
) -> None:
    config = load_config(write(folder, with_key(keys, TLS)))
    assert config.renews == renews and not config.is_certified


def test_every_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHERE", "deep")
    write_private(folder / "password", " swordfish\n")
    broker = (
        'ca_file = "ca.pem"\ncert_file = "device.pem"\nkey_file = "device.key"\n'
        'username = "someone"\npassword_file = "password"\n'
    )
    data = 'test = "${WHERE}/$WHERE/test.npz"\ntest_fraction = 0.5\nsplit_seed = 3\n'
    text = with_key(broker, TLS) + data
    config = load_config(
        write(folder, 'log_level = "debug"\n' + text + '[backend]\nname="onnxruntime"\nthreads = 2')
    )
    settings = config.broker_settings()
    assert settings.ca_file == str(folder / "ca.pem")
    assert settings.cert_file == str(folder / "device.pem")
    assert settings.key_file == str(folder / "device.key")
    assert (settings.username, settings.password) == ("someone", "swordfish")
    assert config.data.test == str(folder / "deep" / "deep" / "test.npz")
    assert config.backend == BackendConfig("onnxruntime", 2)


def test_a_function_source_is_no_path(folder: Path) -> None:
    config = load_config(write(folder, MINIMAL.replace("train.npz", "my.data:load")))
    assert config.data.train == "my.data:load"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL.replace('"pi-1"', '"Pi 1"'), "device: found 'Pi 1', expected 1 to 48 of a-z"),
        (MINIMAL.replace('"demo"', '"-"'), "fleet: found '-', expected 1 to 48 of a-z"),
        (
            MINIMAL.replace('"secret"', '"no"'),
            "secret_file: found .*/no', expected a readable file",
        ),
        (
            MINIMAL.replace('"secret"', '"$NOWHERE/x"'),
            r"secret_file: found '\$NOWHERE/x', expected the environment variable NOWHERE to be set",
        ),
        (
            MINIMAL.replace('"secret"', r'"a\u0000b"'),
            "secret_file: found .*, expected a path without NUL",
        ),
        (
            with_key(r'password_file = "\u0000"'),
            "broker.password_file: found .*, expected a path without NUL",
        ),
        (
            MINIMAL.replace("train.npz", r"\u0000"),
            "data.train: found .*, expected a path without NUL",
        ),
        (
            MINIMAL.replace("mqtt:", "http:"),
            r"broker.url: found 'http://localhost', expected mqtt://",
        ),
        (MINIMAL.replace("localhost", "h:99999"), "broker.url: found"),
        (with_key('ca_file = "ca.pem"'), "broker.ca_file: .* an mqtts:// or wss:// url"),
        (with_key('ca_file = "no.pem"', TLS), "broker.ca_file: .* a readable file"),
        (
            with_key('cert_file = "device.pem"', TLS),
            "broker.cert_file: found '.*device.pem', expected a certificate in PEM",
        ),
        (with_key('key_file = "device.key"', TLS), "broker.cert_file: missing"),
        (with_key('password_file = "no"'), "broker.password_file: .* a readable file"),
        (
            MINIMAL + '[backend]\nname = "tflite"',
            "backend.name: found 'tflite', expected one of 'auto', 'onnxruntime', 'executorch', 'torch'",
        ),
        (
            MINIMAL + '[backend]\nname = "my client:fit"',
            "backend.name: found 'my client:fit', expected one of .*, or 'module:function'",
        ),
        (
            MINIMAL + '[backend]\nname = "torch"',
            "backend.model: found '', expected module:function that returns the torch module",
        ),
        (
            MINIMAL + '[backend]\nname = "my_client:fit"\nmodel = "net:build"',
            "backend.model: found 'net:build', expected nothing unless backend.name is 'torch'",
        ),
    ],
)
def test_a_wrong_file(folder: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"edge\.toml: {message}"):
        load_config(write(folder, text))


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("secret", "secret_file"),
        ("device.key", "broker.key_file"),
        ("password", "broker.password_file"),
    ],
)
@pytest.mark.parametrize("mode", [0o404, 0o402, 0o401])
def test_a_secret_that_others_can_read(folder: Path, name: str, key: str, mode: int) -> None:
    write_private(folder / "password", "x")
    keys = 'cert_file = "device.pem"\nkey_file = "device.key"\npassword_file = "password"'
    path = write(folder, with_key(keys, TLS))
    (folder / name).chmod(0o440)
    load_config(path)
    (folder / name).chmod(mode)
    with pytest.raises(
        ConfigError, match=rf"{key}: found .*mode {mode:04o}.*other users cannot read"
    ):
        load_config(path)


@pytest.mark.parametrize("text", ["", "abc", "00" * 31, "00" * 33, "zz" * 32, "\udcff"])
def test_a_secret_that_is_none(folder: Path, text: str) -> None:
    (folder / "secret").unlink()
    (folder / "secret").write_bytes(text.encode(errors="surrogateescape"))
    (folder / "secret").chmod(0o400)
    with pytest.raises(ConfigError) as error:
        load_config(write(folder, MINIMAL))
    assert "secret" in str(error.value)
    assert len(text) < 4 or text not in str(error.value)
