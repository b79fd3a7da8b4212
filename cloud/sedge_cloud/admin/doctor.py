"""``sedge-cloud doctor``: checks the coordinator's setup, and reports what is wrong."""

import secrets
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from sedge_cloud.admin.certifying import certificates_left
from sedge_cloud.admin.revocation import is_served
from sedge_cloud.broker.access import access_is_whole
from sedge_cloud.broker.accounts import passwords_agree
from sedge_cloud.config import CloudConfig, broker_settings, load_cloud
from sedge_cloud.facts.problems import ENOUGH_FREE_BYTES
from sedge_cloud.figures.numbers import quantity
from sedge_cloud.rounds.lifecycle import RUNNING
from sedge_cloud.runs.capabilities import packets_for
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.terms import without_link
from sedge_cloud.store.database import Store
from sedge_cloud.store.opening import open_store
from sedge_protocol.errors import ConfigError, LinkError, SedgeError, StorageError, os_reason
from sedge_protocol.host.privileges import act_as_owner, as_caller
from sedge_protocol.host.probe import measure, number_of, numbered, probe
from sedge_protocol.host.web import Span, shown
from sedge_protocol.wire.frame import EARLIEST_CLOCK_S, LEAST_PACKET_BYTES, MAX_PACKET_BYTES
from sedge_protocol.wire.topics import ITSELF, all_up, down, up
from sedge_protocol.wire.transfer import describe

# The folder with the configuration of sedge-cloud.service, and the only folder it may write to.
SERVICE_CONFIG, SERVICE_STATE = Path("/etc/sedge"), Path("/var/lib/sedge-cloud")
# A coordinator that is closing a large fleet's round does not answer until it has finished.
ANSWER_S = 30.0
# The advice given when the broker's limit is too low.
LIMITS = "raise message_size_limit or max_packet_size (Mosquitto), or your broker's equivalent"


def examine(path: Path, tell: Callable[[bool, str], None]) -> bool:
    """Run all checks and pass each result to ``tell``. Returns True if all checks pass."""
    healthy = True

    def check(what: str, look: Callable[[], str]) -> None:
        nonlocal healthy
        try:
            tell(True, f"{what}: {look()}")
        except SedgeError as exc:
            healthy = False
            tell(False, f"{what}: {exc}")

    try:
        cloud = load_cloud(path)
    except SedgeError as exc:
        tell(False, f"configuration: {exc}")
        return False
    tell(True, f"configuration: {path}, fleet {cloud.fleet}")
    folder = act_as_owner(Path(cloud.state_dir))
    check("disk", lambda: _disk(folder))
    check("store", lambda: _store(cloud))
    check("clock", _clock)
    if cloud.blobs.public is not None:
        check("public", lambda: _public(cloud))
    check("unit", lambda: _unit(cloud, path))
    check("broker", lambda: _broker(cloud))
    if cloud.broker.reload is not None:
        check("reload", lambda: _reload(cloud.broker.reload or ""))
    check("access", lambda: access_is_whole(cloud))
    if healthy:
        check("messages", lambda: _messages(cloud))
    if healthy:
        check("passwords", lambda: passwords_agree(cloud))
    if cloud.broker.authority_key_file is not None:
        check("certificates", lambda: _certificates(cloud))
    if healthy:
        check("coordinator", lambda: _coordinator(cloud))
    return healthy


def _disk(folder: Path) -> str:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        raise StorageError(f"{folder}: {os_reason(exc)}") from exc
    if free < ENOUGH_FREE_BYTES:
        raise StorageError(f"{folder}: {free / 1e6:.0f} MB free, expected at least 1 GB")
    return f"{folder}, {free / 1e9:.1f} GB free"


def _store(cloud: CloudConfig) -> str:
    with closing(open_store(cloud)) as store:
        store.check()
        runs = store.runs()
        for row in runs:
            if row.status == RUNNING:
                _ = Run(row, store).strategy
        running = sum(1 for row in runs if row.status == RUNNING)
        devices, known = quantity(store.enrolled(), "device"), quantity(len(runs), "run")
        return f"sound; {devices}, {running} of {known} running"


