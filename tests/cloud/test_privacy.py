"""A run with [privacy]: what is refused, what a device can move, and how the budget ends a run.

The accountant's values are others': of dp-accounting's own tests, of the Fourier accountant's (Koskela et
al. 2020), of Balle and Wang's formula for the Gaussian mechanism (2018, Theorem 8), of Abadi et al. (2016).
"""

import json
import math
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from urllib.request import urlopen

import msgspec
import numpy as np
import pytest
from tests.cloud.facts.seen import Seen
from tests.cloud.given import SELECTING
from tests.cloud.helper import CONFIG, LAYOUT, RUN, Cloud, random_theta, update
from tests.cloud.outlets.test_status_page import served
from tests.cloud.stores import on_both
from tests.fleet import always

from sedge_cloud import privacy as module
from sedge_cloud.admin.run_report import run_report
from sedge_cloud.admin.runs import resume_run
from sedge_cloud.algorithms.noise import Noise, drawn, gaussian, private_update
from sedge_cloud.coding import CodecConfig
from sedge_cloud.config import RobustConfig, RunConfig, TrainingConfig
from sedge_cloud.events import RunEnded
from sedge_cloud.outlets.page.html import status_page
from sedge_cloud.privacy import PrivacyBudget, PrivacyConfig, epsilon_of, first_budget
from sedge_cloud.rounds.cohort import draw_cohort, plan_cohort
from sedge_cloud.rounds.lifecycle import FINISHED
from sedge_cloud.run_file import check_run
from sedge_cloud.strategy import Update
from sedge_protocol.codec import SparseVector
from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Theta

needs_accountant = pytest.mark.skipif(
    find_spec("dp_accounting") is None, reason="needs sedge-fl[privacy]"
)
PRIVACY = PrivacyConfig(epsilon=8, delta=1e-5, clip=2.0)
PRIVATE = msgspec.structs.replace(
    CONFIG, privacy=PRIVACY, codec=CodecConfig(error_feedback=False), num_rounds=3
)
BUDGET = PrivacyBudget(b"s" * 32, 0.5, 2.0, 2)
SIZE = 1000


@needs_accountant
@pytest.mark.parametrize(
    ("noise", "share", "rounds", "delta", "epsilon"),
    [
        (0.5, 0.2, 3, 0.15594, 1.0),  # dp-accounting: test_poisson_subsampled_gaussian
        (2.0, 0.01, 10_000, 0.010224911, 1.0),  # Fourier accountant: test_compute_delta.py
        (2.0, 0.01, 10_000, 0.022850340, 0.8),
        (2.0, 0.02, 10_000, 0.149917330, 1.0),
        (math.sqrt(3), 1.0, 3, 0.126936, 1.0),  # Balle and Wang: the same as one round of noise 1
        (math.sqrt(200), 1.0, 200, 0.126936, 1.0),
    ],
)
def test_epsilons_are_the_published_ones(
    noise: float, share: float, rounds: int, delta: float, epsilon: float
) -> None:
    assert epsilon_of(noise, share, rounds, delta) == pytest.approx(epsilon, abs=1e-3)


@needs_accountant
def test_the_accountant_is_below_the_moments_accountants_bound() -> None:
    """q = .01, sigma = 4, 10,000 steps: 1.26 in Abadi et al. (2016), section 3.2."""
    assert 0.9 < epsilon_of(4.0, 0.01, 10_000, 1e-5) < 1.26


@needs_accountant
@pytest.mark.parametrize("share", [0.25, 1.0])
def test_the_least_noise_spends_the_whole_budget(share: float) -> None:
    noise = module.least_noise(share, 10, 8.0, 1e-5)
    assert 7.99 < epsilon_of(noise, share, 10, 1e-5) <= 8.0


