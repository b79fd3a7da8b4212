"""Decides whose orders the device takes: those under a policy signed by a pinned key (policy.md).

Everything is checked before the version of a policy is committed: a version stored before its policy proved
valid would shut out the next valid one.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from sedge_edge.jobs.storage import ReadableBlobs
from sedge_edge.rounds.budget import Budget
from sedge_edge.rounds.frozen_data import bundle_facts
from sedge_edge.rounds.state import StateStore
from sedge_edge.rounds.taken_policies import TakenPolicy
from sedge_protocol.errors import PolicyError
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.policy import Policy, Sealed, require_allowed, unsealed
from sedge_protocol.wire.refusals import (
    BAD_SIGNATURE,
    EXPIRED_POLICY,
    FOREIGN_KEY,
    OLD_POLICY,
    UNSIGNED,
)

# Whether 64 bytes are a pinned key's signature of some bytes; the key is given by its id.
Keys: TypeAlias = Mapping[bytes, Callable[[bytes, bytes], bool]]


class Trust:
    """The orders that the pinned ``keys`` allow; without keys, every order."""

    def __init__(self, keys: Keys, blobs: ReadableBlobs, store: StateStore, budget: Budget) -> None:
        self._keys = keys
        self._blobs = blobs
        self._store = store
        self._budget = budget

    def policy_of(self, order: Order) -> TakenPolicy | None:
        """The policy of an order that was not refused; None without pinned keys."""
        if not self._keys:
            return None
        sealed = unsealed(order.policy)
        return TakenPolicy(sealed.policy().version, sealed.key)

    def refusal(self, order: Order) -> PolicyError | None:
        """Why the order may not be done, as far as this is known before its bundle is here.

        Raises ``StorageError`` when the disk refuses.
        """
        if not self._keys:
            return None
        facts = bundle_facts(order.bundle.sha256, self._blobs)
        try:
            sealed = self._verified(order)
            self._require_current(order.run, sealed.policy())
            require_allowed(sealed.policy(), order, None if facts is None else facts.manifest_hash)
        except PolicyError as exc:
            return exc
        return None

    def _verified(self, order: Order) -> Sealed:
        pinned = ", ".join(sorted(key.hex() for key in self._keys))
        if not order.policy:
            raise PolicyError(UNSIGNED.format(keys=pinned))
        sealed = unsealed(order.policy)
        named = sealed.key.hex()
        if sealed.key not in self._keys:
            raise PolicyError(FOREIGN_KEY.format(key=named, keys=pinned))
        if not self._keys[sealed.key](sealed.signature, sealed.signed):
            raise PolicyError(BAD_SIGNATURE.format(key=named))
        return sealed

    def _require_current(self, run: str, policy: Policy) -> None:
        """Raise ``PolicyError`` for an expired policy, and for one older than the run's last."""
        last = self._store.state.policies.get(run)
        # Policies of a key that is no longer pinned exclude nobody: the key may have been stolen.
        if last is not None and last.key in self._keys and policy.version < last.version:
            raise PolicyError(OLD_POLICY.format(version=policy.version, taken=last.version))
        # A clock without a battery may start in the past, but not before an earlier start.
        clock_s = max(self._budget.clock_s, self._store.state.incarnation)
        if policy.expires and clock_s >= policy.expires:
            raise PolicyError(EXPIRED_POLICY.format(seconds=int(clock_s) - policy.expires))
