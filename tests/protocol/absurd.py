"""What a hostile peer sends: sound frames and MessagePack with absurd values, and damaged bytes."""

import copy
import random
from collections.abc import Iterator
from typing import cast

import msgspec

from sedge_protocol.wire.frame import MAX_BODY_BYTES, NO_TRANSFER, Frame, Kind, seal
from sedge_protocol.wire.messages import KINDS, Message, encode_body

Plain = dict[object, object]
# Numbers around every limit, text that no log or path should meet, values of other types, and bytes that
# are not UTF-8 or nest deeper than a stack.
ABSURD: tuple[object, ...] = (
    *(0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**40, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, -0.0, 5e-324, 0.5, -0.5, 3.4028234663852886e38, 1.7976931348623157e308, -1e308),
    *(float("inf"), float("-inf"), float("nan")),
    *("", "a", "run", "../x", "a\nb", "\0", "\x1b[2J", "\u202e", "x" * 70_000),
    *(b"", bytes(16), b"\xff" * 32, b"x" * 512, b"x" * 33_000),
    *(None, True, False, [], [[]], {}, {"a": {"b": 1}}),
    *(msgspec.Raw(b"\xa3\xed\xa0\x80"), msgspec.Raw(b"\x91" * 3000)),
)
EXTREMES = [bytes([value]) * width for value in (0x00, 0x7F, 0x80, 0xFF) for width in (1, 2, 4, 8)]


def warped(record: msgspec.Struct, rng: random.Random) -> bytes:
    """A record's MessagePack with one to four of its values replaced or left out."""
    found = cast(Plain, msgspec.msgpack.decode(msgspec.msgpack.encode(record)))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        places = list(_places(found))
        if not places:
            break
        holder, key = rng.choice(places)
        if isinstance(holder, dict) and rng.random() < 0.1:
            del holder[key]
        else:
            holder[cast(int, key)] = copy.deepcopy(rng.choice(ABSURD))
    return msgspec.msgpack.encode(found)


def warped_frame(
    message: Message, rng: random.Random, topic: str, key: bytes, incarnation: int, seq: int
) -> bytes:
    """A sealed frame of a warped message, now and then with a changed byte or of another kind."""
    body = bytearray(warped(message, rng) if rng.random() < 0.8 else encode_body(message))
    if rng.random() < 0.1:
        body[rng.randrange(len(body))] = rng.randrange(256)
    kind = KINDS[type(message)] if rng.random() < 0.9 else rng.choice(list(Kind))
    manifest = getattr(message, "manifest", None)
    transfer = rng.choice([NO_TRANSFER, getattr(manifest, "transfer", NO_TRANSFER)])
    return seal(Frame(kind, bytes(body[:MAX_BODY_BYTES]), incarnation, seq, transfer), topic, key)


def damaged(rng: random.Random, corpus: list[bytes]) -> bytes:
    """A good one, changed in a few places."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 4, 8))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + rng.randrange(9)] = rng.choice(EXTREMES)
            case 2:
                data[at:at] = rng.randbytes(rng.randrange(1, 9))
            case 3:
                del data[at : at + rng.randrange(1, 65)]
            case 4:
                other = rng.choice(corpus)
                data[at:] = other[rng.randrange(len(other)) :]
            case _:
                del data[at:]
    return bytes(data)


def _places(record: object) -> Iterator[tuple[Plain | list[object], object]]:
    """Every value in a record, as what holds it and its key or index."""
    if not isinstance(record, dict | list):
        return
    holder = cast(Plain | list[object], record)
    keys: list[object] = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    for key in keys:
        yield holder, key
        yield from _places(holder[cast(int, key)])
