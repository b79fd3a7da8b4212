"""cloud.toml and run.toml: the shipped one loads, and every mistake is one clear line."""

import re
from pathlib import Path

import msgspec
import pytest

from sedge_cloud.coding import BroadcastConfig, CodecConfig, PatchConfig
from sedge_cloud.compute import ComputeConfig
from sedge_cloud.config import (
    BrokerConfig,
    CloudConfig,
    CohortConfig,
    KeepConfig,
    RobustConfig,
    RunConfig,
    ScheduleConfig,
    TrainingConfig,
    broker_settings,
    load_cloud,
    load_run,
)
from sedge_cloud.outlets.settings import HomeAssistantConfig, HttpConfig, NotifyConfig
from sedge_cloud.store.settings import BlobsConfig, StoreConfig
from sedge_cloud.strategies import STRATEGIES, make_strategy
from sedge_protocol.codec import Compression, ValueCoding
from sedge_protocol.errors import ConfigError

SHIPPED = Path(__file__).parents[2] / "cloud" / "cloud.toml"
RUN = 'strategy = "fedobp"\n'


def written(folder: Path, text: str) -> Path:
    """A file with this text."""
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
    assert (settings.cert_file, settings.key_file) == (
        "/etc/sedge/coordinator.crt",
        "/etc/sedge/coordinator.key",
    )


def test_every_key_stands_in_the_file_as_shipped(tmp_path: Path) -> None:
    text = SHIPPED.read_text()
    for kind in (CloudConfig, BrokerConfig, HttpConfig, NotifyConfig, HomeAssistantConfig):
        for key in kind.__struct_fields__:
            assert key in text
    # What is commented out there is right, too.
    everything = "\n".join(
        line.removeprefix("# ") if " = " in line and line.startswith("# ") else line
        for line in text.splitlines()
    )
    cloud = load_cloud(written(tmp_path, everything))
    for part in (cloud.broker, cloud.http, cloud.notify, cloud.home_assistant):
        assert all(getattr(part, key) for key in part.__struct_fields__)


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ('[http]\nlisten = "8470"', "http.listen: found '8470', expected host:port"),
        ('[http]\nlisten = "127.0.0.1:70000"', "http.listen: found '127.0.0.1:70000'"),
        ('[http]\nlisten = "0.0.0.0:1"', "expected a loopback address, or token_file besides"),
        ('[http]\nlisten = "sedge.example:1"', "expected a loopback address"),
        ('[notify]\nwebhook = "file:///etc/passwd"', "expected http://… or https://…"),
        ("[notify]\nevery_s = 1", "notify.every_s: found 1"),
    ],
)
def test_who_may_look_and_who_is_told(table: str, found: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(found)):
        load_cloud(written(tmp_path, f'fleet = "f"\n{table}'))


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
        ("", "fleet: found nothing, expected a string"),
        ('fleet = "Home"', "fleet: found 'Home', expected a string matching"),
        ('fleet = ""', "fleet: found '', expected a string matching"),
        (f'fleet = "{"x" * 49}"', "expected a string matching"),
        ("fleet = 7", "fleet: found 7, expected a string"),
        ('fleet = "f"\nflet = 1', "flet: found an unknown key, expected 'fleet'?"),
        ('fleet = "f"\nstate_dir = 1', "state_dir: found 1, expected a string"),
        ('fleet = "f"\ngather_ms = -1', "gather_ms: found -1, expected a whole number >= 0"),
        ('fleet = "f"\ngather_ms = 60001', "gather_ms: found 60001, expected a whole number <= 60000"),
        ('fleet = "f"\ngather_ms = 1.5', "gather_ms: found 1.5, expected a whole number"),
        ('fleet = "f"\nlog_level = "loud"', "log_level: found 'loud', expected one of 'debug', "),
        ('fleet = "f"\nbroker = "here"', "broker: found 'here', expected a table"),
        ('fleet = "f"\n[broker]\nurl = 1', "broker.url: found 1, expected a string"),
        ('fleet = "f"\n[broker]\nurI = "x"', "broker.urI: found an unknown key, expected 'url'?"),
        ('fleet = "f"\n[brokr]\n', "brokr: found an unknown key, expected 'broker'?"),
        ('fleet = "f"\nstate_dir = "a\\u0000b"', "state_dir: found 'a\\x00b', expected a path without"),
        (
            'fleet = "f"\n[broker]\npassword_file = "\\u0000"',
            "broker.password_file: found '\\x00', expected a path without NUL",
        ),
        ('fleet = "f"\n[broker]\nurl = "h"', "broker.url: found 'h', expected mqtt://host"),
        (
            'fleet = "f"\n[broker]\ndevice_url = "http://h"',
            "broker.device_url: found 'http://h', expected mqtt://host",
        ),
        (
            "fleet = 'f'\n[broker]\ndevice_url = 'mqtt://h\"\\'",
            "expected mqtt://host[:port] or mqtts://host[:port]",
        ),
        ("fleet = f", "expected valid TOML"),
        ('fleet = "f"\nfleet = "g"', "expected valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_in_cloud_toml_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_cloud(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and message in said and len(said.splitlines()) == 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: file: found No such file or directory"):
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
        with pytest.raises(
            ConfigError, match=r"broker.password_file: .*expected a (readable|text) file"
        ) as caught:
            broker_settings(cloud)
        assert len(str(caught.value).splitlines()) == 1


