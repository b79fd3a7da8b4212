"""What an emulation remembers of finished jobs, and under which name."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from sedge_edge.jobs.job import Job, Kept, Outcome
from sedge_emulate.virtual.result_cache import ResultCache, job_key
from sedge_emulate.workers.worker import Finished
from sedge_protocol.errors import StorageError
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.update import Metrics, Report

MANIFEST = describe(bytes(100))
ORDER = Order(
    run="r", round=1, task="train", bundle=MANIFEST, model=MANIFEST, model_hash=bytes(32), seed=7
)
REPORT = Report(
    run="r", round=1, task="train", layout_hash=bytes(32), model_hash=bytes(32), num_examples=3,
    before=Metrics(1.0, 0.5, 2), after=Metrics(0.5, 1.0, 2), train_loss=0.25, steps=4, seconds=1.5,
)  # fmt: skip
DONE = Finished(Outcome("r", 1, bytes([1]) * 32, REPORT, Kept(bytes([2]) * 32)), b"the update")
KEY = job_key(b"fleet", "device-1", Job(ORDER))


def test_what_was_kept_is_found_again_by_another_process(tmp_path: Path) -> None:
    ResultCache(tmp_path).keep(KEY, DONE)
    assert ResultCache(tmp_path).find(KEY) == DONE
    assert ResultCache(tmp_path).find(bytes(32)) is None


def test_a_job_is_what_its_outcome_depends_on() -> None:
    changes: list[dict[str, Any]] = [{"seed": 8}, {"model_hash": b"m" * 32}, {"patch": b"p"}]
    jobs = [
        *(Job(msgspec.structs.replace(ORDER, **change)) for change in changes),
        *(Job(ORDER, Kept(**{name: b"a" * 32})) for name in Kept.__struct_fields__),
    ]
    others = (b"other", "device-1"), (b"fleet", "device-2")
    keys = {KEY, *(job_key(*other, Job(ORDER)) for other in others)}
    keys |= {job_key(b"fleet", "device-1", job) for job in jobs}
    assert len(keys) == 3 + len(jobs)


def test_a_job_whose_file_was_cut_short_is_done_again(tmp_path: Path) -> None:
    ResultCache(tmp_path).keep(KEY, DONE)
    path = next(p for p in tmp_path.rglob("*") if p.is_file())
    path.write_bytes(path.read_bytes()[:-20])
    cache = ResultCache(tmp_path)
    assert cache.find(KEY) is None
    cache.keep(KEY, DONE)
    assert cache.find(KEY) == DONE and cache.caught_up


def test_a_half_written_file_is_not_there(tmp_path: Path) -> None:
    cache = ResultCache(tmp_path)
    cache.keep(KEY, DONE)
    path = next(p for p in tmp_path.rglob("*") if p.is_file())
    path.rename(path.with_suffix(".part"))
    assert cache.find(KEY) is None


def test_a_run_has_caught_up_when_it_has_kept_everything_again(tmp_path: Path) -> None:
    other = job_key(b"fleet", "device-2", Job(ORDER))
    first = ResultCache(tmp_path)
    assert first.caught_up
    for key in (KEY, other):
        first.keep(key, DONE)
    assert first.caught_up
    assert first.ahead == 0
    again = ResultCache(tmp_path)
    assert not again.caught_up and again.ahead == 2
    for key in (KEY, KEY, bytes(32)):
        again.find(key)
        again.keep(key, DONE)
    assert not again.caught_up and again.ahead == 1
    again.keep(other, DONE)
    assert again.caught_up


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="file"):
        ResultCache(tmp_path / "file")
