"""The public keys whose policies count, and the statements by which one replaces another (policy.md, P8).

A replacement is final: a key that was replaced never counts again, so an older chain changes nothing. A
key can only replace itself, so whoever steals one cannot shut out another that a device pins.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from sedge_protocol.errors import PolicyError
from sedge_protocol.wire.policy import HEAD_BYTES, KEY_ID_BYTES, Sealed, key_id, unsealed
from sedge_protocol.wire.refusals import BAD_SIGNATURE, FOREIGN_KEY, REPLACED_KEY

# Whether a signature of 64 bytes, the first argument, is valid for the bytes in the second.
Verify: TypeAlias = Callable[[bytes, bytes], bool]
# The new public key (32 bytes) in the place of each replaced one, by the id of the latter in hex digits.
Replaced: TypeAlias = Mapping[str, bytes]
# The number of replacements that a device remembers; it learns no more.
MAX_REPLACED = 64
_CONTEXT = b"sedge key 1\n"


def replacement(new: bytes) -> bytes:
    """The bytes that a key signs for ``new``, a public key of 32 bytes, to take its place."""
    return _CONTEXT + new


class SigningKeys(NamedTuple):
    """Functions that verify signatures of pinned keys, by key id, and one that makes such a function."""

    keys: Mapping[bytes, Verify]
    verifier: Callable[[bytes], Verify]

    def after(self, replaced: Replaced) -> Mapping[bytes, Verify]:
        """The keys that count: the newest in the place of each pinned one."""
        found: dict[bytes, Verify] = {}
        for pinned, verify in self.keys.items():
            line = _line(pinned, replaced)
            found[_newest(pinned, replaced)] = self.verifier(line[-1][1]) if line else verify
        return found

    def learned(self, replaced: Replaced, chain: Iterable[bytes]) -> dict[str, bytes]:
        """The replacements that lead from a pinned key, with those that the statements of a chain add.

        Other statements are skipped.
        """
        found = {old: new for pinned in self.keys for old, new in _line(pinned, replaced)}
        for statement in chain:
            old, new = statement[:KEY_ID_BYTES], statement[HEAD_BYTES:]
            name, verify = key_id(new), self.after(found).get(old)
            if verify is None or name == old or name.hex() in found or len(found) >= MAX_REPLACED:
                continue
            if verify(statement[KEY_ID_BYTES:HEAD_BYTES], replacement(new)):
                found[old.hex()] = new
        return found

    def verified(self, policy: bytes, replaced: Replaced) -> dict[str, bytes]:
        """The replacements after a sealed policy, which a key signed that counts after them.

        Raises ``PolicyError`` for any other policy.
        """
        sealed = unsealed(policy)
        found = self.learned(replaced, _chain(sealed))
        keys, named = self.after(found), sealed.key.hex()
        newest = _newest(sealed.key, found)
        if newest in keys and newest != sealed.key:
            raise PolicyError(REPLACED_KEY.format(key=named, newest=newest.hex()))
        if newest not in keys:
            raise PolicyError(FOREIGN_KEY.format(key=named, keys=ids(keys)))
        if not keys[newest](sealed.signature, sealed.signed):
            raise PolicyError(BAD_SIGNATURE.format(key=named))
        return found


def ids(keys: Iterable[bytes]) -> str:
    """The ids of keys, for people."""
    return ", ".join(sorted(key.hex() for key in keys))


def _chain(sealed: Sealed) -> tuple[bytes, ...]:
    """The statements in a policy; none in one that cannot be read, which is refused later as such."""
    try:
        return sealed.policy().chain
    except PolicyError:
        return ()


def _line(name: bytes, replaced: Replaced) -> list[tuple[str, bytes]]:
    """The replacements that lead on from a key, in order: the id of the replaced one, and the new key."""
    found: list[tuple[str, bytes]] = []
    while (new := replaced.get(name.hex())) is not None:
        found.append((name.hex(), new))
        name = key_id(new)
    return found


def _newest(name: bytes, replaced: Replaced) -> bytes:
    """The id of the newest key in the place of one; its own if it was not replaced."""
    line = _line(name, replaced)
    return key_id(line[-1][1]) if line else name
