"""Starting and stopping runs, also while the service is running."""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sedge_cloud.admin.bundles import require_forms
from sedge_cloud.config import RunConfig
from sedge_cloud.rounds.lifecycle import RUNNING, STOPPED, new_round
from sedge_cloud.rounds.orders import make_order, require_sendable
from sedge_cloud.rounds.plans import plan_newcomer
from sedge_cloud.store.broadcast import first_version
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RunRow
from sedge_cloud.store.runs import Run, RunState, RunStore
from sedge_protocol.errors import CodecError, ConfigError, StrategyError, Unencodable
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.layout import Layout
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.topics import check_id
from sedge_protocol.wire.transfer import describe


def start_run(
    store: Store, name: str, folder: Path, config: RunConfig, narrower: Sequence[Path] = ()
) -> None:
    """Begin a run of the bundle in ``folder``; ``narrower`` are forms of it with fewer channels.

    Its first model is what the strategy's ``init`` makes of the bundle's. Raises ``ConfigError`` for a bad
    or taken name, for bundles that are not forms of one model and for a config that does not fit them,
    ``CodecError`` for a program that devices refuse, ``StrategyError`` for a first model that is not of the
    bundle's layout, and ``Unencodable`` for one that is not finite.
    """
    check_id(name, "run")
    if any(row.run == name for row in store.runs()):
        raise ConfigError("run", name, "a name that no run has yet")
    with as_caller():
        bundle, init = bundles.load(folder)
        forms = [bundle, *(bundles.load(other)[0] for other in narrower)]
    for form in forms:
        form.check_programs()
    require_forms(bundle.manifest, [form.manifest for form in forms[1:]])
    _require_fit(config, bundle.manifest.layout, len(narrower))
    run_store = RunStore(store)
    model, model_hash, _ = run_store.write_model(init, config.broadcast.compression)
    whole, *others = [store.blobs.write(bundles.pack(form)) for form in forms]
    row = RunRow(
        run=name,
        status=RUNNING,
        config=msgspec.msgpack.encode(config),
        bundle=whole,
        state=msgspec.msgpack.encode(RunState(model, model_hash, initial=model)),
        created=time.time(),
        narrower=msgspec.msgpack.encode(others) if others else b"",
        frozen=b"" if bundle.frozen is None else store.blobs.write(bundle.frozen.tobytes()),
    )
    run = Run(row, store)
    run.state = _first_state(run, run_store)
    _require_plan(run, run_store)
    store.add_run(msgspec.structs.replace(row, state=msgspec.msgpack.encode(run.state)))


def _first_state(run: Run, run_store: RunStore) -> RunState:
    """The state before the first round, as the strategy's ``init`` makes it."""
    first = run.strategy.init(run_store.context(run))
    broadcast = run.config.broadcast
    theta = first_version(first.theta, run.manifest.layout, broadcast)
    model, model_hash, _ = run_store.write_model(theta, broadcast.compression)
    return RunState(
        model,
        model_hash,
        initial=model,
        arrays=run_store.write_arrays(first.arrays),
        groups=run_store.write_groups(first.groups),
    )


def _require_fit(config: RunConfig, layout: Layout, narrower: int) -> None:
    """Raise ``ConfigError`` for settings of a run file that do not suit its bundles."""
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


def _require_plan(run: Run, run_store: RunStore) -> None:
    """Raise ``ConfigError`` unless the strategy can plan for a device without a past."""
    try:
        given, read = plan_newcomer(run, run_store), run_store.store.blobs.read
        row = new_round(run, 1, TRAIN, [given], 0.0).row
        order = make_order(run, row, (), given, None, lambda blob: describe(read(blob)))
        require_sendable(run, order, given.device)
    except (StrategyError, CodecError, Unencodable) as exc:
        expected = f"a strategy that suits the model and its bundles ({exc})"
        raise ConfigError("strategy", run.config.strategy, expected) from exc


def stop_run(store: Store, name: str) -> None:
    """Stop a run after the updates it already has; its models and receipts stay."""
    row = next((row for row in store.runs() if row.run == name), None)
    if row is None or row.status != RUNNING:
        status = "no such run" if row is None else row.status
        raise ConfigError("run", f"{name} ({status})", "the name of a running run")
    store.set_status(name, STOPPED)
