"""Starts, stops, resumes and deletes runs, even while the service is running."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sedge_cloud.admin.bundles import require_forms
from sedge_cloud.admin.models import find_run, first_model
from sedge_cloud.config import EarlierPart, RunConfig
from sedge_cloud.privacy import PrivacyBudget, bought_line, first_budget
from sedge_cloud.rounds.lifecycle import FINISHED, RUNNING, STOPPED, new_round
from sedge_cloud.rounds.plans import plan_newcomer
from sedge_cloud.run_file import check_run
from sedge_cloud.runs.capabilities import outline, packets_for, terms_of
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.runs.orders import make_order, require_sendable
from sedge_cloud.runs.run import Run, StrategyState, state_of
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.runs.terms import Terms, without_link
from sedge_cloud.runs.versions import first_version
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import ClientModelRow, RunRow
from sedge_cloud.store.selector import parse
from sedge_protocol.errors import (
    CodecError,
    ConfigError,
    PolicyError,
    StrategyError,
    Unencodable,
)
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.layout import Layout, Theta
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.frame import MAX_PACKET_BYTES
from sedge_protocol.wire.messages import TRAIN, Order
from sedge_protocol.wire.policy import require_allowed, unsealed
from sedge_protocol.wire.refusals import OTHER_RUN, POLICY_ROUND
from sedge_protocol.wire.topics import check_id
from sedge_protocol.wire.transfer import describe


def start_run(
    store: Store,
    name: str,
    folder: Path,
    config: RunConfig,
    narrower: Sequence[Path] = (),
    source: str = "",
    policy: bytes = b"",
    budget: PrivacyBudget | None = None,
) -> tuple[str, ...]:
    """Start a run of the bundle in ``folder``; ``narrower`` are forms of it with fewer channels.

    The strategy's ``init`` derives the run's initial model from the one in the bundle or, if ``source`` is
    given, from another run's model or a .npz file. A model taken from ``source`` stays exact: it is not
    rounded to the grid used for broadcasts. The source run's client models are copied if the layouts are
    the same. ``policy`` is the run's signed policy, for devices that require one. ``budget`` is a private
    run's budget; the default is computed for all enrolled devices. Returns a line saying what a default
    budget buys, and the strategy's remarks on its options for this model (``Strategy.remarks``).

    Raises ``ConfigError`` for a bad or taken name, for bundles that are not forms of one model, and for a
    config or a policy that does not fit the bundles. Raises ``CodecError`` for a program that devices would
    refuse, ``StrategyError`` for an initial model that does not have the bundle's layout, and
    ``Unencodable`` for one that is not finite.
    """
    check_id(name, "run")
    if any(row.run == name for row in store.runs()):
        raise ConfigError("run", name, "a name that no run has yet")
    if config.cohort.select:
        store.require_known(parse(config.cohort.select), "cohort.select")
    with as_caller():
        bundle, init = bundles.load(folder)
        forms = [bundle, *(bundles.load(other)[0] for other in narrower)]
        frozen = bundles.read_frozen_blob(folder, bundle.manifest)
    for form in forms:
        form.check_programs()
    require_forms(bundle.manifest, [form.manifest for form in forms[1:]])
    _require_fit(config, bundle.manifest.layout, len(narrower))
    bought: tuple[str, ...] = ()
    if config.privacy is not None and budget is None:
        share, rounds = config.fraction_train, config.num_rounds
        budget = first_budget(config.privacy, share, rounds, store.enrolled())
        bought = (bought_line(config.privacy, share, budget),)
    if source:
        init = first_model(store, source, bundle, init)
    with store.blobs_held():  # prevents deletion of the blobs before a row names them
        remarks = _begin(store, name, config, source, forms, init, frozen, policy, budget)
    return (*bought, *remarks)


def _begin(
    store: Store,
    name: str,
    config: RunConfig,
    source: str,
    forms: Sequence[bundles.Bundle],
    init: Theta,
    frozen: bytes,
    policy: bytes,
    budget: PrivacyBudget | None,
) -> tuple[str, ...]:
    """Store a run's blobs, then its row. Returns the remarks of the strategy."""
    run_store = RunStore(store)
    model, model_hash, _ = run_store.write_model(init, config.broadcast.compression)
    whole, *others = [store.blobs.write(bundles.pack(form)) for form in forms]
    row = RunRow(
        run=name,
        status=RUNNING,
        config=msgspec.msgpack.encode(config),
        bundle=whole,
        state=msgspec.msgpack.encode(StrategyState(model, model_hash, initial=model)),
        created=time.time(),
        narrower=msgspec.msgpack.encode(others) if others else b"",
        frozen=store.blobs.write(frozen) if frozen else b"",
    )
    run = Run(row, store)
    run.state = _first_state(run, run_store, exact=bool(source))
    run.state = msgspec.structs.replace(run.state, policy=policy, budget=budget)
    remarks = _require_plan(run, run_store)
    _require_link(run, store)
    past = _past(store, run, source) if source and not source.endswith(".npz") else []
    row = msgspec.structs.replace(
        row,
        state=msgspec.msgpack.encode(run.state),
        terms=msgspec.msgpack.encode(terms_of(run)),
    )
    store.add_run(row, past)
    return remarks


