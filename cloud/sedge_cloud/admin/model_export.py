"""``sedge-cloud run export``: writes a run's models for other programs, and its history as a table."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import msgspec

from sedge_cloud.admin.models import find_run, global_model, read_bundle
from sedge_cloud.rounds.assignments import check_assignment
from sedge_cloud.runs.run import Run
from sedge_cloud.runs.run_store import RunStore
from sedge_cloud.store.database import Store
from sedge_cloud.store.records import Summary
from sedge_cloud.strategy import ClientModel
from sedge_protocol.errors import ConfigError, StrategyError
from sedge_protocol.host.disk import replace_file, translated
from sedge_protocol.host.model_files import write_model
from sedge_protocol.host.privileges import as_caller

# The columns of the table. Byte counts are totals over all devices; ``up`` and ``down`` count what the
# devices' connections carried.
COLUMNS = (
    "round", "task", "cohort", "updates", "declined", "late", "train_loss", "before", "after",
    "update_bytes", "up", "down", "failure",
)  # fmt: skip


def export_global(store: Store, name: str, path: Path) -> None:
    """Write a run's global model, frozen tensors included. Raises the errors of ``write_model``."""
    row = find_run(store, name)
    bundle, theta = read_bundle(store, row), global_model(store, row)
    with as_caller():
        write_model(bundle, theta, path)


def export_device(store: Store, name: str, device: str, path: Path) -> str:
    """Write the model that a device had after its last training, at the width that the device trains.

    Returns a note about the parts that stay on the device, or an empty string if there are none. Raises
    ``ConfigError`` for a device that has no model in the run, and the errors of ``write_model``.
    """
    row = find_run(store, name)
    run, run_store = Run(row, store), RunStore(store)
    client = run_store.client_model(run, device)
    if client.trained is None:
        lost = "; ".join(run_store.take_losses())
        known = ", ".join(store.client_devices(name)) or "none has one yet"
        expected = lost or f"a device with a model in run {name}: {known}"
        raise ConfigError("--device", device, expected)
    bundle = read_bundle(store, row, client.width)
    with as_caller():
        write_model(bundle, client.trained, path)
    return _kept_back(run, run_store, client)


def export_devices(store: Store, name: str, folder: Path, suffix: str) -> Iterator[tuple[str, str]]:
    """Write every device's model to a folder. Yields each device with the note from ``export_device``."""
    devices = store.client_devices(find_run(store, name).run)
    with as_caller(), translated("make folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    for device in devices:
        yield device, export_device(store, name, device, folder / f"{device}{suffix}")


def export_history(store: Store, name: str, path: Path) -> None:
    """Write a run's closed rounds as a CSV table, one line per round."""
    find_run(store, name)
    text = io.StringIO()
    table = csv.writer(text)
    table.writerow(COLUMNS)
    for row in store.rounds(name):
        if row.summary is not None:
            summary = msgspec.msgpack.decode(row.summary, type=Summary)
            traffic = store.traffic(name, row.round)
            moved = sum(one.up for one in traffic), sum(one.down for one in traffic)
            table.writerow(_line(summary, *moved))
    with as_caller(), translated("write the history to", path):
        replace_file(path, text.getvalue().encode(), path.with_name(f"{path.name}.part"))


def _kept_back(run: Run, run_store: RunStore, client: ClientModel) -> str:
    """Describe the part of a device's model that the run's strategy keeps on the device."""
    try:
        assignment = run.strategy.plan(run_store.context(run), client)
        work = check_assignment(run, client.device, assignment)
    except (ConfigError, StrategyError):
        # The strategy can no longer be loaded, so what the device keeps is unknown.
        return ""
    if not work.upload:
        return "sends no model: the file holds its initial model"
    if work.own_model is not None:
        return "has a second model, which stays on the device: the file holds the one that it sends"
    if work.keep:
        named = ", ".join(work.keep[:4]) + (", …" if len(work.keep) > 4 else "")
        return f"keeps {named} to itself: the file holds the run's values instead"
    if work.blend is not None:
        return (
            "predicts with a mean over its rounds, which stays on the device: the file holds the model "
            "that it sends"
        )
    return ""


def _line(s: Summary, up: int, down: int) -> tuple[object, ...]:
    updates, late = len(s.devices), len(s.late)
    values = (s.train_loss, s.before, s.after)
    loss, before, after = ("" if s.withheld else f"{value:.6g}" for value in values)
    head = (s.round, s.task, s.cohort, updates, s.declined, late)
    return (*head, loss, before, after, s.update_bytes, up, down, s.failure)
