"""Chooses the runs to delete if a device keeps too much: the oldest ended runs, never its newest model.

Deleted state cannot be restored (state.py), so nothing is deleted unless edge.toml says so.
"""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from sedge_edge.rounds.state import AgentState
from sedge_protocol.wire.messages import MAX_RUNS


class KeepConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """[keep]: what this device keeps of its runs: models to predict with, and state for further training.

    Deleted runs cannot be restored. The newest model, and runs with a waiting order or update, always stay.
    `sedge-edge prune --dry-run` lists what would be deleted; a running agent deletes it automatically.
    """

    runs: Annotated[int, Meta(ge=1, le=MAX_RUNS)] | None = None
    """Number of runs to keep, newest first; by default 16, and the oldest is deleted only to make room for
    a new one."""
    gigabytes: Annotated[float, Meta(gt=0, le=1_000_000)] | None = None
    """Gigabytes that runs may use, above which the oldest are deleted; by default, no limit."""


class Retention:
    """Applies the settings in [keep] to a device's state.

    ``sizes`` returns the size of each file in bytes, keyed by name.
    """

    def __init__(
        self,
        keep: KeepConfig = KeepConfig(),  # noqa: B008  frozen
        sizes: Callable[[], Mapping[bytes, int]] = dict,
    ) -> None:
        self._keep = keep
        self._sizes = sizes

    def surplus(
        self, state: AgentState, needed: Callable[[AgentState], set[bytes]]
    ) -> tuple[str, ...]:
        """Return the runs to delete, oldest first.

        ``needed`` returns the names of the files that a state needs.

        Runs with a waiting order or update are never deleted, nor is the newest run with a model. Raises
        ``StorageError`` if the disk cannot be read.
        """
        keep, gone = self._keep, list[str]()
        if keep == KeepConfig():
            return ()
        candidates = _over(state)
        if keep.runs is not None:
            gone = candidates[: max(0, len(state.runs) - keep.runs)]
        if keep.gigabytes is not None:
            sizes = self._sizes()
            while len(gone) < len(candidates):
                names = needed(without_runs(state, gone))
                if sum(sizes.get(name, 0) for name in names) <= keep.gigabytes * 1e9:
                    break
                gone = candidates[: len(gone) + 1]
        return tuple(gone)


def without_runs(state: AgentState, gone: list[str] | tuple[str, ...]) -> AgentState:
    """Return the state without these runs."""
    runs = {run: entry for run, entry in state.runs.items() if run not in gone}
    return msgspec.structs.replace(state, runs=runs)


def _over(state: AgentState) -> list[str]:
    """Return the runs that may be deleted, oldest first."""
    newest = next((run for run in reversed(state.runs) if state.runs[run].kept.model), None)
    used = {newest, *state.orders, *(waiting.run for waiting in state.outbox)}
    return [run for run in state.runs if run not in used]
