"""Decides whose orders a device accepts: those with a policy signed by a pinned key or its successor.

Policies are described in spec/policy.md. Everything is checked before the version of a policy is committed.
Otherwise the version of an invalid policy could be stored, and would exclude the next valid one.
"""

from collections.abc import Collection

from sedge_edge.jobs.storage import ReadableBlobs
from sedge_edge.rounds.budget import Budget
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_edge.rounds.state import StateStore
from sedge_edge.rounds.taken_policies import TakenPolicy
from sedge_protocol.errors import PolicyError
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.policy import Policy, require_allowed, unsealed
from sedge_protocol.wire.refusals import EXPIRED_POLICY, OLD_POLICY, UNSIGNED
from sedge_protocol.wire.signing_keys import SigningKeys, ids


class Trust:
    """Checks whether the pinned ``keys`` allow an order. Without keys, every order is allowed."""

    def __init__(
        self, keys: SigningKeys | None, blobs: ReadableBlobs, store: StateStore, budget: Budget
    ) -> None:
        self._pinned = keys if keys is not None and keys.keys else None
        self._blobs = blobs
        self._store = store
        self._budget = budget

    def policy_of(self, order: Order) -> TakenPolicy | None:
        """Return the policy of an order that passed ``refusal``, or None if no keys are pinned."""
        if self._pinned is None:
            return None
        sealed = unsealed(order.policy)
        return TakenPolicy(sealed.policy().version, sealed.key)

    def learn(self, order: Order) -> None:
        """Commit the key replacements in the policy of an order that passed ``refusal``.

        Raises ``StorageError`` if the disk fails.
        """
        if self._pinned is not None:
            before = self._store.state.replaced
            self._store.replace_keys(self._pinned.verified(order.policy, before))

    def refusal(self, order: Order) -> PolicyError | None:
        """Return why the order is not allowed, or None.

        Before the order's bundle has arrived, some reasons cannot be known yet. Raises ``StorageError`` if
        the disk fails.
        """
        if self._pinned is None:
            return None
        facts = bundle_facts(order.bundle.sha256, self._blobs)
        try:
            keys = self._signed(order, self._pinned)
            policy = unsealed(order.policy).policy()
            self._require_current(order.run, policy, keys)
            require_allowed(policy, order, None if facts is None else facts.manifest_hash)
        except PolicyError as exc:
            return exc
        return None

    def _signed(self, order: Order, pinned: SigningKeys) -> Collection[bytes]:
        """Return the ids of the valid keys.

        Raises ``PolicyError`` unless one of them has signed the policy.
        """
        replaced = self._store.state.replaced
        if not order.policy:
            raise PolicyError(UNSIGNED.format(keys=ids(pinned.after(replaced))))
        return pinned.after(pinned.verified(order.policy, replaced))

    def _require_current(self, run: str, policy: Policy, keys: Collection[bytes]) -> None:
        """Raise ``PolicyError`` if the policy has expired or is older than the run's last one."""
        last = self._store.state.policies.get(run)
        # Policies signed by a key that has been replaced do not count here, because that key may have been
        # stolen.
        if last is not None and last.key in keys and policy.version < last.version:
            raise PolicyError(OLD_POLICY.format(version=policy.version, taken=last.version))
        # A clock without a battery may start in the past, but the current time cannot precede an earlier
        # start.
        clock_s = max(self._budget.clock_s, self._store.state.incarnation)
        if policy.expires and clock_s >= policy.expires:
            raise PolicyError(EXPIRED_POLICY.format(seconds=int(clock_s) - policy.expires))