def test_a_run_file_with_everything(tmp_path: Path) -> None:
    text = """
strategy = "fedobp"
num_rounds = 20
fraction_train = 0.5
min_train_devices = 3
min_available_devices = 5
quorum = 0.8
min_updates = 3
deadline_s = 30.5
evaluate = false
fraction_evaluate = 0.25
seed = 7
[broadcast]
values = "bf16"
fraction = 0.05
compression = "zlib"
[patch]
values = "bf16"
compression = "none"
[options]
quantile = 0.999
classifier_only = ["head.bias"]
[training]
local_epochs = 3
learning_rate = 1
last_batch = "fill"
[robust]
clip = 2
rule = "krum"
byzantine = 0.1
[codec]
values = "int8"
fraction = 0.1
threshold = 1e-4
compression = "zlib"
error_feedback = false
"""
    config = load_run(written(tmp_path, text))
    assert config.options == {"quantile": 0.999, "classifier_only": ["head.bias"]}
    assert (config.deadline_s, config.fraction_evaluate) == (30.5, 0.25)
    assert config.broadcast == BroadcastConfig(ValueCoding.BF16, 0.05, Compression.ZLIB)
    assert config.robust == RobustConfig(2.0, "krum", 0.1)
    assert config.patch == PatchConfig(ValueCoding.BF16, Compression.NONE)
    assert not config.broadcast.whole and config.codec.threshold == 1e-4
    assert not config.evaluates and config.total_rounds == 20
    assert (config.training.local_epochs, config.training.learning_rate) == (3, 1.0)
    assert (config.codec.values, config.codec.fraction) == (ValueCoding.INT8, 0.1)


