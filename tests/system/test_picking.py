"""FedOBP whose devices pick how much is personal: the coordinator's core, and jobs as a device does them.

As in ``test_obp_scoring``: training is half of the way to the device's own centre, on a grid on which every
sum and mean is exact, so what the cloud takes for a device's model must be that model to the bit.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from tests.cloud.helper import LAYOUT, RUN, Cloud, a_hello, make_bundle, random_theta
from tests.system.test_obp_scoring import CONFIG, GRID, Device, Puller, centre, rounded

from sedge_cloud.admin.runs import start_run
from sedge_cloud.config import RobustConfig
from sedge_edge.rounds.storage import FolderVectors
from sedge_edge.training.examples import Examples, holdout_size
from sedge_edge.training.job import CODECS, WorkerContext
from sedge_protocol.codec import decode
from sedge_protocol.codec.patch_levels import decode_levels, offered
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.messages import TRAIN, Order
from sedge_protocol.wire.update import Metrics, decode_update

NAMES = ("a", "b", "c", "d")
SIZES = [0, 8, 36, 200]
EXAMPLES = Examples(np.zeros((20, 119), np.float32), np.zeros(20, np.int64))
TEST = Examples(np.zeros((7, 119), np.float32), np.zeros(7, np.int64))


@dataclass(frozen=True)
class Judge(Puller):
    """On what is held out a model is the better, the nearer to ``want`` are its elements above 1."""

    want: int = 0

    def evaluate(self, theta: Theta, examples: Examples) -> Metrics:
        if len(examples.targets) == len(TEST.targets):
            return Metrics(1.0, 0.5, 7)
        return Metrics(float(abs(np.count_nonzero(theta > 1) - self.want)), 0.5, 2)


def play(folder: Path, wants: tuple[int, ...]) -> tuple[Cloud, dict[str, Device], list[int]]:
    """A whole run; the levels that were picked while there was something to pick."""
    options = {"prefixes": SIZES, "holdout": 0.1}
    robust = RobustConfig(clip=0.0, rule="mean")  # means that stay on the grid
    config = msgspec.structs.replace(
        CONFIG, options=options, fraction_train=1.0, robust=robust
    ).check()
    cloud = Cloud(folder, None, NAMES)
    first = rounded(random_theta(1), GRID)
    start_run(cloud.store, RUN, make_bundle(folder / "own", init=first), config)
    cloud.restart()
    bundle, _ = bundles.load(folder / "own")
    devices: dict[str, Device] = {}
    for number, (name, want) in enumerate(zip(NAMES, wants, strict=True)):
        blobs = BlobFolder(folder / name, 0)
        trainer = Judge(rounded(centre(number), GRID), GRID, want)
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
        cloud.say(name, a_hello(name, codecs=CODECS))
    cloud.poll(seconds=5)
    picked: list[int] = []
    while cloud.run_row().status == "running":
        task = cloud.core.open[RUN].row.task
        for name in NAMES:
            order = cloud.order(name)
            update = devices[name].do(order, cloud)
            report, _ = decode_update(update)
            assert report.num_examples == 20 - holdout_size(20, 0.1) == 18
            level, expected = report.level, levels_of(order)
            assert level is not None and level in expected
            picked += [level] if len(expected) > 1 else []
            cloud.upload(name, update)
            if task == TRAIN:
                known = cloud.core.run_store.client_model(cloud.core.runs[RUN], name)
                assert known.trained is not None
                np.testing.assert_array_equal(known.trained, devices[name].model)
        cloud.poll(seconds=5)
        if cloud.store.current_round(RUN) is not None and picked:
            cloud.restart()  # and the levels of an open round are found on disk
            for name in NAMES:
                cloud.say(name, a_hello(name, codecs=CODECS))
            cloud.poll(seconds=5)
    assert cloud.run_row().status == "finished"
    return cloud, devices, picked


def levels_of(order: Order) -> tuple[int, ...]:
    assert order.work.choice is not None
    count = decode(order.patch, LAYOUT.size).count if order.patch else 0
    return offered(decode_levels(order.work.choice.levels, count))


def test_the_cloud_knows_what_every_device_has_picked(tmp_path: Path) -> None:
    cloud, devices, picked = play(tmp_path, (0, 8, 36, 200))
    assert len(set(picked)) > 2
    # What the summaries count is what the devices have started with.
    counts = [sum(summary.personal.values()) for summary in cloud.summaries()]
    assert counts[0] == 0 and max(counts) > 8
    for number, summary in enumerate(cloud.summaries()):
        assert summary.failure == ""
        for device in devices.values():
            order = device.orders[number]
            assert order.work.choice is not None and order.work.choice.holdout == 0.1
