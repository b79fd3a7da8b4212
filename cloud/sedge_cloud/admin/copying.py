"""Copies a fleet, both rows and blobs, between two stores, which may be of different kinds."""

from contextlib import ExitStack

from sedge_cloud.figures.numbers import quantity
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.loop import lock_folder


def copy_store(source: Store, target: Store) -> list[str]:
    """Copy everything into an empty store. Returns lines for the operator.

    If it is interrupted, the next call resumes the copy. Raises ``ConfigError`` if the target already holds
    a fleet, and ``StorageError`` if a coordinator is using one of the stores or if a store fails.
    """
    with ExitStack() as alone:
        for folder in {store.folder.resolve() for store in (source, target)}:
            alone.enter_context(lock_folder(folder))
        for store in (source, target):
            alone.enter_context(store.serving())
            alone.enter_context(store.blobs_held())
        if not is_empty(target):
            devices, runs = target.census().all, len(target.runs())
            held = f"{quantity(devices, 'device')}, {quantity(runs, 'run')} in {target.place}"
            raise ConfigError("the store to copy to", held, "an empty one")
        copied, skipped, lost = copy_blobs(source, target)
        source.copy_rows_to(target)
    devices, runs = target.census().all, len(target.runs())
    counts = ((devices, "device"), (runs, "run"), (copied, "blob"))
    lines = [f"copied to {target.place}: {', '.join(quantity(*count) for count in counts)}"]
    if skipped:
        lines.append(f"already there and intact: {skipped} blobs")
    if lost:
        lines.append(f"lost earlier and therefore not copied: {lost} blobs")
    return lines


def copy_blobs(source: Store, target: Store) -> tuple[int, int, int]:
    """Copy every blob that a row refers to. Returns how many were copied, already present, and lost."""
    named, there = sorted(Garbage(source).named_blobs()), source.blobs.sizes()
    copied = skipped = lost = 0
    for sha256 in named:
        if sha256 not in there:  # small updates are stored in rows, not as blobs
            lost += bool(source.missing_reason(sha256))
        elif _is_sound(target, sha256):
            skipped += 1
        else:
            target.blobs.write(source.blobs.read(sha256))
            copied += 1
    target.blobs.settle()
    return copied, skipped, lost


def is_empty(store: Store) -> bool:
    """Return True if a store has no devices and no runs, as after the loss of its database file."""
    return not store.census().all and not store.runs()


def _is_sound(store: Store, sha256: bytes) -> bool:
    """Return True if the store has this blob intact. A damaged blob is moved aside."""
    if not store.blobs.has(sha256):
        return False
    try:
        store.blobs.read(sha256)
    except StorageError as exc:
        if store.missing_reason(sha256):
            return False
        raise exc
    return True
