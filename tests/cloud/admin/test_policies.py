"""A policy is made from a run's own description, signed elsewhere, and goes with every order of the run."""

import re
import subprocess
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.cloud.helper import CONFIG, RUN, Cloud, make_bundle

from sedge_cloud.__main__ import main
from sedge_cloud.admin.policies import ORDINARY, Extent, make_policy
from sedge_cloud.admin.rollouts import start_rollout
from sedge_cloud.admin.runs import resume_run, start_run, stop_run
from sedge_cloud.config import RunConfig, ScheduleConfig, TrainingConfig
from sedge_cloud.runs.run import Run, StrategyState
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.rollouts import RolloutPlan
from sedge_cloud.strategy import State
from sedge_edge.config import load_config
from sedge_protocol.errors import ConfigError
from sedge_protocol.host.enrolment import parse_join_text
from sedge_protocol.host.signing import public_hex, sign
from sedge_protocol.wire.bundle import load, pack, save, unpack
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.policy import require_allowed, unsealed

KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
CAPSYS = pytest.CaptureFixture[str]


def started(folder: Path, config: RunConfig, extent: Extent = ORDINARY) -> Cloud:
    """A coordinator with a signed run, in its first round."""
    cloud = Cloud(folder, None)
    policy = sign(make_policy(RUN, [cloud.bundle], config, extent), KEY)
    start_run(cloud.store, RUN, cloud.bundle, config, policy=policy)
    cloud.begin()
    cloud.hello(codecs=("correction",))
    return cloud


def require_good(order: Order, bundle: Path) -> None:
    manifest = unpack(pack(load(bundle)[0])).manifest_hash
    require_allowed(unsealed(order.policy).policy(), order, manifest)


@pytest.mark.parametrize("strategy", ["fedavg", "scaffold", "feddyn"])
def test_every_order_is_within_the_policy_of_the_run_file(tmp_path: Path, strategy: str) -> None:
    """Later ones have corrections, a rate that falls, and another task."""
    schedule = ScheduleConfig("cosine", warmup_rounds=1)
    config = msgspec.structs.replace(CONFIG, strategy=strategy, schedule=schedule)
    cloud = started(tmp_path, config)
    orders: list[Order] = []
    for _ in range(3):  # two of training, one of evaluation
        orders.append(cloud.order("a"))
        cloud.answer("a", "b")
    assert [order.task for order in orders] == ["train", "train", "evaluate"]
    for order in orders:
        require_good(order, cloud.bundle)
    assert (orders[1].correction is not None) == (strategy != "fedavg")


def test_a_rollout_gives_devices_only_bundles_that_the_policy_covers(tmp_path: Path) -> None:
    made, init = load(make_bundle(tmp_path / "made"))
    manifest = msgspec.structs.replace(made.manifest, name="version 2")
    save(tmp_path / "new", msgspec.structs.replace(made, manifest=manifest), init)
    cloud = started(tmp_path / "uncovered", CONFIG)
    with pytest.raises(ConfigError, match="policy covers: `run sign --version --also`"):
        start_rollout(cloud.store, RUN, tmp_path / "new", RolloutPlan((1.0,)))
    cloud = started(tmp_path / "covered", CONFIG, Extent(also=[tmp_path / "new"]))
    start_rollout(cloud.store, RUN, tmp_path / "new", RolloutPlan((1.0,)))
    cloud.answer("a", "b")  # of the round that was open before
    require_good(cloud.order("a"), tmp_path / "new")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"last_round": 2}, "with 3 rounds (its policy ends with round 2)"),
        ({"run": "other"}, "its policy is for run other"),
        ({"learning_rate": 0.001}, "learning_rate 0.01, but its policy allows 0.001"),
        ({"bundles": (bytes(32),)}, "is not in its policy"),
    ],
)
def test_a_run_does_not_begin_that_its_policy_does_not_allow(
    tmp_path: Path, changes: dict[str, object], why: str
) -> None:
    cloud = Cloud(tmp_path, None)
    policy = msgspec.structs.replace(make_policy(RUN, [cloud.bundle], CONFIG), **changes)
    with pytest.raises(ConfigError, match=re.escape(why)):
        start_run(cloud.store, RUN, cloud.bundle, CONFIG, policy=sign(policy, KEY))
    assert not cloud.store.runs()


def test_more_rounds_need_another_policy(tmp_path: Path) -> None:
    cloud = started(tmp_path, msgspec.structs.replace(CONFIG, evaluate=False))
    for _ in range(2):
        cloud.answer("a", "b")
    assert cloud.run_row().status == "finished"
    with pytest.raises(ConfigError, match="with 9 rounds"):
        resume_run(cloud.store, RUN, 9)
    config = msgspec.structs.replace(CONFIG, evaluate=False, num_rounds=9)
    policy = sign(make_policy(RUN, [cloud.bundle], config, Extent(version=2)), KEY)
    resume_run(cloud.store, RUN, 9, policy)
    assert cloud.state().policy == policy