def _past(store: Store, run: Run, source: str) -> list[ClientModelRow]:
    """Return the client models of the run ``source``, as rows of this run that predate its first round.

    The rows omit what each device keeps cached, because that belongs to the other run.
    """
    other = Run(find_run(store, source), store)
    if [width.layout for width in other.widths] != [width.layout for width in run.widths]:
        return []
    same = other.config.strategy == run.config.strategy
    rows = [store.client_model(source, device) for device in store.client_devices(source)]
    return [
        msgspec.structs.replace(
            row,
            run=run.name,
            round=0,
            arrays=row.arrays if same else b"",
            mask=b"",
            remembered=False,
        )
        for row in rows
        if row is not None
    ]


def _first_state(run: Run, run_store: RunStore, exact: bool) -> StrategyState:
    """Return the state before the first round. It holds the model that the strategy's ``init`` returns."""
    first = run.strategy.init(run_store.context(run))
    broadcast = run.config.broadcast
    theta = first.theta if exact else first_version(first.theta, run.manifest.layout, broadcast)
    model, model_hash, _ = run_store.write_model(theta, broadcast.compression)
    return StrategyState(
        model,
        model_hash,
        initial=model,
        arrays=run_store.write_arrays(first.arrays),
        groups=run_store.write_groups(first.groups),
    )


def _require_fit(config: RunConfig, layout: Layout, narrower: int) -> None:
    """Raise ``ConfigError`` if the run file's settings do not fit its bundles."""
    for name in config.training.freeze:
        if name not in layout.by_name:
            expected = f"one of the model's tensors: {list(layout.by_name)}"
            raise ConfigError("training.freeze", name, expected)
    rule = config.robust.rule
    if narrower and rule in ("krum", "multi_krum"):
        expected = (
            "a rule that does not compare whole updates: the run has bundles of several widths"
        )
        raise ConfigError("robust.rule", rule, expected)


def _require_plan(run: Run, run_store: RunStore) -> tuple[str, ...]:
    """Raise ``ConfigError`` unless the strategy can plan for a device without history.

    Returns its remarks.
    """
    try:
        _ = run.patch_values  # the user's strategy may raise anything
        order = first_order(run, run_store)
        if run.state.policy:
            require_policy(run, run.config, run.state.policy, order)
        return run.remarks()
    except (StrategyError, CodecError, Unencodable) as exc:
        expected = f"a strategy that suits the model and its bundles ({exc})"
        raise ConfigError("strategy", run.config.strategy, expected) from exc


def first_order(run: Run, run_store: RunStore) -> Order:
    """Return the order that a device without history gets in round 1.

    Raises the errors of ``plan_newcomer``.
    """
    given, read = plan_newcomer(run, run_store), run_store.store.blobs.read
    row = new_round(run, 1, TRAIN, [given], 0.0).row
    order = make_order(run, row, (), given, None, lambda blob: describe(read(blob)))
    return require_sendable(run, order, given.device)


def require_policy(run: Run, config: RunConfig, sealed: bytes, order: Order | None = None) -> None:
    """Raise ``ConfigError`` if the ``sealed`` policy makes devices decline this run or ``order``."""
    policy = unsealed(sealed).policy()
    try:
        if order is not None:
            for manifest in run.manifest_hashes:
                require_allowed(policy, order, manifest)
        if policy.run != run.name:
            raise PolicyError(OTHER_RUN.format(run=policy.run))
        if policy.last_round < config.total_rounds:
            raise PolicyError(POLICY_ROUND.format(last=policy.last_round))
    except PolicyError as exc:
        expected = (
            f"a policy from `run sign` for this run, with {config.total_rounds} rounds ({exc})"
        )
        raise ConfigError("--policy", f"version {policy.version}", expected) from exc


