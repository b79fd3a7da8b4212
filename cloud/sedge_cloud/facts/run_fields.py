"""The few fields of a run's state and configuration that facts need, read without the rest of them."""

import msgspec

from sedge_cloud.facts.records import PrivacyFacts
from sedge_cloud.store.rows import RunRow


class Budget(msgspec.Struct, frozen=True):
    """What a private run has spent."""

    noise: float
    rounds: int
    spent: int = 0


class StateFields(msgspec.Struct, frozen=True):
    """Which devices learn with which (a blob), and the budget of a private run."""

    groups: bytes = b""
    budget: Budget | None = None


class Bound(msgspec.Struct, frozen=True):
    """What a private run may spend."""

    epsilon: float
    delta: float
    clip: float


class ConfigFields(msgspec.Struct, frozen=True):
    """The number of rounds that train, and the bound of a private run."""

    num_rounds: int
    privacy: Bound | None = None


def fields_of(row: RunRow) -> tuple[StateFields, ConfigFields]:
    """The fields in a run's row."""
    return (
        msgspec.msgpack.decode(row.state, type=StateFields),
        msgspec.msgpack.decode(row.config, type=ConfigFields),
    )


def privacy_of(state: StateFields, config: ConfigFields) -> PrivacyFacts | None:
    """The budget of a private run; None for any other, and before its first round."""
    if state.budget is None or config.privacy is None:
        return None
    bound, spent = msgspec.structs.asdict(config.privacy), msgspec.structs.asdict(state.budget)
    return PrivacyFacts(**bound, **spent)