@needs_accountant
def test_noise_of_ones_own_lasts_for_fewer_rounds() -> None:
    given = msgspec.structs.replace(PRIVACY, noise=4.0)
    budget = first_budget(given, 1.0, 100, 1000)
    delta = (1 - module.EMPTY_SHARE) * given.delta
    assert 0 < budget.rounds < 100 and budget.expected == 1000
    within, beyond = (epsilon_of(4.0, 1.0, budget.rounds + more, delta) for more in (0, 1))
    assert within <= given.epsilon < beyond
    bought = module.bought_line(given, 1.0, budget)
    assert bought.startswith(f"privacy: {budget.rounds} training rounds with noise of 4 clips")
    assert bought.endswith(f"spend epsilon {within:.3g} of {given.epsilon:g} at delta 1e-05")
    spent = module.spent_line(given, 1.0, budget.after_round())
    assert f"of {given.epsilon:g} at delta 1e-05 spent, 1 of its" in spent
    with pytest.raises(ConfigError, match=r"privacy.noise: found 0.2, expected more: one round"):
        first_budget(msgspec.structs.replace(PRIVACY, noise=0.2), 1.0, 100, 1000)


def change_of(values: Theta, indices: list[int] | None = None) -> Update:
    where = None if indices is None else np.array(indices, np.uint32)
    return Update("x", 10**9, np.zeros(SIZE, np.float32), delta=SparseVector(SIZE, where, values))


@pytest.mark.parametrize(
    "hostile",
    [
        change_of(np.full(SIZE, 3e38, np.float32)),
        change_of(np.ones(2, np.float32) * 1e30, [5, 999]),
        change_of(random_theta(3, SIZE) * 1e-3),
        change_of(np.zeros(0, np.float32), []),
    ],
)
def test_a_device_moves_the_sum_by_the_clip_at_most(hostile: Update) -> None:
    """Whatever it sends, and however many examples it claims; elements that stay do not move at all."""
    theta, still = hostile.base, [slice(0, 10)]
    others = [change_of(random_theta(seed, SIZE)) for seed in (1, 2)]
    sums = [
        private_update(updates, theta, Noise(0.5, 0.0, 4.0, b"k"), still).change(theta, slice(None))
        for updates in (others, [*others, hostile])
    ]
    assert np.linalg.norm(4.0 * (sums[1] - sums[0]).astype(np.float64)) <= 0.5 * (1 + 1e-6)
    assert all(not total[:10].any() for total in sums)
    assert 0 < np.linalg.norm(4.0 * sums[0]) <= 2 * 0.5 * (1 + 1e-6)


def test_noise_is_normal_and_no_other_key_has_it() -> None:
    one, again, other = (gaussian(key, 200_001) for key in (b"a", b"a", b"b"))
    assert np.array_equal(one, again) and abs(np.corrcoef(one, other)[0, 1]) < 0.02
    assert abs(one.mean()) < 0.02 and one.std() == pytest.approx(1, abs=0.02)
    assert [np.mean(np.abs(one) > z) for z in (1, 2, 3)] == pytest.approx(
        [0.3173, 0.0455, 0.0027], abs=0.005
    )


def test_each_device_is_drawn_by_a_coin_of_its_own() -> None:
    """Nobody who does not know the secret can say who; who else is online changes nothing."""
    names = [f"d{i}" for i in range(2000)]
    found = drawn(b"s" * 32, 0.3, 7, names)
    assert 500 < len(found) < 700
    assert drawn(b"s" * 32, 0.3, 7, names[::2]) == sorted(set(found) & set(names[::2]))
    assert len(set(found) & set(drawn(b"t" * 32, 0.3, 7, names))) < 300
    assert len(set(found) & set(drawn(b"s" * 32, 0.3, 8, names))) < 300
    assert drawn(b"s" * 32, 1e-3, 7, ["alone"]) == ["alone"] and drawn(b"s" * 32, 1.0, 7, []) == []