def _require_link(run: Run, store: Store) -> None:
    """Raise ``ConfigError`` if the run's orders exceed the packet limit of every device seen so far."""
    needed, limits = packets_for(run), store.packet_limits()
    missing = [without_link(needed, limit or MAX_PACKET_BYTES) for limit in limits]
    if missing and all(missing):
        size = run.bundles[0].size + run.model_bytes()
        raise ConfigError("run", f"{run.name}, {size} bytes per device", missing[0][0])


def stop_run(store: Store, name: str) -> None:
    """Stop a run. It keeps its models and receipts.

    Its open round is not aggregated unless the run is resumed.
    """
    row = find_run(store, name)
    if row.status != RUNNING:
        raise ConfigError("run", f"{name} ({row.status})", "the name of a running run")
    store.set_status(name, STOPPED, "the operator stopped it", time.time())


def resume_run(
    store: Store, name: str, num_rounds: int | None = None, policy: bytes = b""
) -> RunConfig:
    """Resume an ended run until it has ``num_rounds`` training rounds. Returns its new config.

    An open round continues with the updates that it has. Failed rounds, and the work of newcomers after the
    run's end, do not count as training rounds. A ``policy`` replaces the run's current one. Raises
    ``ConfigError`` for a running run, and for one that has nothing left to do.
    """
    with store.transaction():  # keeps newcomers from opening a round while the run resumes
        row = find_run(store, name)
        if row.status == RUNNING:
            raise ConfigError("run", f"{name} ({row.status})", "the name of a run that has ended")
        config, state = msgspec.msgpack.decode(row.config, type=RunConfig), state_of(row)
        newest = next(reversed(store.rounds(name)), None)
        spent = 0  # the number of a round after the run's last, if one failed or served newcomers
        if newest is not None and (row.status == FINISHED or not newest.open):
            spent = newest.round if newest.round > state.round else 0
        config = _resumed(name, config, state, spent, num_rounds)
        policy = policy or state.policy
        if policy:
            require_policy(Run(row, store), config, policy)
        state = msgspec.structs.replace(state, round=spent or state.round, policy=policy)
        coded = msgspec.msgpack.encode(config), msgspec.msgpack.encode(state)
        # The open round's orders were cancelled when the run ended, so its devices start over.
        store.resume_run(name, *coded, state.round, time.time() + config.deadline_s)
        terms, new = Terms.read(row.terms), outline(config)
        terms = msgspec.structs.replace(terms, strategy=new.strategy, total_rounds=new.total_rounds)
        store.set_terms(name, msgspec.msgpack.encode(terms))
    return config


def _resumed(
    name: str, config: RunConfig, state: StrategyState, spent: int, num_rounds: int | None
) -> RunConfig:
    """Return the config that resumes a run after round ``spent`` or, if that is 0, after its last round."""
    last, budget = state.round, state.budget
    done = config.training_rounds(last)
    if budget is not None and num_rounds is not None and num_rounds > done + budget.left:
        expected = (
            f"at most {done + budget.left}: after that the privacy budget of run {name} is spent"
        )
        raise ConfigError("--rounds", num_rounds, expected)
    wanted = config.num_rounds if num_rounds is None else num_rounds
    is_evaluation_left = num_rounds is None and not spent and last < config.total_rounds
    if wanted <= done and not is_evaluation_left:
        expected = f"more than the {done} training rounds that run {name} has completed"
        raise ConfigError("--rounds", num_rounds, expected)
    if wanted > done and (spent or done >= config.num_rounds):
        stage = EarlierPart(config.num_rounds, done, spent or config.total_rounds)
        config = msgspec.structs.replace(config, earlier=(*config.earlier, stage))
    return check_run(msgspec.structs.replace(config, num_rounds=wanted))


def delete_run(store: Store, name: str, dry_run: bool = False) -> int:
    """Delete an ended run and everything that only it refers to. Returns the number of bytes freed.

    Raises ``ConfigError`` for a running run.
    """
    if find_run(store, name).status == RUNNING:
        raise ConfigError("run", f"{name} (running)", "a run that has ended: stop it first")
    garbage, sizes = Garbage(store), store.blobs.sizes()
    with store.transaction(dry_run):
        before = garbage.used_bytes(sizes)
        store.delete_run(name)
        return before - garbage.used_bytes(sizes)
