"""``sedge-edge doctor``: checks that a device is ready to take part."""

import platform
import re
import shlex
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np

from sedge_edge.backends import BACKENDS, allowed_backends, installed_backends
from sedge_edge.config import EdgeConfig, load_config
from sedge_edge.data import Raw, read_source
from sedge_edge.data.raw import is_pixels
from sedge_edge.gates import Gates
from sedge_edge.own_files import check_files, own_files
from sedge_edge.question import ask_coordinator, largest_message
from sedge_edge.rounds.frozen_data import read_bundle
from sedge_edge.rounds.state import SCHEMA, AgentState
from sedge_edge.sensors import Sensors
from sedge_edge.training.examples import Examples, fitting, split_rows
from sedge_protocol.errors import ConfigError, DataError, SedgeError, StorageError, os_reason
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.host.journal import Journal
from sedge_protocol.host.memory_limit import memory_mb
from sedge_protocol.host.privileges import act_as_owner, as_caller
from sedge_protocol.host.user_code import imported
from sedge_protocol.wire.bundle import WITHOUT_PROGRAMS, BundleManifest, load
from sedge_protocol.wire.frame import EARLIEST_CLOCK_S, LATEST_CLOCK_S

# The folder of sedge-edge.service's configuration, and the only folder where it may write.
SERVICE_CONFIG, SERVICE_STATE = Path("/etc/sedge"), Path("/var/lib/sedge")
ENOUGH_FREE_BYTES = 64_000_000
# The agent with ONNX Runtime and a small CNN needs up to about 110 MB. The system needs as much again.
ENOUGH_MEMORY_MB = 200


def examine(path: Path, report: Callable[[bool, str], None], bundle: Path | None = None) -> bool:
    """Run all checks and call ``report`` with each result. Returns True if all have passed.

    The data are compared with the model in the folder ``bundle`` or, by default, with the newest run's
    model.
    """
    try:
        config = load_config(path)
    except SedgeError as exc:
        report(False, f"configuration: {exc}")
        return False
    report(True, f"configuration: {path}, device {config.device} of fleet {config.fleet}")
    checks: dict[str, Callable[[], str]] = {
        "disk": lambda: _disk(config),
        "clock": _clock,
        "memory": _memory,
        "data": lambda: _data(config, path, bundle),
        "backend": lambda: _backend(config, path.absolute().parent),
        **({"frozen": lambda: _frozen(config)} if config.frozen else {}),
        "gates": lambda: gate_values(Gates(config.gates, Sensors())),
        "torch": lambda: _torch(config),
        "unit": lambda: _unit(config, path),
        **({"certificate": lambda: _certificate(config)} if config.is_certified else {}),
        "broker": lambda: _broker(config),
        "messages": lambda: largest_message(config),
    }
    failed = set[str]()
    for name, check in checks.items():
        if name == "messages" and "broker" in failed:
            continue  # no message could come back, for the reason already reported
        try:
            with as_caller():
                report(True, f"{name}: {check()}")
        except SedgeError as exc:
            failed.add(name)
            report(False, f"{name}: {exc}")
        except MemoryError:
            failed.add(name)
            report(False, f"{name}: the check needs more memory than is free")
    return not failed


def _disk(config: EdgeConfig) -> str:
    folder = act_as_owner(config.state_dir)
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        probe_file = folder / "doctor.tmp"
        probe_file.write_bytes(b"\0" * 4096)
        probe_file.unlink()
        free = shutil.disk_usage(folder).free
    except OSError as exc:
        raise StorageError(f"{folder}: {os_reason(exc)}") from exc
    if free < ENOUGH_FREE_BYTES:
        raise StorageError(f"{folder}: {free / 1e6:.0f} MB free, expected at least 64 MB")
    return f"{config.state_dir} is writable, {free / 1e9:.1f} GB free"


def _clock() -> str:
    now = time.time()
    if not EARLIEST_CLOCK_S <= now <= LATEST_CLOCK_S:
        raise StorageError(f"it says {time.ctime(now)}; set it, or TLS will fail")
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now))


def _memory() -> str:
    available = memory_mb()
    if 0 < available < ENOUGH_MEMORY_MB:
        raise ConfigError("memory", f"{available} MB", f"at least {ENOUGH_MEMORY_MB} MB")
    return f"{available} MB"


def _data(config: EdgeConfig, path: Path, bundle: Path | None) -> str:
    data, base = config.data, path.absolute().parent
    if (hint := _table_instead(config, path)) is not None:
        raise DataError(hint)
    manifest = _manifest(config) if bundle is None else load(bundle)[0].manifest
    shape = None if manifest is None else manifest.input.shape
    raws = [
        read_source(source, base, shape) for source in (data.train, data.test) if source is not None
    ]
    wholes = [raw.examples() for raw in raws]
    counts = [len(whole.targets) for whole in wholes]
    if data.test is None:
        counts = [len(rows) for rows in split_rows(counts[0], data.test_fraction, data.split_seed)]
    if manifest is not None:
        wholes = [_fitting(*pair, manifest) for pair in zip(raws, wholes, strict=True)]
    rows = "x".join(str(extent) for extent in wholes[0].inputs.shape[1:])
    said = f"{counts[0]} examples to train on, {counts[1]} to test on, each {rows}"
    notes = dict.fromkeys(note for raw in raws for note in raw.notes)
    if manifest is None:
        notes["no model has arrived yet: --bundle FOLDER compares the data with one"] = None
    said = f"{said}, x {_range(raws[0], wholes[0])}{_targets(wholes[0])}"
    return "; ".join([said, *notes])


