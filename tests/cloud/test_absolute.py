"""Strategies whose next global model does not count from the present one, with a coded broadcast."""

from pathlib import Path

import numpy as np
import pytest
from tests.cloud.helper import FLEET, LAYOUT, RUN, Cloud, random_theta, report_for

from sedge_cloud.admin.run_report import run_report
from sedge_cloud.coding import WHOLE, BroadcastConfig
from sedge_cloud.config import RunConfig
from sedge_cloud.facts.reader import Reader
from sedge_edge.training.critical_elements import critical
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.update import encode_update

NAMES = ("a", "b", "c", "d")
ROUNDS = 8
# A tenth of the way from where it starts to where it would be best.
PACE = 0.1


class Fleet:
    """Devices that go towards a place of their own, near one that they have in common."""

    def __init__(self, folder: Path, strategy: str, broadcast: BroadcastConfig) -> None:
        config = RunConfig(
            strategy=strategy,
            options={"beta": ROUNDS},
            num_rounds=ROUNDS,
            min_available_devices=len(NAMES),
            min_train_devices=len(NAMES),
            broadcast=broadcast,
            evaluate=False,
        )
        self.cloud = Cloud(folder, config, devices=NAMES)
        self.cloud.hello(*NAMES, codecs=("select", "remember"))
        self.places = {name: random_theta(seed) for seed, name in enumerate(NAMES, start=1)}

    def play(self) -> list[float]:
        """The root mean square of the global model after each round."""
        found: list[float] = []
        for _ in range(ROUNDS):
            shared = self.shared()
            for name in NAMES:
                order = self.cloud.order(name)
                self.cloud.upload(name, self._update(name, order, shared), 2**16)
            self.cloud.poll()
            found.append(float(np.sqrt(np.square(self.shared()).mean())))
        return found

    def shared(self) -> Theta:
        return self.cloud.model(self.cloud.state().model)

    def _update(self, name: str, order: Order, shared: Theta) -> bytes:
        start = shared.copy()
        row = self.cloud.store.order(RUN, order.round, name)
        patch = None if row is None else self.cloud.core.run_store.patch(row, LAYOUT.size)
        if patch is not None:
            patch.scatter_into(start)
        delta = np.multiply(self.places[name] - start, PACE, dtype=np.float32)
        sent = SparseVector(LAYOUT.size, None, delta)
        if order.work.select is not None:
            chosen = critical(start + delta, delta, LAYOUT, order.work.keep, order.work.select)
            sent = SparseVector(LAYOUT.size, chosen, delta[chosen.astype(np.intp)])
        return encode_update(report_for(order), encode(sent, ValueCoding.FP32, Compression.NONE))


@pytest.mark.parametrize("strategy", [pytest.param("fedpurin", marks=pytest.mark.slow), "fedcac"])
def test_a_coded_broadcast_reaches_what_a_whole_one_does(tmp_path: Path, strategy: str) -> None:
    """Nothing is counted twice; of a vector that replaces, every element is sent: a part is no model."""
    whole = Fleet(tmp_path / "whole", strategy, WHOLE)
    reached = whole.play()[-1]
    assert not any(summary.replaced for summary in whole.cloud.summaries())
    for broadcast in (BroadcastConfig(ValueCoding.INT8, 1.0), BroadcastConfig()):
        coded = Fleet(tmp_path / str(broadcast), strategy, broadcast)
        parts = broadcast.fraction != 1.0
        assert abs(coded.play()[-1] / reached - 1) < 0.05
        assert not coded.cloud.state().owed and coded.cloud.state().steps
        replaced = [summary.replaced for summary in coded.cloud.summaries()]
        assert replaced == [parts] * ROUNDS
        assert coded.cloud.core.counters["replaced_models"] == parts * ROUNDS
        reader = Reader(FLEET, coded.cloud.folder / "state", coded.cloud.store)
        shown = list(run_report(reader, RUN, as_json=False))
        said = "      the strategy replaces the model, so every element of the next one is sent"
        assert shown.count(said) == parts * ROUNDS
