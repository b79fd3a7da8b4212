"""The doctor: every check both ways, and no check stops the ones after it."""

import platform
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from PIL import Image
from tests.edge.home import make_home, put_models
from tests.fleet import always

from sedge_edge import doctor
from sedge_edge.doctor import examine
from sedge_edge.jobs.job import Kept
from sedge_edge.rounds.run_state import RunState
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_export import export
from sedge_export.models import mlp
from sedge_protocol.errors import LinkError
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.layout import Theta
from sedge_protocol.wire import bundle as bundles

CHECKS = [
    "configuration",
    "disk",
    "clock",
    "memory",
    "data",
    "backend",
    "gates",
    "torch",
    "unit",
    "broker",
    "messages",
]


def hears(config: object) -> str:
    return "coordinator 1 of fleet home hears pi-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A healthy device; its broker lets everyone in."""
    monkeypatch.setattr(doctor, "ask_coordinator", hears)
    monkeypatch.setattr(doctor, "largest_message", always("up to 65536 bytes come back"))
    return make_home(tmp_path)


def findings(config: Path) -> tuple[bool, dict[str, tuple[bool, str]]]:
    """The verdict, and each finding by what was looked at."""
    found: dict[str, tuple[bool, str]] = {}

    def tell(good: bool, text: str) -> None:
        what, _, rest = text.partition(": ")
        assert what not in found
        assert "\n" not in text
        found[what] = (good, rest)

    return examine(config, tell), found


def test_a_healthy_device(home: Path) -> None:
    healthy, found = findings(home)
    assert healthy
    assert list(found) == CHECKS
    assert all(good for good, _ in found.values())
    texts = {what: text for what, (_, text) in found.items()}
    assert texts["configuration"] == f"{home}, device pi-1 of fleet home"
    assert texts["data"].startswith(
        "16 examples to train on, 4 to test on, each 6, x from -2.33 to 2, y labels from 0 to 2; no model"
    )
    assert texts["disk"].startswith(f"{home.parent / 'state'} is writable, ")
    assert "onnxruntime" in texts["backend"]
    assert texts["broker"].startswith("mqtt://127.0.0.1:1 accepts the device; coordinator 1 of")
    assert not (home.parent / "state" / "doctor.tmp").exists()


Break = Callable[[Path, pytest.MonkeyPatch], object]


def refuse(config: object) -> None:
    raise LinkError("mqtt://127.0.0.1:1 refused 'pi-1': Not authorized")


def cuda_torch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", always("2.9.0+cu130"))
    monkeypatch.setattr(platform, "machine", always("aarch64"))


def patched(owner: object, name: str, value: object) -> Break:
    return lambda home, monkeypatch: monkeypatch.setattr(owner, name, value)