def _public(cloud: CloudConfig) -> str:
    """Check that the URL given to devices serves the newest run's model, and note if it ignores ranges."""
    with closing(open_store(cloud)) as store:
        names = _models(store)
        if not names or store.public is None:
            return "no run yet, so nothing to fetch"
        url, manifest = store.public(names[-1]), describe(store.blobs.read(names[-1]))
    last = manifest.count - 1
    span = Span(url, manifest, last, manifest.count)
    with as_caller():
        sent = dict(span.chunks())
    if not manifest.matches(last, sent[last]):
        raise LinkError(f"{shown(url)} sends bytes that differ from the store's")
    if not span.ranged:
        end = "but ignores ranges: an interrupted download starts over"
        return f"{shown(url)} serves the right bytes, {end}"
    return f"{shown(url)} serves the right bytes"


def _models(store: Store) -> list[bytes]:
    """Return the digest of every run's model blob, oldest run first."""
    return [Run(row, store).state.model for row in store.runs()]


def _unit(cloud: CloudConfig, path: Path) -> str:
    """Check that the state is in the only folder to which sedge-cloud.service may write."""
    if path.absolute().parent == SERVICE_CONFIG and Path(cloud.state_dir) != SERVICE_STATE:
        expected = f"{SERVICE_STATE}, the only folder that sedge-cloud.service may write to"
        raise ConfigError("state_dir", cloud.state_dir, expected, str(path))
    return f"state in {cloud.state_dir}"


def _broker(cloud: CloudConfig) -> str:
    with as_caller():
        probe(broker_settings(cloud), all_up(cloud.fleet), up(cloud.fleet, ITSELF))
    return f"{cloud.broker.url} lets the coordinator in"


def _reload(command: str) -> str:
    """Check that the folders named in the command exist; they may not if the fleet's folder was moved."""
    try:
        words = shlex.split(command)
    except ValueError as exc:
        raise ConfigError("broker.reload", command, f"a command line ({exc})") from exc
    for word in words:
        if word.startswith("/") and not Path(word).parent.is_dir():
            expected = (
                "an existing path; if the fleet's folder was moved, `sedge-cloud up` corrects it"
            )
            raise ConfigError("broker.reload", word, expected)
    return command


def _messages(cloud: CloudConfig) -> str:
    """Measure the largest message that the broker relays, and check that running runs' messages fit."""
    token, there = secrets.token_bytes(16), up(cloud.fleet, ITSELF)
    with as_caller():
        limit = measure(
            broker_settings(cloud),
            there,
            lambda number, packet: (there, numbered(token, number, there, packet)),
            lambda payload: number_of(token, payload),
            ANSWER_S,
        )
    if limit < LEAST_PACKET_BYTES:
        raise ConfigError(
            "the largest message that comes back", limit, f"at least {LEAST_PACKET_BYTES}: {LIMITS}"
        )
    with closing(open_store(cloud)) as store:
        for row in store.runs():
            if row.status == RUNNING and (
                missing := without_link(packets_for(Run(row, store)), limit)
            ):
                raise StorageError(f"run {row.run} needs {missing[0]}")
    larger = (
        "" if limit == MAX_PACKET_BYTES else "; larger ones are lost, so smaller chunks are sent"
    )
    return f"up to {limit} bytes come back{larger}"


def _certificates(cloud: CloudConfig) -> str:
    with closing(open_store(cloud)) as store:
        return certificates_left(store, cloud)


def _coordinator(cloud: CloudConfig) -> str:
    """Check that the running coordinator answers a message sent through the broker."""
    if not is_served(cloud):
        return "sedge-cloud serve is not running here"
    with as_caller():
        probe(broker_settings(cloud), down(cloud.fleet, ITSELF), up(cloud.fleet, ITSELF), ANSWER_S)
    return "sedge-cloud serve is running and answers"


def _clock() -> str:
    now = time.time()
    if now < EARLIEST_CLOCK_S:
        raise StorageError(f"the clock says {time.ctime(now)}; set it, or TLS will fail")
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))
