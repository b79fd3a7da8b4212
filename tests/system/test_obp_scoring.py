"""FedOBP scored by the cloud and by the devices: the coordinator's core, and jobs as a device does them.

Training is a pull towards the device's own centre. On a grid, with two equal devices in a round, every
sum and mean is exact, so both ways must end in the same bytes, and what the cloud takes for a device's
model must be that model to the bit, also where devices pick how much is personal.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.cloud.helper import LAYOUT, RUN, TRUSTING, Cloud, a_hello, make_bundle, random_theta

from sedge_cloud.admin.runs import start_run
from sedge_cloud.coding import EXACT, BroadcastConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.run_file import check_run
from sedge_cloud.runs.run import Run
from sedge_edge.jobs.global_model import global_model, needed_blobs
from sedge_edge.jobs.job import Job, Kept, Outcome
from sedge_edge.jobs.storage import FolderVectors
from sedge_edge.training.examples import Examples, holdout_size
from sedge_edge.training.job import CODECS, WorkerContext, run_job
from sedge_edge.training.preparation import prepare
from sedge_edge.training.trainer import Predictor, Trained, TrainingState, TrainRequest
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.update import Metrics, Report

NAMES = ("a", "b", "c", "d")
ROUNDS = 6
SIZES = [0, 8, 36, 200]
QUANTILE = 0.997  # 36 of 12,000
EXAMPLES = Examples(np.zeros((20, 119), np.float32), np.zeros(20, np.int64))
TEST = Examples(np.zeros((7, 119), np.float32), np.zeros(7, np.int64))
GRID = 2.0**-10
CONFIG = RunConfig(
    strategy="fedobp",
    num_rounds=ROUNDS,
    fraction_train=0.5,
    min_available_devices=4,
    options={"quantile": QUANTILE},
    codec=EXACT,
    broadcast=BroadcastConfig(fraction=0.05),
    robust=TRUSTING,
)
DEVICE = {"scoring": "device"}


@dataclass(frozen=True)
class Puller:
    """Half of the way to ``centre`` (n,), or on the grid to the multiple of 2^-10 next to that.

    On what is held out a model is the better, the nearer to ``want`` are its elements above 1.
    """

    centre: Theta
    grid: float
    want: int = 0

    def train(
        self,
        request: TrainRequest,
        examples: Examples,
        stopped: Callable[[], bool],
        resume: TrainingState | None = None,
    ) -> Trained:
        slope = ((request.theta - self.centre) / 2).astype(np.float32)
        end = request.theta - slope
        if self.grid:
            end = (np.round(end / self.grid) * self.grid).astype(np.float32)
        return Trained(end, 0.5, 1, slope if request.gradient else None)

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        if len(examples.targets) == len(TEST.targets):
            return Metrics(1.0, 0.5, 7)
        return Metrics(float(abs(np.count_nonzero(theta > 1) - self.want)), 0.5, 2)

    def predictor(self, theta: Theta) -> Predictor:
        raise AssertionError("nobody predicts")


def centre(number: int) -> Theta:
    """What a device's data wants: near zero, but for 40 elements of its own, 20 of each neighbour's too."""
    theta = random_theta(50 + number)
    theta[20 * number : 20 * number + 40] += np.float32(3)
    return theta


def rounded(theta: Theta, grid: float) -> Theta:
    return (np.round(theta / grid) * grid).astype(np.float32) if grid else theta


@dataclass
class Device:
    """What one device holds, and what it has been asked."""

    place: WorkerContext
    outcome: Outcome | None = None
    orders: list[Order] = field(default_factory=list[Order])
    reports: list[Report] = field(default_factory=list[Report])
    starts: list[tuple[Theta, Theta]] = field(default_factory=list[tuple[Theta, Theta]])
    slopes: list[Theta] = field(default_factory=list[Theta])

    def do(self, order: Order, cloud: Cloud) -> bytes:
        """Fetch what is missing, do the job and keep what it leaves; the update."""
        for manifest in needed_blobs(order, self.place.blobs.has):
            self.place.blobs.write(cloud.store.blobs.read(manifest.sha256))
        job = Job(order, Kept() if self.outcome is None else self.outcome.kept)
        bundle, _ = bundles.load(cloud.folder / "own")
        start = prepare(job, self.place, bundle.manifest).start
        shared = global_model(order, self.place.blobs, self.place.vectors, LAYOUT)
        self.orders.append(order)
        self.starts.append((shared, start))
        self.outcome = run_job(job, self.place)
        self.reports.append(self.outcome.report)
        if self.outcome.kept.gradient is not None:
            self.slopes.append(self.place.vectors.read(self.outcome.kept.gradient, LAYOUT))
        return self.place.blobs.read(self.outcome.update)

    @property
    def model(self) -> Theta:
        assert self.outcome is not None and self.outcome.kept.model is not None
        return self.place.vectors.read(self.outcome.kept.model, LAYOUT)


def play(
    folder: Path,
    grid: float,
    options: Mapping[str, object],
    restarts: bool = False,
    config: RunConfig = CONFIG,
) -> tuple[Cloud, dict[str, Device]]:
    """A whole run, with the measurement at its end; the coordinator ``restarts`` after every round."""
    config = check_run(msgspec.structs.replace(config, options={**config.options, **options}))
    cloud = Cloud(folder, None, NAMES)
    first = rounded(random_theta(1), grid)
    start_run(cloud.store, RUN, make_bundle(folder / "own", init=first), config)
    cloud.restart()
    bundle, _ = bundles.load(folder / "own")
    devices: dict[str, Device] = {}
    for number, name in enumerate(NAMES):
        blobs = BlobFolder(folder / name, 0)
        trainer = Puller(rounded(centre(number), grid), grid, SIZES[number])
        devices[name] = Device(
            WorkerContext(
                blobs,
                FolderVectors(blobs),
                EXAMPLES,
                TEST,
                lambda sha256, trainer=trainer: (bundle, trainer),  # type: ignore[misc]
                lambda: False,
                lambda: 0.0,
            )
        )
    greet(cloud)
    while cloud.run_row().status == "running":
        given = {name: cloud.messages(name, Order) for name in NAMES}
        waiting = [name for name in NAMES if is_new(given[name], devices[name])]
        assert waiting
        for name in waiting:
            cloud.upload(name, devices[name].do(given[name][-1], cloud))
        cloud.poll(seconds=5)
        if restarts:
            cloud.restart()
            greet(cloud)
    assert cloud.run_row().status == "finished"
    return cloud, devices


def is_new(given: list[Order], device: Device) -> bool:
    """Whether the last order is one that the device has not done; it may be sent again."""
    done = {order.round for order in device.orders}
    return bool(given) and given[-1].round not in done


def greet(cloud: Cloud) -> None:
    for name in NAMES:
        cloud.say(name, a_hello(name, codecs=CODECS))
    cloud.poll(seconds=5)


def test_both_end_in_the_same_bytes(tmp_path: Path) -> None:
    by_cloud, theirs = play(tmp_path / "cloud", GRID, {})
    by_devices, ours = play(tmp_path / "device", GRID, DEVICE)
    assert by_devices.state().model_hash == by_cloud.state().model_hash
    patched = 0
    for name in NAMES:
        one, other = theirs[name], ours[name]
        assert other.model.tobytes() == one.model.tobytes()
        for (_, start), (_, found) in zip(one.starts, other.starts, strict=True):
            assert found.tobytes() == start.tobytes()
        for order in other.orders:
            assert order.work.scoring is not None and not order.patch_hash
        for order, (shared, start) in zip(one.orders, one.starts, strict=True):
            assert order.work.scoring is None
            patched += bool(order.patch_hash) and int((shared != start).sum())
    # At least two rounds of training and the measurement have found what is personal.
    assert patched >= 3 * 30
    assert not any(summary.personal for summary in by_devices.summaries())
    assert any(summary.personal for summary in by_cloud.summaries())


def test_the_cloud_knows_what_every_device_has_picked(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, fraction_train=1.0)  # means that stay on the grid
    cloud, devices = play(tmp_path, GRID, {"holdout": 0.1}, restarts=True, config=config)
    picked, run = list[bool](), Run(cloud.run_row(), cloud.store)
    for name, device in devices.items():
        known = cloud.core.run_store.client_model(run, name)
        assert known.trained is not None
        np.testing.assert_array_equal(known.trained, device.model)
        for order, report in zip(device.orders, device.reports, strict=True):
            assert report.num_examples == 20 - holdout_size(20, 0.1) == 18
            assert order.work.choice is not None and order.work.choice.holdout == 0.1
            assert report.patched is not None
            assert report.patched <= bool(order.patch_hash)
            if order.patch_hash:
                picked.append(report.patched)
    assert set(picked) == {False, True}
    # What the summaries count is what the devices have started with.
    counts = [sum(summary.personal.values()) for summary in cloud.summaries()]
    assert counts[0] == 0 and max(counts) > 8
    assert not any(summary.failure for summary in cloud.summaries())


def test_both_are_the_same_up_to_rounding(tmp_path: Path) -> None:
    """Off the grid g + (th - g) is not th to the last bit, and neither is s + (th - s)."""
    by_cloud, _ = play(tmp_path / "cloud", 0, {})
    by_devices, _ = play(tmp_path / "device", 0, DEVICE)
    one, other = (cloud.model(cloud.state().model) for cloud in (by_cloud, by_devices))
    np.testing.assert_allclose(other, one, rtol=0, atol=2e-6)


def test_plain_updates_show_a_device_to_the_cloud_whoever_scores(tmp_path: Path) -> None:
    """What the mode is not: without secure aggregation the cloud can add an update to the global."""
    cloud, devices = play(tmp_path, GRID, DEVICE)
    state, run_store = cloud.state(), cloud.core.run_store
    for name, device in devices.items():
        row = cloud.store.client_model(RUN, name)
        assert row is not None and not row.patch_hash and not row.arrays
        delta = run_store.delta(LAYOUT.size, row.blob, row.context)
        assert delta is not None
        seen = run_store.theta(row.model, LAYOUT.size) + delta.dense()
        np.testing.assert_array_equal(seen, device.model)
    assert state.arrays == b"" and state.groups == b""


@pytest.mark.parametrize("score", ["gradient", "fisher"])
def test_a_device_scores_by_the_gradient_of_its_round_before(tmp_path: Path, score: str) -> None:
    _, devices = play(tmp_path, 0, {**DEVICE, "score": score})
    found = 0
    for device in devices.values():
        for place in range(1, len(device.orders)):
            slope = np.abs(device.slopes[place - 1])
            shared, start = device.starts[place]
            expected = set(np.argsort(-slope, kind="stable")[:36].tolist())
            assert set(np.flatnonzero(start != shared).tolist()) <= expected
            found += int((start != shared).sum())
    assert found > 100


def test_all_that_is_beyond_the_papers_survives_restarts(tmp_path: Path) -> None:
    """How much a device was given comes from the store."""
    options = {"energy": 0.9, "most": 0.02, "ema": 0.5}
    quiet, _ = play(tmp_path / "quiet", GRID, options)
    shaken, _ = play(tmp_path / "shaken", GRID, options, restarts=True)
    assert shaken.state() == quiet.state()
    personal = [sum(summary.personal.values()) for summary in quiet.summaries()]
    assert personal[0] == 0 < personal[-1] <= 4 * 240
    plain, _ = play(tmp_path / "plain", GRID, {})
    assert plain.state().model_hash != quiet.state().model_hash
