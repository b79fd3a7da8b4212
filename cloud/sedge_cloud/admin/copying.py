"""Moves a fleet from one store to another: rows and blobs, between any two kinds of store."""

from contextlib import ExitStack

from sedge_cloud.figures.numbers import quantity
from sedge_cloud.runs.garbage import Garbage
from sedge_cloud.store.database import Store
from sedge_protocol.errors import ConfigError, StorageError
from sedge_protocol.host.loop import lock_folder


def copy_store(source: Store, target: Store) -> list[str]:
    """Copy everything into an empty store. Returns lines for the operator. A second run resumes the copy.

    Raises ``ConfigError`` for a target that holds a fleet, ``StorageError`` when a coordinator runs on
    either store, or when one of them fails.
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
    """Copy and check every blob that a row names: how many, how many existed, and how many are lost."""
    named, there = sorted(Garbage(source).named_blobs()), source.blobs.sizes()
    copied = skipped = lost = 0
    for sha256 in named:
        if sha256 not in there:  # a small update, which is a row
            lost += bool(source.missing_reason(sha256))
        elif _is_sound(target, sha256):
            skipped += 1
        else:
            target.blobs.write(source.blobs.read(sha256))
            copied += 1
    target.blobs.settle()
    return copied, skipped, lost


def is_empty(store: Store) -> bool:
    """Whether a store is empty, such as one just created in a folder that has lost its own."""
    return not store.census().all and not store.runs()


def _is_sound(store: Store, sha256: bytes) -> bool:
    """Whether a store has a blob with the right bytes; a damaged one is set aside."""
    if not store.blobs.has(sha256):
        return False
    try:
        store.blobs.read(sha256)
    except StorageError as exc:
        if store.missing_reason(sha256):
            return False
        raise exc
    return True