@pytest.fixture
def budgeted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs have this budget, for which no accountant is needed."""
    monkeypatch.setattr("sedge_cloud.admin.runs.first_budget", always(BUDGET))


def began(folder: Path, config: RunConfig = PRIVATE) -> Cloud:
    cloud = Cloud(folder, config)
    cloud.hello(codecs=("freeze",))
    return cloud


def played(cloud: Cloud, *scales: float) -> None:
    """A round in which a and b send changes of these scales."""
    cloud.poll()
    for name, scale in zip("ab", scales, strict=True):
        cloud.upload(name, update(cloud.order(name), scale * random_theta(ord(name))))
    cloud.poll()


@pytest.mark.usefixtures("budgeted")
@on_both
def test_a_round_is_the_clipped_sum_and_noise_and_is_spent_with_it(tmp_path: Path) -> None:
    """The run ends as finished when its budget is spent, and says so; after a restart, too."""
    cloud = began(tmp_path)
    first = cloud.model(cloud.state().model)
    played(cloud, 1e-3, 1e6)
    cloud.come_back()
    state = cloud.state()
    assert state.budget == BUDGET.after_round()
    moved = 2 * (cloud.model(state.model) - first).astype(np.float64)
    scales = {"a": 1e-3, "b": 1e6}
    changes = [s * random_theta(ord(name)).astype(np.float64) for name, s in scales.items()]
    lengths = [float(np.linalg.norm(change)) for change in changes]
    clipped = sum(c * min(1, 2.0 / length) for c, length in zip(changes, lengths, strict=True))
    noise = moved - clipped
    assert min(lengths) < 2.0 < max(lengths)
    assert noise.std() == pytest.approx(0.5 * 2.0, rel=0.05) and abs(noise.mean()) < 0.05
    assert abs(np.corrcoef(noise, changes[1])[0, 1]) < 0.05
    played(cloud, 1.0, 1.0)
    assert cloud.state().budget == BUDGET.after_round().after_round()
    (ended,) = cloud.events(RunEnded)
    row = cloud.run_row()
    assert (row.status, ended.status, len(cloud.summaries())) == (FINISHED, FINISHED, 2)
    why = "its privacy budget of epsilon 8 is spent after 2 training rounds"
    assert row.why == ended.why == why
    with pytest.raises(ConfigError, match="--rounds: found 9, expected at most 2: after that the"):
        resume_run(cloud.second_store(), RUN, 9)


@pytest.mark.usefixtures("budgeted")
def test_the_same_noise_never_covers_other_updates(tmp_path: Path) -> None:
    """A store from a backup plays a round again, with other updates: the difference is not bare."""
    models = list[Theta]()
    for folder, scale in (("one", 1.0), ("two", 1.001), ("three", 1.0)):
        cloud = began(tmp_path / folder)
        played(cloud, 1.0, scale)
        models.append(cloud.model(cloud.state().model))
    assert np.array_equal(models[0], models[2])
    assert (models[1] - models[0]).std() > 0.5


@pytest.mark.usefixtures("budgeted")
def test_a_draw_is_among_as_many_as_the_accountant_counts_on(tmp_path: Path) -> None:
    """Also where a device that often declines would rest otherwise."""
    core = began(tmp_path).core
    run, store = core.runs[RUN], core.run_store
    planned = plan_cohort(run, store, 1, "train", core.devices, draw_cohort, ["b"])
    assert [order.device for order in planned.orders] == ["a", "b"]


@pytest.mark.usefixtures("budgeted")
def test_frozen_and_kept_tensors_get_no_noise(tmp_path: Path) -> None:
    body, head = (tensor.name for tensor in LAYOUT.tensors)
    for changes in (
        {"training": TrainingConfig(freeze=(head,))},
        {"strategy": "fedper", "options": {"head": (head,)}},
    ):
        folder = tmp_path / str(changes.get("strategy"))
        cloud = began(folder, msgspec.structs.replace(PRIVATE, **changes))
        first = cloud.model(cloud.state().model)
        played(cloud, 1.0, 1.0)
        moved = cloud.model(cloud.state().model) - first
        assert not moved[LAYOUT.by_name[head].slice].any()
        assert moved[LAYOUT.by_name[body].slice].all()


@pytest.mark.usefixtures("budgeted")
def test_what_devices_measure_is_withheld(tmp_path: Path) -> None:
    """From the report in words, as JSON, and the facts; unless the run keeps it."""
    for reports in ("withheld", "kept"):
        privacy = msgspec.structs.replace(PRIVACY, reports=reports)
        config = msgspec.structs.replace(PRIVATE, privacy=privacy)
        seen = Seen(tmp_path / reports, config)
        cloud = seen.cloud
        cloud.hello("a", "b")
        played(cloud, 1.0, 1.0)
        seen.record()
        text = "\n".join(run_report(seen.reader, RUN, as_json=False))
        lines = [json.loads(line) for line in run_report(seen.reader, RUN, as_json=True)]
        closed, budget = lines[0], lines[-1]["privacy"]
        (known,) = seen.reader.read().run(RUN).rounds  # type: ignore[union-attr]
        shown = reports == "kept"
        assert ("train_loss" in closed, "before" in closed) == (shown, shown)
        assert all(
            ("before" in each, "num_examples" in each) == (shown, shown)
            for each in closed["devices"]
        )
        measured = known.before, known.before_worst, known.after, known.after_worst
        assert all((value is not None) == shown for value in (*measured, known.train_loss))
        assert known.updates == 2 and "privacy: " in text
        assert config.evaluates == shown
        told = "Privacy: 1 of 2 rounds of training spent, 1 left."
        assert told in status_page(seen.reader.read())
        assert (budget["spent"], budget["rounds"], budget["epsilon"]) == (1, 2, PRIVACY.epsilon)
        with served(seen) as address, urlopen(f"{address}api/runs/{RUN}") as answer:
            assert json.load(answer)["privacy"] == budget


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as found:
        call()
    text = str(found.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"strategy": "scaffold"}, "strategy: found 'scaffold', expected fedavg, its variants or"),
        ({"strategy": "fedpurin"}, "strategy: found 'fedpurin'"),
        ({"strategy": "fedselect"}, "strategy: found 'fedselect'"),
        ({"strategy": "local_only"}, "strategy: found 'local_only'"),
        ({"strategy": "fedobp"}, "options.scoring: found 'cloud', expected 'device' with"),
        ({"strategy": SELECTING}, f"strategy: found '{SELECTING}'"),
        ({"codec": CodecConfig()}, "codec.error_feedback: found True, expected false with"),
        ({"robust": RobustConfig(rule="median")}, "robust.rule: found 'median', expected no [rob"),
        ({"robust": RobustConfig(clip=3.0)}, "robust.clip: found 3.0, expected no [robust]"),
        ({"quorum": 0.8}, "quorum: found 0.8, expected 1.0 with [privacy]"),
        ({"late_updates": "count"}, "late_updates: found 'count', expected 'remember' with"),
        ({"min_updates": 2}, "min_updates: found 2, expected 1 with [privacy]"),
        ({"fraction_train": 0.5}, "min_available_devices: found 2, expected at least 25 with"),
    ],
)
def test_what_could_outdo_the_clip_is_refused_by_name(
    changes: dict[str, object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sedge_cloud.run_file.require_accountant", lambda: None)
    check_run(PRIVATE)
    check_run(msgspec.structs.replace(PRIVATE, strategy="fedobp", options={"scoring": "device"}))
    config = msgspec.structs.replace(PRIVATE, **changes)
    assert expected in refusal(lambda: check_run(config, "run.toml"))


def test_delta_is_judged_by_the_number_of_devices() -> None:
    loose = msgspec.structs.replace(PRIVACY, delta=0.01)
    module.require_devices(loose, 99)
    said = refusal(lambda: module.require_devices(loose, 100))
    assert "privacy.delta: found 0.01, expected below 1 / 100" in said
    assert "no device" in refusal(lambda: module.require_devices(loose, 0))


def test_without_the_accountant_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is refused; one that has begun elsewhere still shows its rounds."""
    monkeypatch.setattr(module, "find_spec", always(None))
    epsilon_of.cache_clear()
    assert "pip install 'sedge-fl[privacy]'" in refusal(lambda: check_run(PRIVATE))
    assert module.spent_line(PRIVACY, 1.0, BUDGET.after_round()) == (
        "privacy: 1 of its 2 training rounds used; epsilon 8 in total"
    )
