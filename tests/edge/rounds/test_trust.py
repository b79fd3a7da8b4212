"""A device that pins a key takes what the key has signed for, and nothing else.

The attacks are those of TUF's specification (section 1.5.2), as far as an order has them.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.edge.harness import ONE_STEP, Harness, MakeDevice, make_bundle

from sedge_edge.rounds.taken_policies import MAX_POLICIES, TakenPolicy, remembered
from sedge_protocol.codec import ValueCoding
from sedge_protocol.host.signing import public_hex, sign
from sedge_protocol.wire.bundle import MAX_BUNDLE_BYTES, unpack
from sedge_protocol.wire.messages import Decline, Order
from sedge_protocol.wire.policy import HEAD_BYTES, Policy
from sedge_protocol.wire.signing_keys import replacement
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.work import Codec, Work

pytestmark = pytest.mark.both_cores

KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
NEW_KEY = Ed25519PrivateKey.from_private_bytes(b"b" * 32)
FOREIGN = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
NEWEST = Ed25519PrivateKey.from_private_bytes(b"d" * 32)
POLICY = Policy(
    run="run",
    version=3,
    bundles=(unpack(make_bundle()).manifest_hash,),
    last_round=9,
    tasks=("train",),
    local_epochs=2,
    learning_rate=1.0,
    momentum=0.5,
    prox=0.25,
)


def policy(**changes: Any) -> Policy:
    """A policy that allows the harness's orders, but for some keys."""
    return msgspec.structs.replace(POLICY, **changes)


def name(key: Ed25519PrivateKey) -> str:
    return hashlib.sha256(bytes.fromhex(public_hex(key))).digest()[:8].hex()


def signed(number: int = 1, key: Ed25519PrivateKey = KEY, **changes: Any) -> Callable[..., Order]:
    """Makes an order of a round with a policy, some of whose keys are changed."""

    def make(device: Harness, **others: Any) -> Order:
        return device.order(number, policy=sign(policy(**changes), key), **others)

    return make


@pytest.fixture
def device(make_device: MakeDevice, tmp_path: Path) -> Harness:
    """A device that pins ``KEY``, connected."""
    return pinning(make_device(tmp_path), KEY)


def pinning(device: Harness, *keys: Ed25519PrivateKey, incarnation: int = 1) -> Harness:
    """The device, started anew with these keys pinned."""
    device.pinned = tuple(map(public_hex, keys))
    device.agent = device.start(incarnation)
    device.pump(device.connect())
    return device


def training(**changes: Any) -> Work:
    return Work(training=msgspec.structs.replace(ONE_STEP, **changes))


def flipped(sealed: bytes, at: int) -> bytes:
    return sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :]


def tampered(device: Harness) -> Order:
    """A policy that allows 9 passes, under the signature of one that allows 2."""
    sealed = sign(POLICY, KEY)[:HEAD_BYTES] + msgspec.msgpack.encode(policy(local_epochs=9))
    return device.order(1, policy=sealed, work=training(local_epochs=9))


def other_run(device: Harness) -> Order:
    """The policy of another run, which allows more."""
    return signed(run="other", local_epochs=9)(device, work=training(local_epochs=9))


def over_all(device: Harness) -> Order:
    """Two trainings of two passes each."""
    work = Work(training=ONE_STEP, then=(msgspec.structs.replace(ONE_STEP, local_epochs=2),))
    return signed(words=("phases",))(device, work=work)


