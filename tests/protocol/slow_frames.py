"""A second reader of frames, keys, manifests, bitmaps and layouts, written from WIRE.md rule by rule."""

import hashlib
import hmac

import msgspec


class Broken(Exception):
    """The bytes break the named rule."""


def must(rule: bool, name: str) -> None:
    """Raise ``Broken`` unless the rule is kept."""
    if not rule:
        raise Broken(name)


def number(data: bytes) -> int:
    """An integer of a header."""
    return int.from_bytes(data, "little")


def hint(fleet: str, device: str) -> str:
    """1.1, 1.10: the topic of a device's shard."""
    first = hashlib.sha256(device.encode()).digest()[0]
    return f"sedge/1/{fleet}/shard/{first % 64:02x}"


def derived(secret: bytes, purpose: str) -> bytes:
    """2.1: a key."""
    middle = hmac.digest(bytes(32), secret, "sha256")
    return hmac.digest(middle, b"sedge/1 " + purpose.encode() + b"\x01", "sha256")


def opened(data: bytes, topic: str, key: bytes | None) -> tuple[int, int, int, bytes, int, bytes]:
    """3.3: kind, incarnation, seq, transfer, index and body."""
    must(len(data) >= 64, "64 bytes")
    must(data[:2] == b"SG", "magic")
    must(data[2] == (1 if data[3] in (1, 2, 5, 8, 14) else 2), "version")
    head_len, body_len = number(data[6:8]), number(data[36:40])
    must(body_len <= 262144, "limit")
    must(head_len >= 64 and head_len + body_len == len(data), "lengths")
    if key is None:
        must(number(data[4:6]) & 1 == 1 and data[3] == 8, "an UNKEYED CHUNK")
    else:
        mac = hmac.digest(key, topic.encode() + data[:48] + data[64:], "sha256")
        must(data[48:64] == mac[:16], "MAC")
    must(1 <= data[3] <= 14, "kind")
    return (
        data[3],
        number(data[8:12]),
        number(data[12:16]),
        data[16:32],
        number(data[32:36]),
        data[head_len:],
    )


def held(bitmap: bytes, count: int) -> set[int]:
    """5.20: the set bits."""
    must(len(bitmap) == (count + 7) // 8, "bytes")
    ones = {i for i in range(8 * len(bitmap)) if bitmap[i // 8] >> i % 8 & 1}
    must(max(ones, default=0) < count, "bits past the last chunk")
    return ones


def transfer_id(packed: bytes) -> bytes:
    """6.1, 6.2: a manifest's transfer id."""
    found = msgspec.msgpack.decode(packed)
    size, chunk = found["size"], found["chunk_bytes"]
    must(len(found["sha256"]) == 32, "hash")
    must(1 <= size <= 2**30, "size")
    must(4096 <= chunk <= 262144, "chunk_bytes")
    must(chunk & chunk - 1 == 0, "a power of two")
    must(len(found["digests"]) == 16 * -(-size // chunk), "digests")
    keys = ("sha256", "size", "chunk_bytes", "digests")
    again = msgspec.msgpack.encode({key: found[key] for key in keys})
    return hashlib.sha256(again).digest()[:16]


def digests(blob: bytes, chunk: int) -> bytes:
    """5.26: 16 bytes for each chunk."""
    parts = (blob[i : i + chunk] for i in range(0, len(blob), chunk))
    return b"".join(hashlib.sha256(part).digest()[:16] for part in parts)


def layout_hash(tensors: list[list[object]]) -> bytes:
    """B8: the hash of a layout."""
    return hashlib.sha256(msgspec.msgpack.encode(tensors)).digest()


def update(blob: bytes) -> tuple[object, bytes]:
    """9: report and payload."""
    length = number(blob[:4])
    must(length <= 4096, "report")
    return msgspec.msgpack.decode(blob[4 : 4 + length]), blob[4 + length :]


def accepted(frames: list[list[int]]) -> list[bool]:
    """3.6: the verdicts on control frames (incarnation, seq)."""
    newest, seen = 0, set[int]()
    verdicts: list[bool] = []
    for incarnation, seq in frames:
        if incarnation > newest:
            newest, seen = incarnation, set[int]()
        good = incarnation == newest and seq > max(seen, default=0) - 64 and seq not in seen
        verdicts.append(good)
        seen |= {seq} if good else set[int]()
    return verdicts
