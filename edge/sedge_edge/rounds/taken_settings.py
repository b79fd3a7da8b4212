"""Settings that a device accepts from its coordinator. They can only tighten its own (spec/settings.md).

    welcome with other settings  ->  on the disk  ->  in force  ->  a hello with their name

The settings stay in force across restarts and lost connections, until a welcome contains other settings or
none.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from sedge_edge.rounds.budget import Budget
from sedge_edge.rounds.handshake import Handshake
from sedge_edge.rounds.state import StateStore
from sedge_protocol.wire.effects import Effect, Note
from sedge_protocol.wire.messages import Welcome
from sedge_protocol.wire.settings import Settings, listed, name_of, tightened


class OwnSettings(NamedTuple):
    """The settings in edge.toml. ``apply`` is called with the settings in force whenever they change."""

    own: Settings
    apply: Callable[[Settings], None]


class TakenSettings:
    """The settings that a device has accepted from its coordinator. It accepts none if ``own`` is None."""

    def __init__(
        self, own: OwnSettings | None, store: StateStore, handshake: Handshake, budget: Budget
    ) -> None:
        self._own, self._store, self._handshake, self._budget = own, store, handshake, budget
        if own is not None:
            coded = store.state.settings
            self._apply(own, tightened(own.own, coded)[0])
            handshake.follows(name_of(coded))

    def _apply(self, own: OwnSettings, now: Settings) -> None:
        self._budget.tighten(now.limits, own.own.limits)
        own.apply(now)

    def welcomed(self, message: Welcome, now: float) -> list[Effect]:
        """Accept the settings in a welcome, if they have changed and it answers this connection's hello.

        Raises ``StorageError`` if the disk fails, and ``BodyError`` for malformed settings.
        """
        own, coded = self._own, message.settings
        is_answer = message.nonce == self._handshake.nonce
        if own is None or not is_answer or coded == self._store.state.settings:
            return []
        tight, ignored = tightened(own.own, coded)
        self._store.take_settings(coded)
        self._apply(own, tight)
        self._handshake.follows(name_of(coded), now)
        if not coded:
            return [Note(logging.INFO, "the coordinator has withdrawn its settings")]
        notes: list[Effect] = [Note(logging.INFO, f"settings of the coordinator: {listed(coded)}")]
        if ignored:
            text = f"ignored some of the coordinator's settings: {', '.join(ignored)}"
            notes.append(Note(logging.WARNING, text))
        return notes