Make = Callable[[Harness], Order]
REFUSED: dict[str, tuple[Make, str]] = {
    "nothing signed": (lambda d: d.order(1), "no signed policy, expected one signed by a key"),
    "a signature that is cut off": (
        lambda d: d.order(1, policy=sign(POLICY, KEY)[:HEAD_BYTES]),
        f"a policy of {HEAD_BYTES} bytes",
    ),
    "a foreign key": (
        signed(key=FOREIGN),
        f"signed by the key {name(FOREIGN)}, but this device trusts {name(KEY)}",
    ),
    "a foreign key that names a pinned one": (
        lambda d: d.order(1, policy=sign(POLICY, KEY)[:8] + sign(POLICY, FOREIGN)[8:]),
        "does not match its signature",
    ),
    "a changed signature": (
        lambda d: d.order(1, policy=flipped(sign(POLICY, KEY), 20)),
        "does not match its signature",
    ),
    "a changed policy": (tampered, "does not match its signature"),
    "mix and match: the policy of another run": (other_run, "is for run other"),
    "a round after the last": (signed(10), "ends with round 9"),
    "a task": (lambda d: signed()(d, task="evaluate"), "the task evaluate"),
    "an optimizer": (lambda d: signed()(d, work=training(optimizer="adam")), "allow optimizer"),
    "a coding": (lambda d: signed()(d, codec=Codec(values=ValueCoding.SIGN)), "allow sign"),
    "a rate": (
        lambda d: signed()(d, work=training(learning_rate=1.5)),
        "learning_rate 1.5, but its policy allows 1.0",
    ),
    "a rate that grows": (
        lambda d: signed(words=("schedule",))(d, work=training(end_factor=3.5)),
        "learning_rate 3.5, but its policy allows 1.0",
    ),
    "passes": (
        lambda d: signed()(d, work=training(local_epochs=3)),
        "local_epochs 3, but its policy allows 2",
    ),
    "passes of all trainings": (over_all, "local_epochs 3, but its policy allows 2"),
    "momentum": (
        lambda d: signed()(d, work=training(momentum=0.75)),
        "momentum 0.75, but its policy allows 0.5",
    ),
    "prox": (
        lambda d: signed()(d, work=training(prox=0.5)),
        "prox 0.5, but its policy allows 0.25",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_order_that_no_policy_allows_is_declined_before_anything_is_fetched(
    device: Harness, case: str
) -> None:
    make, why = REFUSED[case]
    (decline,) = device.messages(device.tell(make(device)))
    assert isinstance(decline, Decline) and decline.reason == "PolicyError"
    assert why in decline.detail and not device.on_disk().orders
    assert not device.on_disk().policies, "a policy that was refused left a version behind"
    device.give(signed()(device))
    assert device.updates.keys() == {("run", 1)}


def test_an_order_that_its_policy_allows_is_done(device: Harness) -> None:
    work = training(momentum=0.5, prox=0.25, local_epochs=2, last_batch="fill")
    device.give(signed(9)(device, work=work))
    assert device.updates.keys() == {("run", 9)} and not device.declines


def test_without_pinned_keys_no_signature_is_asked_for(device: Harness) -> None:
    pinning(device)
    device.give(signed(key=FOREIGN, last_round=1)(device, work=training(learning_rate=5.0)))
    device.give(device.order(2))
    assert device.updates.keys() == {("run", 1), ("run", 2)}


def test_rollback_an_older_version_is_refused_also_after_a_restart(device: Harness) -> None:
    device.give(signed()(device))
    pinning(device, KEY, incarnation=2)
    device.give(signed(2, version=2)(device))
    assert device.declines[-1].detail == (
        "its policy has version 2, but this device has already accepted version 3"
    )
    device.give(signed(2, run="another", version=1)(device, run="another"))
    device.give(signed(3, version=4)(device))
    assert device.updates.keys() == {("run", 1), ("another", 2), ("run", 3)}


def test_fast_forward_ends_with_the_stolen_key(device: Harness) -> None:
    """Whoever signs the highest version shuts the owner out only for as long as its key is pinned."""
    device.give(signed(version=2**40)(device))
    device.give(signed(2, version=4)(device))
    assert [decline.reason for decline in device.declines] == ["PolicyError"]
    pinning(device, NEW_KEY)
    device.give(signed(2, key=NEW_KEY, version=1)(device))
    assert device.updates.keys() == {("run", 1), ("run", 2)}


def test_rotation_both_keys_count_while_both_are_pinned_and_the_old_one_is_named_after(
    device: Harness,
) -> None:
    pinning(device, KEY, NEW_KEY)
    device.give(signed()(device))
    device.give(signed(2, key=NEW_KEY, version=4)(device))
    pinning(device, NEW_KEY)
    device.give(signed(3, version=5)(device))
    assert device.declines[-1].detail == (
        f"its policy is signed by the key {name(KEY)}, but this device trusts {name(NEW_KEY)}"
    )
    assert device.updates.keys() == {("run", 1), ("run", 2)}


def replacing(old: Ed25519PrivateKey, new: Ed25519PrivateKey) -> bytes:
    """A statement by which one key puts another in its place."""
    public = bytes.fromhex(public_hex(new))
    return bytes.fromhex(name(old)) + old.sign(replacement(public)) + public


FIRST, SECOND = replacing(KEY, NEW_KEY), replacing(NEW_KEY, NEWEST)


def test_a_device_that_was_away_for_two_replacements_follows_the_chain_and_keeps_to_it(
    device: Harness,
) -> None:
    """Also after a restart, for other runs, against a shorter chain and against replaced keys."""
    back = replacing(NEWEST, KEY)  # by which a replaced key would count again
    device.give(signed(key=NEWEST, version=1, chain=(FIRST, SECOND, back))(device))
    pinning(device, KEY, incarnation=2)
    for key, chain in ((KEY, ()), (NEW_KEY, (FIRST,)), (KEY, (SECOND, FIRST))):
        device.give(signed(2, key, run="another", chain=chain)(device, run="another"))
        assert device.declines[-1].detail == (
            f"its policy is signed by the key {name(key)}, which this fleet has replaced by "
            f"{name(NEWEST)}"
        )
    device.give(signed(3, NEWEST, run="another")(device, run="another"))
    assert device.updates.keys() == {("run", 1), ("another", 3)}
    assert device.on_disk().replaced.keys() == {name(KEY), name(NEW_KEY)}
    pinning(device, FOREIGN)  # which the replacements do not lead from
    device.give(signed(4, NEWEST)(device))
    device.give(signed(5, FOREIGN)(device))
    assert device.declines[-1].detail == (
        f"its policy is signed by the key {name(NEWEST)}, but this device trusts {name(FOREIGN)}"
    )
    assert ("run", 5) in device.updates and not device.on_disk().replaced


@pytest.mark.parametrize(
    "chain",
    [
        (replacing(FOREIGN, NEW_KEY),),
        (FIRST[:8] + replacing(FOREIGN, NEW_KEY)[8:],),
        (flipped(FIRST, 20),),
        (replacing(KEY, KEY),),
    ],
    ids=["a foreign key's", "in a pinned key's name", "changed", "itself"],
)
def test_a_statement_that_no_counting_key_made_of_another_changes_nothing(
    device: Harness, chain: tuple[bytes, ...]
) -> None:
    device.give(signed(key=NEW_KEY, chain=chain)(device))
    assert device.declines[-1].detail == (
        f"its policy is signed by the key {name(NEW_KEY)}, but this device trusts {name(KEY)}"
    )
    device.give(signed(2, chain=chain)(device))
    assert device.updates.keys() == {("run", 2)} and not device.on_disk().replaced


def test_the_policies_of_the_last_runs_are_remembered() -> None:
    taken: dict[str, TakenPolicy] = {}
    for number in range(MAX_POLICIES + 1):
        taken = remembered(taken, f"run-{number}", TakenPolicy(number, b"key"))
    again = remembered(taken, "run-1", TakenPolicy(99, b"key"))
    assert [*again] == [*(f"run-{number}" for number in range(2, MAX_POLICIES + 1)), "run-1"]
    assert [again[run].version for run in ("run-2", "run-1")] == [2, 99]
    assert remembered(again, "run-3", None) == again


def test_freeze_an_expired_policy_is_refused_by_the_latest_time_that_the_device_knows(
    device: Harness,
) -> None:
    """A device without a battery starts in 1970; its start count does not go back."""
    device.give(signed(expires=1_700_000_000)(device))
    pinning(device, KEY, incarnation=1_700_000_005)
    pinning(device, KEY, incarnation=1)
    device.give(signed(2, expires=1_700_000_000)(device))
    (decline,) = device.declines
    assert decline.detail == "its policy expired 6 s ago, by this device's clock"
    assert device.updates.keys() == {("run", 1)}


def test_wrong_hash_a_bundle_that_was_not_signed_is_declined_before_the_model_is_fetched(
    device: Harness,
) -> None:
    other = device.serve(make_bundle(5))
    order = signed()(device, bundle=other)
    device.pump(device.tell(order))
    assert "is not in its policy" in device.declines[-1].detail
    assert not device.on_disk().orders and not device.updates
    device.give(signed(2)(device))
    (decline,) = device.messages(device.tell(signed(3)(device, bundle=other)))  # which is here now
    assert isinstance(decline, Decline) and decline.reason == "PolicyError"


def test_an_order_from_before_the_key_was_pinned_is_not_begun(device: Harness) -> None:
    pinning(device)
    device.tell(device.order(1))
    assert device.on_disk().orders.keys() == {"run"}
    pinning(device, KEY)
    device.settle()
    assert [decline.reason for decline in device.declines] == ["PolicyError"]
    assert not device.updates and not device.on_disk().orders


def test_oversized_is_refused_by_its_length(device: Harness) -> None:
    """A policy above its limit is no body; a bundle above its own is declined, whatever is signed."""
    sealed = sign(POLICY, KEY)
    effects = device.tell(device.order(1, policy=sealed + bytes(4097 - len(sealed))))
    (decline,) = device.messages(effects)
    assert isinstance(decline, Decline) and decline.reason == "BodyError"
    size = MAX_BUNDLE_BYTES + 1
    large = Manifest(bytes(32), size, 262144, bytes(16 * -(-size // 262144)))
    effects = device.tell(signed()(device, bundle=large))
    (decline,) = device.messages(effects)
    assert isinstance(decline, Decline) and decline.reason == "CodecError"
