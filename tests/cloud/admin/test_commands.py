"""The commands of a model's life: their good path, what they print, and their errors in one line."""

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.admin.test_cloud_models import trained
from tests.cloud.helper import RUN, Cloud, make_bundle
from tests.cloud.stores import in_a_folder
from tests.cloud.test_cloud_main import CAPSYS, call, linked, refused, unused

from sedge_cloud.__main__ import main
from sedge_cloud.runs import garbage as run_stores
from sedge_protocol.host.loop import lock_folder


@pytest.fixture
def home(tmp_path: Path, capsys: CAPSYS) -> Path:
    assert main(["init", str(tmp_path / "home"), "--fleet", "bench", "--url", unused()]) == 0
    capsys.readouterr()
    return tmp_path / "home"


@pytest.fixture
def cloud(home: Path, tmp_path: Path) -> Cloud:
    """The state that the configuration names: a run that has finished."""
    cloud = trained(tmp_path / "cloud")
    linked(home, cloud)
    return cloud


def said(capsys: CAPSYS) -> str:
    """What was printed, and nothing on standard error."""
    out, err = capsys.readouterr()
    assert err == ""
    return out


def test_export(home: Path, cloud: Cloud, tmp_path: Path, capsys: CAPSYS) -> None:
    files = [str(tmp_path / name) for name in ("g.npz", "h.csv", "a.pt")]
    words = ("run", "export", RUN, "--out")
    assert call(home, *words, files[0], "--history", files[1]) == 0
    assert call(home, *words, files[2], "--device", "a") == 0
    assert call(home, "run", "export", RUN, "--devices", str(tmp_path / "own")) == 0
    assert said(capsys) == ""
    with np.load(files[0]) as tensors:
        assert set(tensors.files) == {"body.weight", "head.bias"}
    assert sorted(path.name for path in (tmp_path / "own").iterdir()) == ["a.npz", "b.npz"]
    assert all(Path(name).stat().st_size > 100 for name in files)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "run export: found 'run', expected --out, --devices or --history"),
        (["--device", "a"], "--device: found 'a', expected --out as well"),
        (["--history", "x.txt"], "--history: found 'x.txt', expected a name that ends in .csv"),
        (["--out", "x.onnx"], "no program 'predict' for onnxruntime"),
        (["--out", "x.npz", "--device", "z"], "expected a device with a model in run run: a, b"),
    ],
)
def test_what_export_refuses(
    home: Path, cloud: Cloud, capsys: CAPSYS, words: list[str], text: str
) -> None:
    status = 6 if "program" in text else 2
    refused(capsys, call(home, "run", "export", RUN, *words), text, expected=status)


def test_start_from_resume_and_delete(
    home: Path, cloud: Cloud, tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_stores, "ORPHAN_AGE_S", 0.0)
    run_file = tmp_path / "run.toml"
    run_file.write_text('strategy = "fedavg"\n')
    bundle = make_bundle(tmp_path / "bundle")
    start = ("--bundle", str(bundle), "--run-file", str(run_file), "--from", RUN)
    assert call(home, "run", "start", "second", *start) == 0
    assert call(home, "run", "resume", RUN, "--rounds", "2") == 0
    assert said(capsys).splitlines()[-2] == "run run continues, up to 2 rounds of training"
    refused(capsys, call(home, "run", "delete", RUN), "run: found 'run (running)', expected a run")
    assert call(home, "run", "stop", RUN) == 0
    assert call(home, "run", "delete", RUN, "--dry-run") == 0
    assert said(capsys).splitlines()[-1].startswith("run run would be deleted, and ")
    assert call(home, "run", "delete", RUN) == 0
    lines = said(capsys).splitlines()
    assert lines[0].startswith("run run is deleted, and ") and lines[2].startswith("freed: ")
    refused(capsys, call(home, "run", "delete", RUN), "run: found 'run', expected the name")
    assert [row.run for row in cloud.store.runs()] == ["second"]


def test_prune(home: Path, cloud: Cloud, capsys: CAPSYS) -> None:
    config = home / "cloud.toml"
    config.write_text(config.read_text() + "[keep]\nruns = 1\nrounds = 10\ngigabytes = 1.5\n")
    old = msgspec.structs.replace(cloud.run_row(), run="old", status="stopped", created=0.0)
    cloud.store.add_run(old)
    assert call(home, "prune", "--dry-run") == 0
    assert said(capsys).splitlines()[0] == "runs would be deleted: old"
    with lock_folder(cloud.folder / "state"):  # as the service holds it
        assert call(home, "prune") == 0
    lines = said(capsys).splitlines()
    assert lines[0] == "runs deleted: old" and "will free the space" in lines[-1]
    assert call(home, "prune") == 0
    assert said(capsys).splitlines()[0] == "runs deleted: none"


@in_a_folder
def test_backup_and_restore(home: Path, cloud: Cloud, tmp_path: Path, capsys: CAPSYS) -> None:
    backup = str(tmp_path / "b.tar")
    assert call(home, "backup", backup) == 0
    lines = said(capsys).splitlines()
    assert lines[0].startswith(f"written: {backup}, ") and "devices' secrets" in lines[-1]
    assert (tmp_path / "b.tar").stat().st_mode & 0o777 == 0o600
    refused(capsys, call(home, "restore", backup), "expected an empty store")
    refused(capsys, call(home, "restore", backup + "x"), "open backup", "No such file", expected=4)
    cloud.store.close()
    shutil.rmtree(cloud.folder / "state")
    assert call(home, "restore", backup) == 0
    assert "run run: finished, 1 rounds closed" in said(capsys).splitlines()
    assert call(home, "run", "list") == 0
    assert "finished" in said(capsys)
    nowhere = str(tmp_path / "none" / "b.tar")
    refused(capsys, call(home, "backup", nowhere), "No such file", expected=4)