# What a file need not say. Another default would train another model out of the same file.
DEFAULTS: list[tuple[msgspec.Struct, dict[str, object]]] = [
    (RunConfig(strategy="x"), {
        "strategy": "x", "options": {}, "num_rounds": 100, "fraction_train": 1.0,
        "min_train_devices": 2, "min_available_devices": 2, "quorum": 1.0, "min_updates": 1,
        "deadline_s": 600.0, "grace_s": 0.0, "offline_grace_s": 10.0,
        "late_updates": "remember", "evaluate": True,
        "fraction_evaluate": 1.0, "evaluate_every": 0, "seed": 42,
        "cohort": CohortConfig(), "broadcast": BroadcastConfig(), "patch": PatchConfig(),
        "robust": RobustConfig(),
        "training": TrainingConfig(), "schedule": ScheduleConfig(), "codec": CodecConfig(), "earlier": (),
    }),
    (ScheduleConfig(), {"kind": "constant", "warmup_rounds": 0, "final": 0.0, "steps": False}),
    (BroadcastConfig(), {
        "values": ValueCoding.BF16, "fraction": None, "compression": Compression.ZLIB,
    }),
    (PatchConfig(), {
        "values": None, "compression": Compression.ZLIB,
    }),
    (RobustConfig(), {
        "clip": 1.0, "rule": "direction", "byzantine": 0.2, "equal_weights": False,
        "max_weight": 1.0,
    }),
    (TrainingConfig(), {
        "local_epochs": 1, "learning_rate": 0.01, "momentum": 0.0, "prox": 0.0,
        "last_batch": "pad", "freeze": (), "optimizer": "sgd", "nesterov": False, "beta1": 0.9,
        "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0, "clip_norm": 0.0, "optimizer_state": "reset",
        "warmup_steps": 0, "end_factor": 1.0, "average": 0.0,
    }),
    (CodecConfig(), {
        "values": None, "fraction": None, "threshold": 0.0,
        "compression": Compression.ZSTD, "error_feedback": True,
    }),
    (CloudConfig("x"), {
        "fleet": "x", "state_dir": "state", "broker": BrokerConfig(), "gather_ms": 1000,
            "memory_share": 0.05,
        "http": HttpConfig(), "notify": NotifyConfig(), "log_level": "info", "keep": KeepConfig(),
        "home_assistant": HomeAssistantConfig(), "store": StoreConfig(), "blobs": BlobsConfig(),
        "compute": ComputeConfig(),
    }),
    (StoreConfig(), {"url": None, "password_file": None}),
    (BlobsConfig(), {
        "url": None, "endpoint": None, "region": None, "key_id": None, "secret_file": None,
        "cache_mb": 1024, "public": None,
    }),
    (HttpConfig(), {"listen": None, "token_file": None, "hosts": ()}),
    (NotifyConfig(), {"webhook": None, "command": (), "every_s": 3600.0}),
    (HomeAssistantConfig(), {"enabled": False, "max_devices": 50}),
    (KeepConfig(), {"runs": None, "rounds": None, "gigabytes": None}),
    (BrokerConfig(), {
        "url": "mqtt://127.0.0.1:1883", "device_url": None, "username": None,
        "password_file": None, "ca_file": None, "cert_file": None, "key_file": None,
        "device_password_file": None, "reload": None,
    }),
]  # fmt: skip
OPTIONS: dict[str, dict[str, object]] = {
    "apfl": {"alpha": 0.5, "adaptive": True},
    "ditto": {"lam": 0.1, "personal_epochs": 0},
    "fedavg": {},
    "fedbabu": {"head": (), "head_epochs": 1},
    "fedbn": {"norms": "batch"},
    "fedcac": {"fraction": 0.5, "beta": 100, "overlap_sample": 2**21},
    "fedobp": {
        "quantile": 0.99993, "score": "squared", "norm": "none", "classifier_only": False,
        "ema": 0.0, "cold_start": "global", "scoring": "cloud", "energy": 0.0, "most": 0.01,
        "holdout": 0.0,
    },
    "fedper": {"head": ()},
    "fedprox": {"mu": 0.01},
    "fedpurin": {
        "fraction": 0.5, "beta": 100, "overlap_sample": 2**21, "gradient": "last", "hessian": False,
        "half": True, "cutoff": 1e-10, "average": "shrunk",
    },
    "fedrep": {"head": (), "body_epochs": 1},
    "fedrolex": {"dropped": (), "memory_mb": (), "step_s": (), "weighting": "uniform"},
    "fedselect": {"rate": 0.05, "limit": 0.3},
    "heterofl": {"dropped": (), "memory_mb": (), "step_s": (), "weighting": "uniform"},
    "lg_fedavg": {"head": ()},
    "local_only": {},
    "scaffold": {"server_lr": 1.0},
    "subflot": {
        "dropped": (), "memory_mb": (), "step_s": (), "mix": 0.5, "lam": 1.0, "solver": "emd",
        "reg": 0.01, "normalisation": "mass", "weighting": "examples", "otp": True, "sar": True,
        "ota": True,
    },
}  # fmt: skip


def test_the_defaults() -> None:
    for struct, expected in DEFAULTS:
        assert msgspec.structs.asdict(struct) == expected
    made = {name: make_strategy(name, {}) for name in STRATEGIES}
    assert {name: msgspec.structs.asdict(strategy) for name, strategy in made.items()} == OPTIONS


