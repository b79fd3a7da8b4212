"""What hostile devices send: made by the worker from what they learned, told apart from honest jobs."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.emulate.workers.fleet_of_four import OrderMaker, make_setup, with_backend

from sedge_edge.training.preparation import Job
from sedge_emulate.attack import AttackConfig
from sedge_emulate.virtual.result_cache import job_key
from sedge_emulate.workers.worker import Finished, Request, Worker
from sedge_protocol.codec import decode
from sedge_protocol.wire.update import Report, decode_update


def test_who_is_hostile_and_claims_what() -> None:
    attack = AttackConfig(devices=2, claim=9)
    assert [attack.of(number) is attack for number in range(4)] == [True, True, False, False]
    assert [attack.claimed(number, 5) for number in range(3)] == [9, 9, 5]
    assert AttackConfig(devices=2).claimed(0, 5) == 5
    assert AttackConfig().of(0) is None


def test_it_sends_what_it_likes(tmp_path: Path) -> None:
    """Another change and another number; its accuracies and its own model are the honest device's."""
    setup = with_backend(make_setup(tmp_path / "setup", devices=2), "onnx")
    maker, worker = OrderMaker(setup, tmp_path / "disk"), Worker(setup)
    job = Job(maker.order())

    def sent(attack: AttackConfig | None) -> tuple[Report, np.ndarray]:
        key = job_key(b"", "device-0", job, attack)
        (answer,) = worker.perform([Request(0, job, maker.home, key, 1.0, attack)]).answers
        assert isinstance(answer, Finished), answer
        report, payload = decode_update(answer.update)
        assert report == answer.outcome.report
        delta = decode(bytes(payload), len(maker.theta))
        assert delta.indices is None
        return report, delta.values

    report, delta = sent(None)
    lie, scaled = sent(AttackConfig(1, scale=-4.0, claim=2**40))
    assert lie == msgspec.structs.replace(report, num_examples=2**40)
    assert scaled == pytest.approx(-4 * delta, rel=1e-3, abs=1e-5) and np.abs(delta).max() > 0.01
    assert sent(AttackConfig(1, scale=1.0))[0] == report