@pytest.mark.parametrize("seen", [True, False])
def test_a_run_goes_on_with_the_policy_that_it_was_resumed_with(tmp_path: Path, seen: bool) -> None:
    """The config stays the same, and the coordinator may never have ``seen`` that the run was stopped."""
    cloud = started(tmp_path, msgspec.structs.replace(CONFIG, evaluate=False))
    policy = sign(make_policy(RUN, [cloud.bundle], CONFIG, Extent(version=2)), KEY)
    with closing(cloud.second_store()) as store:
        stop_run(store, RUN)
        if seen:
            cloud.load()
        resume_run(store, RUN, policy=policy)
        cloud.notice()
    assert cloud.order("a").policy == policy
    cloud.hello("a")  # its order is built again
    assert cloud.order("a").policy == policy
    cloud.answer("a", "b")
    assert cloud.order("a").round == 2 and cloud.order("a").policy == policy
    assert cloud.state().policy == policy


def test_a_run_that_is_resumed_while_its_round_is_aggregated_keeps_its_new_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round closes all the same, once the coordinator knows of the policy."""
    cloud = started(tmp_path, msgspec.structs.replace(CONFIG, evaluate=False))
    policy = sign(make_policy(RUN, [cloud.bundle], CONFIG, Extent(version=2)), KEY)
    write = RunStore.write_state

    def resumed(self: RunStore, run: Run, state: State) -> StrategyState:
        with closing(cloud.second_store()) as store:
            if cloud.state().policy != policy:
                stop_run(store, RUN)
                resume_run(store, RUN, policy=policy)
        return write(self, run, state)

    monkeypatch.setattr(RunStore, "write_state", resumed)
    cloud.answer("a", "b")
    cloud.notice()
    assert cloud.state().policy == policy and cloud.state().round == 1
    assert cloud.order("a").round == 2 and cloud.order("a").policy == policy


def test_its_bounds_are_the_run_files(tmp_path: Path) -> None:
    training = TrainingConfig(local_epochs=4, learning_rate=0.25, momentum=0.5, optimizer="sgd")
    config = msgspec.structs.replace(CONFIG, training=training)
    policy = make_policy(
        "one", [make_bundle(tmp_path / "b")], config,
        Extent(7, 2.0, 5, ("select",), chain=tuple(bytes([number]) * 104 for number in range(17))),
    )  # fmt: skip
    assert [statement[0] for statement in policy.chain] == [*range(1, 17)]  # the newest that fit
    assert (policy.version, policy.last_round, policy.words) == (7, 5, ("select",))
    assert (policy.local_epochs, policy.learning_rate, policy.momentum) == (4, 0.25, 0.5)
    assert policy.expires > 1_700_000_000


def test_from_key_to_run(tmp_path: Path, capsys: CAPSYS, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is openssl's; the coordinator has only its public half, which new devices pin."""
    monkeypatch.chdir(tmp_path)
    bundle, run_file = make_bundle(tmp_path / "bundle"), tmp_path / "run.toml"
    run_file.write_text('strategy = "fedavg"\nnum_rounds = 3\n')
    described = ("one", "--bundle", str(bundle), "--run-file", str(run_file))
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", "key.pem"], check=True)
    assert main(["key", "show", "key.pem"]) == 0
    public = capsys.readouterr().out.strip()
    assert main(["init", "home", "--fleet", "test"]) == 0
    toml = Path("home/cloud.toml")
    toml.write_text(f'{toml.read_text()}\n[trust]\nkeys = ["{public}"]\n')

    def call(*words: str) -> int:
        return main(["-c", str(toml), *words])

    capsys.readouterr()
    assert call("run", "start", *described) == 2
    assert "expected a file from `sedge-cloud run sign one`" in capsys.readouterr().err
    assert main(["key", "new", "other.pem"]) == 0
    assert main(["run", "sign", *described, "--key", "other.pem", "--out", "foreign"]) == 0
    capsys.readouterr()
    assert call("run", "start", *described, "--policy", "foreign") == 2
    assert "its policy is signed by the key" in capsys.readouterr().err
    for word in ("--days=nan", "--days=1e300", "--version=0", "--last-round=-1"):
        assert main(["run", "sign", *described, "--key", "key.pem", word]) == 2
        assert f"{word.partition('=')[0]}: found " in capsys.readouterr().err
    assert main(["run", "sign", *described, "--key", "key.pem"]) == 0
    said = capsys.readouterr().out
    assert "run one, version 1: rounds to 5, 1 epochs, learning rate 0.01" in said
    assert f"signed by {public}: one.policy" in said
    assert main(["key", "replace", "key.pem", "other.pem"]) == 0  # the foreign key from before
    assert main(["run", "sign", *described, "--key", "other.pem"]) == 0
    assert call("run", "start", *described, "--policy", "one.policy") == 0
    assert call("device", "add", "pi-1", "--join") == 0
    enrolment = parse_join_text(capsys.readouterr().out.splitlines()[-1])
    assert enrolment.trust == load_config(Path("pi-1/edge.toml")).trust.keys == (public,)
    assert public != public_hex(KEY)