NO_ROOM = shutil.disk_usage("/")._replace(free=63_000_000)
BROKEN: dict[str, tuple[str, Break, str]] = {
    "no room": ("disk", patched(shutil, "disk_usage", always(NO_ROOM)), "63 MB free, expected at"),
    "a file in the way": (
        "disk",
        lambda home, _: (home.parent / "state").write_text(""),
        "File exists",
    ),
    "no data": (
        "data",
        lambda home, _: (home.parent / "train.npz").unlink(),
        "train.npz: No such file or directory",
    ),
    "the clock of 1970": ("clock", patched(time, "time", always(86400.0)), "it says Fri Jan  2"),
    "the clock of 2201": ("clock", patched(time, "time", always(7.3e9)), "2201; set it"),
    "little memory": (
        "memory",
        patched(doctor, "memory_mb", always(120)),
        "found '120 MB', expected at least 200 MB",
    ),
    "a unit that cannot write": (
        "unit",
        lambda home, monkeypatch: monkeypatch.setattr(doctor, "SERVICE_CONFIG", home.parent),
        "expected /var/lib/sedge, to which sedge-edge.service can write",
    ),
    "no backend": (
        "backend",
        patched(doctor, "installed_backends", always({})),
        "pip install 'sedge-fl[onnx]'",
    ),
    "torch with CUDA": ("torch", cuda_torch, "found '2.9.0+cu130'"),
    "the broker": ("broker", patched(doctor, "ask_coordinator", refuse), "Not authorized"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_one_thing_is_wrong(home: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    what, break_it, text = BROKEN[name]
    break_it(home, monkeypatch)
    healthy, found = findings(home)
    assert not healthy
    without = {"messages"} if what == "broker" else set[str]()  # whose reason would be the same
    assert list(found) == [check for check in CHECKS if check not in without]
    assert [which for which, (good, _) in found.items() if not good] == [what]
    assert text in found[what][1]


def test_a_bad_configuration_is_all_it_can_tell(home: Path) -> None:
    home.unlink()
    healthy, found = findings(home)
    assert not healthy and list(found) == ["configuration"]
    assert "No such file or directory" in found["configuration"][1]


@pytest.mark.parametrize("label", ["3", "-1", "1.5"])
def test_a_label_that_is_no_class(home: Path, tiny: tuple[bytes, Theta], label: str) -> None:
    """Of three; arrays name their row and tables their line, and without a model it is only shown."""
    with np.load(home.parent / "train.npz") as arrays:
        x, y = arrays["x"], arrays["y"].astype(float)
    y[17] = float(label)
    np.savez(home.parent / "train.npz", x=x, y=y)
    assert findings(home)[1]["data"][0]
    put_models(home, tiny[0], {"first": tiny[1]})
    good, text = findings(home)[1]["data"]
    assert not good and f"train.npz, row 17: y[17] is {label}" in text
    rows = [",".join(map(str, (*row, 1))) for row in x.reshape(len(x), -1)]
    rows[17] = rows[17][:-1] + label
    (home.parent / "train.csv").write_text("\n\n" + "\n".join(rows))
    (home.parent / "train.npz").unlink()
    good, text = findings(home)[1]["data"]
    assert not good and "train.npz: no such file, but train.csv is there; to train on it: " in text
    subprocess.run(shlex.split(text.partition("train on it: ")[2]), check=True)
    good, text = findings(home)[1]["data"]
    said = f"train.csv, line 20: y[17] is {label}, but the model has classes 0 to"
    assert not good and said in text


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (np.full((20, 6), 60.0), "each 6, x from 60 to 60"),
        (
            np.arange(120, dtype=np.uint8).reshape(20, 6),
            "each 6, x from 0 to 119, y labels from 0 to 2; x holds unsigned bytes in rows of shape "
            "(6,), read as numbers",
        ),
        (
            np.arange(120, dtype=np.uint8).reshape(20, 1, 2, 3),
            "each 1x2x3, x from 0 to 0.467, bytes read as pixels",
        ),
        (np.arange(120).reshape(20, 6), "each 6, x from 0 to 119"),
    ],
)
def test_what_training_sees_of_the_values(home: Path, x: NDArray[np.generic], said: str) -> None:
    """The same numbers in two types are two scales when one of them is pixels."""
    np.savez(home.parent / "train.npz", x=x, y=np.arange(20) % 3)
    good, text = findings(home)[1]["data"]
    assert good and said in text


def test_a_check_that_finds_no_memory_ends_the_others_not(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise MemoryError

    monkeypatch.setattr(doctor, "read_source", full)
    healthy, found = findings(home)
    assert not healthy and list(found) == CHECKS
    assert found["data"] == (False, "the check needs more memory than is free")


def test_photographs_are_compared_with_the_model_first(
    home: Path, tiny: tuple[bytes, Theta]
) -> None:
    """By the first image alone; the other is none."""
    put_models(home, tiny[0], {"first": tiny[1]})
    folder = home.parent / "train.npz" / "0-cat"
    (home.parent / "train.npz").unlink()
    folder.mkdir(parents=True)
    Image.new("RGB", (40, 30)).save(folder / "a.png")
    (folder / "b.png").write_bytes(b"")
    good, text = findings(home)[1]["data"]
    assert not good
    assert text == f"{folder / 'a.png'}: an image (3, 30, 40), but the model expects (6,)"


def test_whole_numbers_without_a_row(home: Path, tiny: tuple[bytes, Theta]) -> None:
    put_models(home, tiny[0], {"first": tiny[1]})
    np.savez(home.parent / "train.npz", x=np.zeros((0, 6), np.int64), y=np.zeros(0, np.int64))
    good, text = findings(home)[1]["data"]
    assert not good and text


def test_data_are_held_against_the_newest_run_not_the_newest_personal_model(
    home: Path, tiny: tuple[bytes, Theta], tmp_path: Path
) -> None:
    """A fleet went on with a model of four classes; the device has not trained it yet."""
    put_models(home, tiny[0], {"old": tiny[1]})
    blobs, journal = BlobFolder(home.parent / "state", 0), home.parent / "state" / "journal"
    torch.manual_seed(0)
    model, sample = mlp(6, 4, 4), torch.randn(4, 6)
    export(model, sample, batch_size=4, name="new", num_classes=4, folder=tmp_path / "b")
    name = blobs.write(bundles.pack(bundles.load(tmp_path / "b")[0]))
    store = Journal(journal, AgentState, SCHEMA)
    state = store.load()
    assert state is not None
    runs = {"new": RunState(name, bytes(32), 1, Kept()), **state.runs}
    with np.load(home.parent / "train.npz") as arrays:
        x, y = arrays["x"], arrays["y"]
    np.savez(home.parent / "train.npz", x=x, y=np.where(np.arange(len(y)) == 17, 3, y))
    store.commit(replace(state, runs=runs, recent=("new", "old")))
    good, text = findings(home)[1]["data"]
    assert not good and "y[17] is 3" in text
    store.commit(replace(state, runs=runs, recent=("old", "new", "deleted")))
    assert findings(home)[1]["data"][0]


def test_code_of_the_devices_own(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It must be there; and whoever has it may have torch."""
    cuda_torch(home, monkeypatch)
    with home.open("a") as config:
        config.write('[backend]\nname = "doctors_client:fit"\n')
    healthy, found = findings(home)
    assert not healthy
    good, text = found["backend"]
    assert not good
    assert "found 'doctors_client:fit', expected module:function that can be imported" in text
    (home.parent / "doctors_client.py").write_text("def fit(): pass")
    healthy, found = findings(home)
    assert healthy
    assert found["backend"][1] == "doctors_client:fit can be imported"
    assert found["torch"][1] == "2.9.0+cu130 is installed"


def test_torch_does_no_harm_on_large_machines(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda_torch(home, monkeypatch)
    monkeypatch.setattr(platform, "machine", always("x86_64"))
    assert findings(home)[0]


def test_a_device_without_torch(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def find(name: str) -> str:
        if name == "torch":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(doctor, "version", find)
    assert findings(home)[1]["torch"] == (True, "not installed, and not needed")
