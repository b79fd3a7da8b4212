"""Prepares an emulation before its workers start: exports the model and checks its trainer.

Both results come from the cache if an earlier emulation used the same model, data and versions. This
runs in a separate process, which loads torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from sedge_emulate.cache import FolderCache
from sedge_emulate.model import Sample, export_model
from sedge_emulate.workers.setup import WorkerSetup, trainer_for
from sedge_protocol.host.disk import translated
from sedge_protocol.wire.bundle import load


@dataclass(frozen=True)
class Preparation:
    """The result of ``prepare``: whether all exports came from the cache, and notes to show to the user."""

    from_cache: bool
    notes: list[str]


def prepare(
    setup: WorkerSetup,
    sample: Sample,
    seed: int,
    forms: Sequence[tuple[float, Path]],
    fresh: bool = False,
) -> Preparation:
    """Export each form of the model, and check the trainer.

    ``forms`` lists each form's share of dropped channels and its folder. With ``fresh``, nothing is
    taken from the cache. Raises ``DataError`` if the targets' meaning is ambiguous, and any error from
    exporting a model or opening its trainer.
    """
    notes: list[str] = []
    cache = None if setup.cache is None else FolderCache(setup.cache, notes.append, fresh)
    if cache is None:
        notes.append("cache: not used: found neither $XDG_CACHE_HOME nor a home folder")
    cached = [_exported(setup, cache, sample, seed, dropped, folder) for dropped, folder in forms]
    if setup.trainer.device == "cpu":  # a GPU's checks depend on more than the digest covers
        for _, folder in forms:
            trainer_for(setup, load(folder)[0], sample.rows, notes.append, cache)
    return Preparation(all(cached), list(dict.fromkeys(notes)))


def _exported(
    setup: WorkerSetup,
    cache: FolderCache | None,
    sample: Sample,
    seed: int,
    dropped: float,
    folder: Path,
) -> bool:
    """Export one form, or take it from the cache. Returns True if it came from the cache."""
    from sedge_emulate.training.fingerprint import fingerprint

    source = setup.model
    own = source.own_loss(), source.own_metric()
    recipe = replace(source, base=Path()), own, seed, dropped, sample.doubtful
    rows = sample.rows

    def taken() -> bytes | None:
        if cache is None:
            return None
        parts = "export", *recipe, str(rows.dtype), rows.tobytes()
        return fingerprint(source.bare(seed), *parts, note=cache.note)

    key = taken()
    found = None if cache is None or key is None else cache.find(key)
    if found is None:
        export_model(source, sample, seed, folder, dropped)
        if cache is not None and key is not None:
            files = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
            cache.keep(key, msgspec.msgpack.encode(files), taken())
        return False
    with translated("write", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in msgspec.msgpack.decode(found, type=dict[str, bytes]).items():
            (folder / name).write_bytes(data)
    return True
