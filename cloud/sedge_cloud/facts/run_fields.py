"""Reads only those fields of a run's state and configuration that facts need, as the rows are large."""

import msgspec

from sedge_cloud.facts.records import PrivacyFacts
from sedge_cloud.privacy import PrivacyBudget, PrivacyConfig
from sedge_cloud.store.rows import RunRow


class StateFields(msgspec.Struct, frozen=True):
    """Fields of a run's state: the blob of its groups, and the budget of a private run."""

    groups: bytes = b""
    budget: PrivacyBudget | None = None


class ConfigFields(msgspec.Struct, frozen=True):
    """Fields of a run's configuration: how many rounds train, and the privacy settings."""

    num_rounds: int
    privacy: PrivacyConfig | None = None


def fields_of(row: RunRow) -> tuple[StateFields, ConfigFields]:
    """Decode ``StateFields`` and ``ConfigFields`` from a run's row."""
    return (
        msgspec.msgpack.decode(row.state, type=StateFields),
        msgspec.msgpack.decode(row.config, type=ConfigFields),
    )


def privacy_of(state: StateFields, config: ConfigFields) -> PrivacyFacts | None:
    """Return the budget of a private run. Returns None for other runs, and before the first round."""
    bound, budget = config.privacy, state.budget
    if bound is None or budget is None:
        return None
    return PrivacyFacts(
        epsilon=bound.epsilon,
        delta=bound.delta,
        clip=bound.clip,
        noise=budget.noise,
        rounds=budget.rounds,
        spent=budget.spent,
    )
