"""What spec.json has of enrolment and keys: join texts, what a device that joins sends, chains of keys."""

import base64
import json
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tests.vectors.make_rounds import Events

from sedge_protocol.host.enrolment import Enrolment
from sedge_protocol.host.signing import verifiers
from sedge_protocol.wire.joining import (
    Agreement,
    certificate_key,
    fleet_key,
    key_name,
    private_key,
    public_key,
)
from sedge_protocol.wire.policy import key_id
from sedge_protocol.wire.signing_keys import replacement

# Of RFC 8032, section 7.1, test 3.
PUBLIC = "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025"
# A certificate authority whose key is lost.
AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBdzCCAR2gAwIBAgIUB64iB4U5hPaFAbvPUPGDVgW2gkQwCgYIKoZIzj0EAwIw
EDEOMAwGA1UEAwwFc2VkZ2UwIBcNMjYxMTI0MTU0OTQ5WhgPMjEyNjEwMzExNTQ5
NDlaMBAxDjAMBgNVBAMMBXNlZGdlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE
HKgIgxwrAVrc61je0lBGHr3jR48SCVNxM3UqhC1IcFgzkb+A8YxxlUDJUnhIvShF
Td9J/TynQ4XQWDnWN4BPUqNTMFEwHQYDVR0OBBYEFOgJhY+SGWw2jwUOrm+GQnqf
R879MB8GA1UdIwQYMBaAFOgJhY+SGWw2jwUOrm+GQnqfR879MA8GA1UdEwEB/wQF
MAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgLy5m0U9+7TTYQmi9TQZO/26Um/9VP+kg
UqolH/nkxvMCIQDDEjFLs7iRasudWx6768ilCHzLJJrHcWCuAHWk8zLV8g==
-----END CERTIFICATE-----
"""


def join_texts() -> Events:
    """E7: what a text says, or that it is refused."""
    said: dict[str, Any] = {
        "device": "phone-1", "fleet": "home", "url": "mqtt://192.168.1.10:1883",
        "secret": bytes(range(32)).hex(),
    }  # fmt: skip
    made = Enrolment(**said).join_text()

    def text(fields: dict[str, Any]) -> str:
        coded = base64.urlsafe_b64encode(json.dumps(fields, ensure_ascii=False).encode())
        return "sedge:" + coded.rstrip(b"=").decode()

    def without(key: str) -> dict[str, Any]:
        return {name: value for name, value in said.items() if name != key}

    more = {**said, "ca": "Zürich\n" + AUTHORITY, "url": "mqtts://broker.example"}
    cases: list[tuple[str, str, dict[str, Any] | None]] = [
        ("as it is printed", made, said),
        ("white space around it", f" \n{made}\r\n", said),
        ("keys in another order, and one that is unknown",
         text({"later": "Ä?>~", **dict(reversed(said.items()))}), said),
        ("a certificate and TLS", text(more), more),
        ("keys to pin", text({**said, "trust": [PUBLIC, "ab" * 32]}),
         {**said, "trust": [PUBLIC, "ab" * 32]}),
        ("a key that is none", text({**said, "trust": [PUBLIC[:-2]]}), None),
        ("a key outside of a list", text({**said, "trust": PUBLIC}), None),
        ("no sedge: before it", made.removeprefix("sedge:"), None),
        ("cut off", made[:-9], None),
        ("no base64url", "sedge:" + "/" * 40, None),
        ("no object", "sedge:" + base64.urlsafe_b64encode(b"[]").decode().rstrip("="), None),
        *((f"no {key}", text(without(key)), None) for key in said),
        ("an id of 48 characters", text({**said, "device": "0" + "x-" * 23 + "x"}),
         {**said, "device": "0" + "x-" * 23 + "x"}),
        *((f"the url {url}", text({**said, "url": url}), {**said, "url": url} if fine else None)
          for url, fine in (
              ("mqtt://broker:65535", True), ("mqtt://broker:65536", False), ("mqtt://broker:0", False),
              ("mqtt://me@broker", False), ("mqtt://broker/x", False), ("mqtt://broker?x", False),
          )),
        ("a key of 33 bytes", text({**said, "trust": [PUBLIC + "00"]}), None),
        ("a certificate that is no text", text({**more, "ca": 5}), None),
        ("Sedge: before it", "S" + made[1:], None),
        ("an id with a _", text({**said, "device": "pi_1"}), None),
        ("an id that is none", text({**said, "device": "Phone"}), None),
        ("an id that begins with -", text({**said, "device": "-a"}), None),
        ("a fleet of 49 characters", text({**said, "fleet": "x" * 49}), None),
        ("a url of another scheme", text({**said, "url": "http://broker"}), None),
        ("a secret of 31 bytes", text({**said, "secret": bytes(31).hex()}), None),
        ("a secret that is no hex", text({**said, "secret": "g" * 64}), None),
        ("a secret that is no text", text({**said, "secret": 5}), None),
    ]  # fmt: skip
    return [{"name": name, "text": one, "says": says} for name, one, says in cases]


def chains() -> Events:
    """P8: the keys that count after a chain of statements."""
    keys = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(4)]
    public = [key.public_key().public_bytes_raw() for key in keys]

    def says(old: int, new: int, signer: int | None = None) -> bytes:
        signature = keys[old if signer is None else signer].sign(replacement(public[new]))
        return key_id(public[old]) + signature + public[new]

    changed = says(0, 1)[:-1] + bytes([says(0, 1)[-1] ^ 1])
    cases: list[tuple[str, list[int], list[bytes]]] = [
        ("none", [0, 1], []),
        ("two replacements", [0], [says(0, 1), says(1, 2)]),
        ("in the wrong order", [0], [says(1, 2), says(0, 1)]),
        ("the first before the pinned key", [1], [says(0, 1), says(1, 2)]),
        ("one of two pinned keys by the other", [0, 1], [says(0, 1)]),
        ("two for one key: the first counts", [0], [says(0, 1), says(0, 2), says(1, 3)]),
        ("back to a key that was replaced", [0], [says(0, 1), says(1, 0)]),
        ("a key by itself", [0], [says(0, 0)]),
        ("by a foreign key", [0], [says(0, 1, signer=2)]),
        ("of another key than was signed", [0], [changed]),
    ]
    made: Events = []
    for name, pins, chain in cases:
        trust = verifiers(public[pin].hex() for pin in pins)
        counting = sorted(key.hex() for key in trust.after(trust.learned({}, chain)))
        made.append({
            "name": name, "pins": [public[pin].hex() for pin in pins],
            "chain": [one.hex() for one in chain], "count": counting,
        })  # fmt: skip
    return made


def joins() -> Events:
    """E9 and E10: what a device with this seed of its key sends, and gets.

    The last one renews its secret (E14): its id is in the place of a token. ``certificate`` is E18's key.
    """
    found: Events = []
    for number, (fleet, token, name) in enumerate(
        (
            ("home", "join-00a1", "pi-1"),
            ("f", "join-x", "phone"),
            ("home", "join-00a1", "a" * 48),
            ("home", "pi-1", "pi-1"),
        )
    ):
        seed, private = bytes([number]) * 32, fleet_key(bytes([255 - number]) * 32)
        own = private_key(seed)
        point, other = public_key(own), public_key(private)
        agreed = Agreement.of(own, other, point, fleet, token)
        found.append({
            "fleet": fleet, "token": token, "device": name, "private": f"{own:064x}",
            "coordinator": other.hex(), "point": point.hex(), "of": key_name(point).hex(),
            "secret": agreed.secret.hex(), "asks": agreed.asks(name).hex(),
            "answers": agreed.answers(name).hex(),
            "certificate": f"{certificate_key(agreed.secret):064x}",
        })  # fmt: skip
    return found
