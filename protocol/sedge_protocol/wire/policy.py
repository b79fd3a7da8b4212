"""A run's policy, in which the holder of a signing key limits what orders may ask for (policy.md).

Every order of the run carries the sealed policy: the id of the key, the signature, and the policy's
MessagePack. The coordinator does not have the key and cannot make a policy. So an attacker who takes over
the coordinator can send any vectors, but only in orders that the policy allows.
"""

import hashlib
from collections.abc import Iterator
from typing import Annotated, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from sedge_protocol.errors import PolicyError
from sedge_protocol.wire.extensions import needed_by_order
from sedge_protocol.wire.messages import MAX_POLICY_BYTES, Count, Id, Order, Round, Short, Task
from sedge_protocol.wire.refusals import (
    CUT_POLICY,
    OTHER_RUN,
    POLICY_BOUND,
    POLICY_BUNDLE,
    POLICY_ROUND,
    POLICY_TASK,
    POLICY_WORDS,
    UNREADABLE_POLICY,
)
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.work import Hash

KEY_ID_BYTES, SIGNATURE_BYTES, PUBLIC_BYTES = 8, 64, 32
HEAD_BYTES = KEY_ID_BYTES + SIGNATURE_BYTES
_STATEMENT_BYTES = HEAD_BYTES + PUBLIC_BYTES
MAX_CHAIN = 16
# The signed bytes begin with this prefix, so that a signature made for another purpose is not valid for a
# policy.
CONTEXT = b"sedge policy 1\n"
# A number in a policy. Its upper limit exceeds that of any training setting.
Bound: TypeAlias = Annotated[float, Meta(ge=0, le=1e9)]
# A key's id, its signature of another public key, and that other key (signing_keys.py).
Statement: TypeAlias = Annotated[
    bytes, Meta(min_length=_STATEMENT_BYTES, max_length=_STATEMENT_BYTES)
]


class Policy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The limits on what the orders of one run may ask for."""

    run: Id
    """The run whose orders the policy allows."""
    version: Annotated[int, Meta(ge=1, le=2**40)]
    """Increases with every policy of the run: a device refuses a version below the last one accepted."""
    bundles: Annotated[tuple[Hash, ...], Meta(min_length=1, max_length=64)]
    """The SHA-256 of the manifest (B1) of each bundle that an order may name."""
    last_round: Round
    """The last round for which the policy allows orders."""
    tasks: Annotated[tuple[Task, ...], Meta(min_length=1, max_length=2)]
    """The tasks that the policy allows."""
    local_epochs: Annotated[int, Meta(ge=1, le=10_000)]
    """The maximum number of passes over a device's examples, in an order's training phases together."""
    learning_rate: Bound
    """The largest learning rate that a step of any training phase may reach."""
    momentum: Bound = 0.0
    """The largest ``momentum`` of a training phase."""
    prox: Bound = 0.0
    """The largest ``prox`` of a training phase."""
    words: Annotated[tuple[Short, ...], Meta(max_length=32)] = ()
    """The words of the extensions that an order may use."""
    expires: Count = 0
    """The Unix time at which the policy expires; 0: never."""
    chain: Annotated[tuple[Statement, ...], Meta(max_length=MAX_CHAIN)] = ()
    """The statements that lead from earlier keys to the one that signed the policy (P8), oldest first."""

    @property
    def signed(self) -> bytes:
        """The bytes that the key signs."""
        return CONTEXT + msgspec.msgpack.encode(self)


class Sealed(NamedTuple):
    """A policy in its wire form: the id of its key, the signature, and the signed bytes."""

    key: bytes
    signature: bytes
    signed: bytes

    def bytes(self) -> bytes:
        """Return the policy as an order carries it.

        Raises ``PolicyError`` if it is too large for an order.
        """
        sealed = self.key + self.signature + self.signed.removeprefix(CONTEXT)
        if len(sealed) > MAX_POLICY_BYTES:
            raise PolicyError(
                f"a policy of {len(sealed)} bytes, expected at most {MAX_POLICY_BYTES}"
            )
        return sealed

    def policy(self) -> Policy:
        """Decode the policy, without verifying the signature.

        Raises ``PolicyError`` if it is unreadable.
        """
        try:
            return msgspec.msgpack.decode(self.signed.removeprefix(CONTEXT), type=Policy)
        except (ValueError, RecursionError) as exc:
            raise PolicyError(UNREADABLE_POLICY) from exc


def unsealed(data: bytes) -> Sealed:
    """Split a sealed policy into its parts. Raises ``PolicyError`` if it is truncated."""
    if len(data) <= HEAD_BYTES:
        raise PolicyError(CUT_POLICY.format(size=len(data), least=HEAD_BYTES))
    signature = data[KEY_ID_BYTES:HEAD_BYTES]
    return Sealed(data[:KEY_ID_BYTES], signature, CONTEXT + data[HEAD_BYTES:])


def key_id(public: bytes) -> bytes:
    """Return the 8 bytes that identify a public key of 32 bytes."""
    return hashlib.sha256(public).digest()[:KEY_ID_BYTES]


def trainings_of(order: Order) -> tuple[Training, ...]:
    """Return the settings of every training phase in an order. The first phase may have the defaults."""
    work = order.work
    own = () if work.own_model is None else (work.own_model.training,)
    return (order.training, *work.then, *own)


def require_allowed(policy: Policy, order: Order, bundle: bytes | None) -> None:
    """Raise ``PolicyError`` if the policy does not allow the order.

    ``bundle`` is the SHA-256 of the manifest of the order's bundle, or None if it is not known yet.
    """
    why = next(_beyond(policy, order), "")
    if not why and bundle is not None and bundle not in policy.bundles:
        why = POLICY_BUNDLE.format(digest=bundle.hex()[:16])
    if why:
        raise PolicyError(why)


def _beyond(policy: Policy, order: Order) -> Iterator[str]:
    """Yield the reasons why an order exceeds its policy, in words."""
    if policy.run != order.run:
        yield OTHER_RUN.format(run=policy.run)
    if order.round > policy.last_round:
        yield POLICY_ROUND.format(last=policy.last_round)
    if order.task not in policy.tasks:
        yield POLICY_TASK.format(task=order.task)
    if beyond := needed_by_order(order).difference(policy.words):
        yield POLICY_WORDS.format(words=", ".join(sorted(beyond)))
    trainings = trainings_of(order)
    epochs = sum(training.local_epochs for training in trainings)
    for name, value, most in (
        ("local_epochs", epochs, policy.local_epochs),
        ("learning_rate", max(map(largest_rate, trainings)), policy.learning_rate),
        ("momentum", max(training.momentum for training in trainings), policy.momentum),
        ("prox", max(training.prox for training in trainings), policy.prox),
    ):
        if value > most:
            yield POLICY_BOUND.format(name=name, value=value, most=most)


def largest_rate(training: Training) -> float:
    """Return an upper bound on the learning rates of all steps in a training phase."""
    return training.learning_rate * max(1.0, training.end_factor)