@pytest.mark.parametrize(
    ("strategy", "average", "follows"),
    [
        ("fedcac", "", True),
        ("fedpurin", "filled", True),
        ("fedpurin", "counted", False),
        ("fedpurin", "shrunk", False),
        ("fedpurin", "", False),
    ],
)
def test_rules_by_coordinate_are_for_averages_that_follow_them(
    strategy: str, average: str, follows: bool, tmp_path: Path
) -> None:
    rule = "median"
    options = f'options = {{average = "{average}"}}\n' if average else ""
    path = written(tmp_path, f'strategy = "{strategy}"\n{options}[robust]\nrule = "{rule}"')
    if follows:
        assert load_run(path).robust.rule == rule
        return
    with pytest.raises(
        ConfigError, match=f"robust.rule: found '{rule}', expected direction, mean, krum or"
    ):
        load_run(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "strategy: found nothing, expected a string"),
        ('strategy = "fedsgd"', "strategy: found 'fedsgd', expected one of apfl, "),
        ("strategy = 1", "strategy: found 1, expected a string"),
        ('strategy = "no_such_module:Mine"', "expected module:Class that can be imported (Module"),
        (RUN + "[robust]\nclip = -1", "robust.clip: found -1, expected a number >= 0"),
        (RUN + "[robust]\nbyzantine = 0.5", "robust.byzantine: found 0.5, expected a number < 0.5"),
        (
            RUN + '[training]\noptimizer = "adam"\nmomentum = 0.5',
            "training.momentum: found 0.5, expected 0: adam has beta1",
        ),
        (
            RUN + "[training]\nnesterov = true",
            "training.nesterov: found True, expected false: Nesterov's step is one of momentum",
        ),
        (
            RUN + "num_rounds = 5\n[schedule]\nwarmup_rounds = 5",
            "schedule.warmup_rounds: found 5, expected fewer than num_rounds = 5",
        ),
        (
            RUN + '[schedule]\nkind = "exponential"',
            "schedule.final: found 0.0, expected above 0: an exponential never gets there",
        ),
        (RUN + '[robust]\nrule = "best"', "robust.rule: found 'best', expected one of 'direction', "),
        (RUN + "[robust]\nclips = 3", "robust.clips: found an unknown key, expected 'clip'?"),
        (
            'strategy = "fedselect"\n[robust]\nrule = "median"',
            "robust.rule: found 'median', expected direction, mean, krum or multi_krum: fedselect has an ",
        ),
        (RUN + "[options]\nquantil = 0.5", "options.quantil: found 0.5, expected an option of fedobp: "),
        (RUN + "[options]\nquantile = 1.5", "options.quantile: found 1.5, expected `float` <= 1.0"),
        (RUN + '[options]\nquantile = "much"', "options.quantile: found 'much', expected"),
        (RUN + "[options]\nquantile = nan", "options.quantile: found nan, expected a finite number"),
        (RUN + "[options]\nquantile = 1979-05-27", "options.quantile: found datetime.date(1979, 5, 27)"),
        (RUN + "options = 3", "options: found 3, expected a table"),
        (RUN + "num_rounds = 0", "num_rounds: found 0, expected a whole number >= 1"),
        (RUN + "num_rounds = 1.0", "num_rounds: found 1.0, expected a whole number"),
        (RUN + "num_rounds = true", "num_rounds: found True, expected a whole number"),
        (RUN + "fraction_train = 0", "fraction_train: found 0, expected a number > 0"),
        (RUN + "fraction_train = 0.0", "fraction_train: found 0.0, expected a number > 0"),
        (RUN + "fraction_train = 1.01", "fraction_train: found 1.01, expected a number <= 1"),
        (RUN + "fraction_train = nan", "fraction_train: found nan, expected a finite number"),
        (RUN + "quorum = 1.1", "quorum: found 1.1, expected a number <= 1"),
        (RUN + "quorum = 0", "quorum: found 0, expected a number > 0"),
        (RUN + "quorum = -inf", "quorum: found -inf, expected a finite number"),
        (RUN + "deadline_s = 0.5", "deadline_s: found 0.5, expected a number >= 1"),
        (RUN + "deadline_s = inf", "deadline_s: found inf, expected a finite number"),
        (RUN + "min_train_devices = 0", "min_train_devices: found 0, expected a whole number >= 1"),
        (
            RUN + "min_train_devices = 3",
            "min_available_devices: found 2, expected at least min_train_devices = 3",
        ),
        (RUN + "min_updates = 0", "min_updates: found 0, expected a whole number >= 1"),
        (RUN + "min_updates = 3", "min_updates: found 3, expected at most 2, the devices of the sma"),
        (
            RUN + "min_available_devices = 10\nfraction_train = 0.4\nmin_updates = 5",
            "min_updates: found 5, expected at most 4",
        ),
        (RUN + "seed = -1", "seed: found -1, expected a whole number >= 0"),
        (RUN + "seed = 4294967296", "seed: found 4294967296, expected a whole number <= 4294967295"),
        (RUN + 'model_values = "fp16"', "model_values: found an unknown key, expected"),
        (
            RUN + '[broadcast]\nvalues = "fp8"',
            "broadcast.values: found 'fp8', expected one of 'fp32', 'fp16'",
        ),
        (RUN + "[broadcast]\nfraction = 0", "broadcast.fraction: found 0, expected a number > 0"),
        (RUN + '[broadcast]\ncompression = "lz4"', "broadcast.compression: found 'lz4', expected one of"),
        (RUN + "fraction_evaluate = 1.5", "fraction_evaluate: found 1.5, expected a number <= 1"),
        (RUN + 'evaluate = "yes"', "evaluate: found 'yes', expected true or false"),
        (RUN + "min_device = 3", "min_device: found an unknown key, expected 'min_"),
        (RUN + "[training]\nepochs = 3", "training.epochs: found an unknown key, expected 'local_ep"),
        (RUN + "[training]\nlearning_rate = 0", "training.learning_rate: found 0, expected a number > 0"),
        (RUN + "[training]\nlearning_rate = nan", "training.learning_rate: found nan, expected a fin"),
        (RUN + "[training]\nmomentum = 1", "training.momentum: found 1, expected a number < 1"),
        (RUN + '[training]\nlast_batch = "keep"', "training.last_batch: found 'keep', expected one of"),
        (RUN + "[training]\nlocal_epochs = 0.5", "training.local_epochs: found 0.5, expected a whole"),
        (RUN + "[schedule]\nsteps = true", "schedule.steps: found True, expected false: without kind"),
        (
            RUN + '[schedule]\nkind = "linear"\nsteps = true\n[training]\nend_factor = 0.5',
            "training.end_factor: found 0.5, expected 1: schedule.steps says",
        ),
        (RUN + "[codec]\nfraction = 0", "codec.fraction: found 0, expected a number > 0"),
        (RUN + "[codec]\nfractions = 0.5", "codec.fractions: found an unknown key, expected 'fraction"),
        (RUN + '[codec]\ncompression = "lz4"', "codec.compression: found 'lz4', expected one of 'zstd'"),
        (RUN + "[codec]\nerror_feedback = 1", "codec.error_feedback: found 1, expected true or false"),
        (RUN + "[coder]\n", "coder: found an unknown key, expected 'codec'?"),
        (RUN + "num_rounds = ", "expected valid TOML"),
    ],
)  # fmt: skip
def test_a_mistake_in_run_toml_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_run(path)
    said = str(caught.value)
    assert said.startswith(f"{path}: ") and message in said and len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        "min_available_devices = 10\nmin_updates = 10",
        "min_available_devices = 10\nfraction_train = 0.4\nmin_updates = 4",
        "min_train_devices = 1\nmin_available_devices = 1",
        "fraction_train = 1\nquorum = 1\n",
        "quorum = 1e-9\n",
        "deadline_s = 604800\nseed = 4294967295",
    ],
)
def test_what_is_allowed(tmp_path: Path, text: str) -> None:
    load_run(written(tmp_path, RUN + text))
