"""The public keys that may sign policies, and statements that replace keys (policy.md, P8).

A replacement is final: a replaced key is never accepted again, so an older chain changes nothing. A key can
sign only its own replacement, so whoever steals one key cannot lock out another key that a device pins.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeAlias

from sedge_protocol.errors import PolicyError
from sedge_protocol.wire.policy import HEAD_BYTES, KEY_ID_BYTES, Sealed, key_id, unsealed
from sedge_protocol.wire.refusals import BAD_SIGNATURE, FOREIGN_KEY, REPLACED_KEY

# Returns True if the first argument, a signature of 64 bytes, is valid for the bytes in the second.
Verify: TypeAlias = Callable[[bytes, bytes], bool]
# Maps the id of each replaced key, in hex digits, to the public key (32 bytes) that replaces it.
Replaced: TypeAlias = Mapping[str, bytes]
# The number of replacements that a device remembers. It ignores any further ones.
MAX_REPLACED = 64
_CONTEXT = b"sedge key 1\n"


def replacement(new: bytes) -> bytes:
    """Return the bytes that a key signs so that ``new``, a public key of 32 bytes, replaces it."""
    return _CONTEXT + new


class SigningKeys(NamedTuple):
    """The functions that verify signatures of the pinned keys, by key id.

    ``verifier`` creates such a function for a public key.
    """

    keys: Mapping[bytes, Verify]
    verifier: Callable[[bytes], Verify]

    def after(self, replaced: Replaced) -> Mapping[bytes, Verify]:
        """Return the accepted keys: for each pinned key, the newest one that replaces it."""
        found: dict[bytes, Verify] = {}
        for pinned, verify in self.keys.items():
            line = _line(pinned, replaced)
            found[_newest(pinned, replaced)] = self.verifier(line[-1][1]) if line else verify
        return found

    def learned(self, replaced: Replaced, chain: Iterable[bytes]) -> dict[str, bytes]:
        """Add the valid statements of a chain to the replacements. Other statements are skipped.

        Returns only replacements that start from a pinned key.
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
        """Verify a sealed policy. Returns the replacements, including those in the policy's chain.

        Raises ``PolicyError`` unless the policy is signed by a key that is accepted after these
        replacements.
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
    """Format the ids of keys for people."""
    return ", ".join(sorted(key.hex() for key in keys))


def _chain(sealed: Sealed) -> tuple[bytes, ...]:
    """Return a policy's statements, or () if it cannot be decoded, which is reported later."""
    try:
        return sealed.policy().chain
    except PolicyError:
        return ()


def _line(name: bytes, replaced: Replaced) -> list[tuple[str, bytes]]:
    """Return the chain of replacements after a key: pairs of a replaced key's id and the new key."""
    found: list[tuple[str, bytes]] = []
    while (new := replaced.get(name.hex())) is not None:
        found.append((name.hex(), new))
        name = key_id(new)
    return found


def _newest(name: bytes, replaced: Replaced) -> bytes:
    """Return the id of the newest key that replaces a key, or the key's own id if it was not replaced."""
    line = _line(name, replaced)
    return key_id(line[-1][1]) if line else name