def _table_instead(config: EdgeConfig, path: Path) -> str | None:
    """Return how to train on a table that is in the folder where a configured .npz is missing.

    Returns None if there is no such table. Tables whose names would need quoting for sed are skipped.
    """
    source, base = Path(config.data.train), path.absolute().parent
    if source.suffix.lower() != ".npz" or source.exists():
        return None
    beside = (it for it in source.parent.glob("*.csv") if str(it) != config.data.test)
    names = (str(it.relative_to(base) if it.is_relative_to(base) else it) for it in beside)
    tables = sorted(name for name in names if re.fullmatch(r"[\w./-]+", name))
    if not tables:
        return None
    script = f's|^train = .*|train = "{tables[0]}"|'
    command = shlex.join(("sed", "-i.bak", script, str(path)))
    return f"{source}: no such file, but {tables[0]} is there; to train on it: {command}"


def _fitting(raw: Raw, whole: Examples, manifest: BundleManifest) -> Examples:
    """Convert the examples to the model's types. Raises a ``DataError`` that names the source."""
    try:
        return fitting(whole, manifest)
    except DataError as exc:
        named = exc.row is not None and whole.places is not None
        raise exc if named else DataError(f"{raw.where}: {exc}") from exc


def _targets(whole: Examples) -> str:
    """Describe the range of y. If most of y could be classes, also name the first example that is not."""
    y = whole.targets
    if y is whole.inputs or not y.size:
        return ""
    labels = y.dtype.kind == "i"
    said = f", y {'labels' if labels else 'numbers'} from {y.min():.6g} to {y.max():.6g}"
    odd = (y != np.rint(y)) | (y < 0)
    if y.ndim > 2 or (labels and y.ndim > 1) or not odd.any() or 2 * odd.sum() > odd.size:
        return said
    row = int(np.argmax(odd.reshape(len(odd), -1).any(axis=1)))
    place = f"y[{row}]" if whole.places is None else whole.places.name(row)
    value = y[row][odd[row]].flat[0]
    return f"{said} ({place} has {value:.6g}, which is not a class)"


def _range(raw: Raw, whole: Examples) -> str:
    """Describe the range of x as used for training, because shapes do not reveal a wrong scale."""
    if not whole.inputs.size:
        return "without values"
    low, high = whole.inputs.min(), whole.inputs.max()
    pixels = ", bytes read as pixels" if is_pixels(raw.x) else ""
    return f"from {low:.3g} to {high:.3g}{pixels}"


def _manifest(config: EdgeConfig) -> BundleManifest | None:
    """Return the manifest of the newest run, or None until its bundle has arrived.

    The newest run is that of the last order, whose model may differ from the newest personal model. If the
    disk cannot be read, the disk check says why.
    """
    folder = act_as_owner(config.state_dir)
    with suppress(ConfigError, StorageError):
        state = Journal(folder / "journal", AgentState, SCHEMA).load()
        if state is not None and (bundle := state.newest_bundle()) is not None:
            return read_bundle(BlobFolder(folder), bundle).manifest
    return None


def _backend(config: EdgeConfig, folder: Path) -> str:
    installed, wanted = installed_backends(), config.backend.name
    allowed = allowed_backends(wanted)
    usable = [f"{name} {installed[name]}" for name in allowed if name in installed]
    if not usable:
        ways = " or ".join(BACKENDS[name].install for name in allowed)
        raise ConfigError("backend.name", wanted, ways)
    for code in (wanted, config.backend.model):
        if ":" in code:
            imported(code, folder, "backend")
            return f"{code} can be imported"
    return ", ".join(usable)


def _frozen(config: EdgeConfig) -> str:
    manifest = _manifest(config)
    held = None if manifest is None or manifest.frozen is None else manifest.frozen.blob.sha256
    return check_files(own_files(config.frozen), held)


def gate_values(gates: Gates) -> str:
    """Describe the readings of the configured gates, and which are closed.

    Raises ``ConfigError`` for a gate for which this device has no sensor.
    """
    found: list[str] = []
    for gate in gates.states():
        if gate.value is None:
            raise ConfigError(
                f"gates.{gate.key}",
                "set",
                "this key to be removed: this device has no sensor for it",
            )
        found.append(f"{gate.key} {'closed' if gate.closed else 'open'} ({gate.value})")
    return ", ".join(found) or "none is set; training starts at any time"


def _torch(config: EdgeConfig) -> str:
    """Warn about torch: its CUDA wheels fill the disk of a small device, which rarely needs torch."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return "not installed, and not needed"
    if allowed_backends(config.backend.name)[0] in WITHOUT_PROGRAMS:
        return f"{installed} is installed"
    if "+cu" in installed and platform.machine() == "aarch64":
        raise ConfigError(
            "torch", installed, "no torch: the agent does not need it, and this build includes CUDA"
        )
    return f"{installed} is installed; the agent does not use it"


def _unit(config: EdgeConfig, path: Path) -> str:
    """Check that sedge-edge.service can write the state, although its file system is mostly read-only."""
    if path.absolute().parent == SERVICE_CONFIG and config.state_dir != SERVICE_STATE:
        found, expected = (
            str(config.state_dir),
            f"{SERVICE_STATE}, to which sedge-edge.service can write",
        )
        raise ConfigError("state_dir", found, expected, str(path))
    return f"state in {config.state_dir}"


def _certificate(config: EdgeConfig) -> str:
    own = config.certificate(config.state_dir)
    assert own is not None
    days = (own.until - datetime.now(UTC)).days
    if days < 0:
        text = f"it ended {-days} days ago: `sedge-cloud device token add --device {config.device}` on the"
        raise StorageError(f"{text} coordinator, then `sedge-edge join LINE --replace` here")
    return f"{days} days left; the coordinator renews it over the connection"


def _broker(config: EdgeConfig) -> str:
    return f"{config.broker.url} accepts the device; {ask_coordinator(config)}"
