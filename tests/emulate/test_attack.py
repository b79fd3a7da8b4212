"""What hostile devices send: made by the worker from what they learned, told apart from honest jobs."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.emulate.workers.fleet_of_four import OrderMaker, make_setup, with_backend

from sedge_cloud.algorithms.outliers import filter_outliers
from sedge_cloud.algorithms.robust import TRUSTED, Robust
from sedge_cloud.strategy import Update
from sedge_edge.jobs.job import Job
from sedge_edge.training.examples import Examples
from sedge_emulate.attack import ATTACKS, Attack, AttackConfig, Knowledge, Name, poisoned
from sedge_emulate.virtual.result_cache import job_key
from sedge_emulate.workers.worker import Finished, Request, Worker
from sedge_protocol.codec import SparseVector, decode
from sedge_protocol.wire.update import Report, decode_update

LOOSE = Robust(clip=3, max_weight=4)


def test_who_is_hostile_and_claims_what() -> None:
    attack = Attack(AttackConfig(devices=2, claim=9, name="hidden", knows="all"), devices=4)
    assert [attack.of(number) is attack for number in range(4)] == [True, True, False, False]
    assert [attack.config.claimed(number, 5) for number in range(3)] == [9, 9, 5]
    assert AttackConfig(devices=2).claimed(0, 5) == 5
    assert Attack().of(0) is None
    assert (attack.others(1), attack.poisoned(1)) == ([0, 2, 3], [1, 0])
    own = Attack(AttackConfig(devices=2, name="inner"), devices=4)
    assert (own.others(1), own.poisoned(1)) == ([0], [])


def test_it_sends_what_it_likes(tmp_path: Path) -> None:
    """Another change and another number; its accuracies and its own model are the honest device's."""
    setup = with_backend(make_setup(tmp_path / "setup", devices=2), "onnx")
    maker, worker = OrderMaker(setup, tmp_path / "disk"), Worker(setup)
    job = Job(maker.order())

    def sent(config: AttackConfig | None) -> tuple[Report, np.ndarray]:
        attack = None if config is None else Attack(config, Robust(), 2)
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
    # Alone it knows only its own change; what the other's examples teach moves the mean.
    against = sent(AttackConfig(1, scale=2.0, name="inner"))[1]
    assert against == pytest.approx(-2 * delta, rel=1e-3, abs=1e-5)
    knowing = sent(AttackConfig(1, scale=2.0, name="inner", knows="all"))[1]
    assert np.linalg.norm(knowing - against) > 0.1 * np.linalg.norm(against)
    # Under wrong labels it learns something else.
    wrong = sent(AttackConfig(1, name="labels"))[1]
    assert wrong @ delta < 0.9 * np.linalg.norm(wrong) * np.linalg.norm(delta)


def test_examples_are_falsified() -> None:
    images = np.arange(32, dtype=np.float32).reshape(2, 1, 4, 4)
    examples = Examples(images, np.array([1, 2]))
    assert poisoned(examples, "hidden", 10).targets.tolist() == [8, 7]
    marked = poisoned(examples, "backdoor", 10)
    assert marked.targets.tolist() == [0, 2]
    assert (marked.inputs[0, 0, 2:, 2:] == 15).all()
    np.testing.assert_array_equal(marked.inputs[1], images[1])


def knowledge(robust: Robust, name: Name, scale: float = 1.0) -> Knowledge:
    """Ten devices with something in common, two of them hostile, and a goal of theirs."""
    rng = np.random.default_rng(0)
    honest = (rng.normal(size=(10, 60)) + rng.normal(size=60)).astype(np.float32)
    goal = rng.normal(size=(2, 60)).astype(np.float32)
    attack = Attack(AttackConfig(2, scale, 2**40, name, "all"), robust, 10)
    return Knowledge(attack, np.zeros(60, np.float32), honest, goal)


def test_the_papers_attacks() -> None:
    known = knowledge(Robust(), "little", 1.5)
    mean, deviation = known.honest.mean(axis=0), known.honest.std(axis=0)
    np.testing.assert_allclose(ATTACKS["little"](known), mean - 1.5 * deviation, rtol=1e-5)
    known = knowledge(Robust(), "inner", 0.5)
    np.testing.assert_allclose(ATTACKS["inner"](known), -mean / 2, rtol=1e-5)


@pytest.mark.parametrize("name", ["hidden", "drift", "colluding"])
@pytest.mark.parametrize(
    "robust", [LOOSE, Robust(), Robust(rule="multi_krum"), Robust(rule="median")]
)
def test_it_knows_the_rule_in_force(robust: Robust, name: Name) -> None:
    """What the rule would name or leave out is not sent, if there is anything else."""
    known = knowledge(robust, name)
    sent = SparseVector(60, None, ATTACKS[name](known))
    changes = [sent, sent, *(SparseVector(60, None, change) for change in known.honest[2:])]
    updates = [Update(f"d{i}", 9, known.base, None, change) for i, change in enumerate(changes)]
    filtered = filter_outliers(updates, robust)
    assert min(filtered.factors[:2]) >= TRUSTED or name == "colluding"


def test_looser_bounds_are_used() -> None:
    reached: list[float] = []
    for robust in (LOOSE, Robust()):
        known = knowledge(robust, "hidden")
        sent = ATTACKS["hidden"](known)
        reached.append(known.reached(sent, (sent / np.linalg.norm(sent)).astype(np.float32)))
    assert reached[0] > 1.7 * reached[1] > 0
