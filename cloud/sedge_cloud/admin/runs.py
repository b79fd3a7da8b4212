"""What an operator does: runs, which works beside a running service, and a first configuration."""

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sedge_cloud.admin.bundles import require_forms
from sedge_cloud.admin.enrolment import add_password, write_private
from sedge_cloud.config import COORDINATOR, RunConfig
from sedge_cloud.rounds.lifecycle import RUNNING, STOPPED, new_round
from sedge_cloud.rounds.orders import make_order, require_sendable
from sedge_cloud.rounds.plans import plan_stranger
from sedge_cloud.store.broadcast import first_version
from sedge_cloud.store.database import Store
from sedge_cloud.store.rows import RunRow
from sedge_cloud.store.runs import Run, RunState, RunStore
from sedge_cloud.strategies import make_strategy
from sedge_cloud.strategy import Context, Width
from sedge_protocol.errors import CodecError, ConfigError, LocalError, StorageError
from sedge_protocol.host.disk import translated
from sedge_protocol.host.privileges import as_caller
from sedge_protocol.layout import Layout
from sedge_protocol.wire import bundle as bundles
from sedge_protocol.wire.messages import TRAIN
from sedge_protocol.wire.topics import check_id
from sedge_protocol.wire.transfer import describe

_URL = re.compile(r"mqtt://[A-Za-z0-9.:\[\]-]+:(\d{1,5})")


def start_run(
    store: Store, name: str, folder: Path, config: RunConfig, narrower: Sequence[Path] = ()
) -> None:
    """Begin a run of the bundle in ``folder``; ``narrower`` are forms of it with fewer channels.

    It begins with the model that the strategy's ``init`` makes of the bundle's. Raises ``ConfigError`` for
    a bad or taken name, for bundles that are not forms of one model, and for a config that does not fit
    them, ``CodecError`` for a program that devices refuse, and ``LocalError`` for a first model that is not
    finite and of the bundle's layout.
    """
    check_id(name, "run")
    if any(row.run == name for row in store.runs()):
        raise ConfigError("run", name, "a name that no run has yet")
    with as_caller():
        bundle, init = bundles.load(folder)
        forms = [bundles.load(other)[0] for other in narrower]
    for form in (bundle, *forms):
        form.check_programs()
    require_forms(bundle.manifest, [form.manifest for form in forms])
    _require_fit(config, bundle.manifest.layout, len(forms))
    layout, strategy = bundle.manifest.layout, make_strategy(config.strategy, config.options)
    widths = tuple(Width(form.manifest.dropped, form.manifest.layout) for form in (bundle, *forms))
    context = Context(
        layout,
        init,
        init,
        config.training,
        widths=widths,
        axes=bundle.manifest.axes,
        robust=config.robust,
    )
    first = strategy.init(context)
    blobs = [store.blobs.write(bundles.pack(packed)) for packed in (bundle, *forms)]
    run_store = RunStore(store)
    statistics = (layout.by_name[name].slice for name in layout.statistics)
    theta = first_version(first.theta, statistics, config.broadcast)
    model, model_hash, _ = run_store.write_model(theta, config.broadcast.compression)
    state = RunState(
        model,
        model_hash,
        initial=model,
        arrays=run_store.write_arrays(first.arrays),
        groups=run_store.write_groups(first.groups),
    )
    row = RunRow(
        run=name,
        status=RUNNING,
        config=msgspec.msgpack.encode(config),
        bundle=blobs[0],
        state=msgspec.msgpack.encode(state),
        created=time.time(),
        narrower=msgspec.msgpack.encode(blobs[1:]) if narrower else b"",
    )
    _require_plan(Run(row, store), run_store)
    store.add_run(row)


def _require_fit(config: RunConfig, layout: Layout, narrower: int) -> None:
    """Raise ``ConfigError`` for what a run file can only be held against its bundles for."""
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
    """Raise ``ConfigError`` when the strategy cannot plan for a device that nobody has heard of."""
    try:
        given, read = plan_stranger(run, run_store), run_store.store.blobs.read
        row = new_round(run, 1, TRAIN, [given], 0.0).row
        order = make_order(run, row, (), given, None, lambda blob: describe(read(blob)), 0.0)
        require_sendable(run, order, given.device)
    except (LocalError, CodecError) as exc:
        expected = f"a strategy that suits the model and its bundles ({exc})"
        raise ConfigError("strategy", run.config.strategy, expected) from exc


def stop_run(store: Store, name: str) -> None:
    """Stop a run after the updates it already has; its models and receipts stay."""
    row = next((row for row in store.runs() if row.run == name), None)
    if row is None or row.status != RUNNING:
        found = "no such run" if row is None else row.status
        raise ConfigError("run", f"{name} ({found})", "the name of a running run")
    store.set_status(name, STOPPED)


def initialise(folder: Path, fleet: str, url: str) -> None:
    """Write a first cloud.toml, and a Mosquitto configuration that knows the coordinator.

    For a trial on one network: passwords and ACL, no TLS. cloud/mosquitto.conf is the one with TLS.
    Raises ``ConfigError`` when the folder already holds a cloud.toml.
    """
    check_id(fleet, "fleet")
    match = _URL.fullmatch(url)
    if match is None or not 0 < int(match[1]) < 65536:
        raise ConfigError("url", url, "mqtt://host:port")
    if (folder / "cloud.toml").exists():
        raise ConfigError("folder", str(folder), "a folder without a cloud.toml")
    user = f"{COORDINATOR}{fleet}"
    password = os.urandom(24).hex()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        owner = folder.owner()
    except (OSError, KeyError) as exc:
        raise StorageError(f"{folder}: {exc}") from exc
    root = folder.resolve()
    broker = MOSQUITTO.format(port=match[1], root=root, user=owner)
    with translated("write a first configuration into", folder):
        write_private(folder / "coordinator-password", password + "\n")
        add_password(folder / "broker-passwords", user, password)
        write_private(folder / "broker-acl", ACL.format(user=user, fleet=fleet))
        (folder / "mosquitto.conf").write_text(broker)
        (folder / "cloud.toml").write_text(CLOUD_TOML.format(fleet=fleet, url=url))


CLOUD_TOML = """\
# The coordinator of one fleet. Every key: share/sedge/cloud.toml.
fleet = "{fleet}"
state_dir = "state"

[broker]
url = "{url}"
password_file = "coordinator-password"
device_password_file = "broker-passwords"
"""

ACL = """\
user {user}
topic readwrite sedge/1/{fleet}/#

pattern write sedge/1/{fleet}/device/%u/up
pattern read sedge/1/{fleet}/device/%u/down
pattern read sedge/1/{fleet}/blob/#
"""

# What every broker of ours allows a client, cloud/mosquitto.conf and the emulator's too. Sedge sends at
# QoS 0 alone: what it bounds is how many packets may wait for a slow client before the broker drops some.
MOSQUITTO_LIMITS = """\
# the largest frame is 256 KiB and 64 bytes
max_packet_size 400000
max_inflight_messages 32
max_queued_messages 200
max_queued_bytes 2000000
max_keepalive 120
set_tcp_nodelay true
# Sedge's sessions end with their connection; one that somebody else left behind is forgotten
persistent_client_expiration 1h
persistence false
"""

MOSQUITTO = (
    """\
# For a trial on a network you trust: passwords, no TLS. After `device add`, send SIGHUP to Mosquitto.
# cloud/mosquitto.conf has TLS on both sides.
user {user}
per_listener_settings true
listener {port}
allow_anonymous false
password_file {root}/broker-passwords
acl_file {root}/broker-acl
"""
    + MOSQUITTO_LIMITS
)
