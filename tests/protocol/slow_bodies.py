"""A second reader of section 5: the bodies of control frames, by tables in the words of the page."""

import math
import re
from typing import Any

import msgspec

NIL = msgspec.Raw(b"\xc0")
# Key: type and limit; a key that ends in ? has a default.
HELLO = {
    "nonce": "bytes 16 16", "version": "text 64", "backends?": "list 16 text 64",
    "compressions?": "list 16 text 64", "codecs?": "list 16 text 64", "num_train?": "count",
    "num_test?": "count", "memory_mb?": "count", "versions?": "some 16 integer 1 255",
    "waits?": "text 1000", "holds?": "nil list 16 id",
}  # fmt: skip
WELCOME = {"nonce": "bytes 16 16", "version": "text 64", "versions?": "some 16 integer 1 255"}
TRAINING = {
    "local_epochs?": "integer 1 1000", "learning_rate?": "above 0 1000", "momentum?": "below 0 1",
    "prox?": "number 0 1e6", "last_batch?": "one pad fill drop", "freeze?": "list 4096 text 256",
    "optimizer?": "one sgd adam adamw", "nesterov?": "bool", "beta1?": "below 0 1",
    "beta2?": "below 0 1", "epsilon?": "above 0 1", "weight_decay?": "number 0 1000",
    "clip_norm?": "number 0 1e9", "optimizer_state?": "one reset keep",
}  # fmt: skip
CODEC = {
    "values?": "one fp32 fp16 bf16 int8 int4 sign", "fraction?": "above 0 1",
    "threshold?": "number 0 1e6", "compression?": "one zstd zlib none", "error_feedback?": "bool",
}  # fmt: skip
OWN_MODEL = {"training?": "map TRAINING", "mix?": "number 0 1", "adaptive?": "bool"}
SELECT = {
    "fraction?": "above 0 1", "gradient?": "one last delta", "hessian?": "bool",
    "cutoff?": "number 0 1", "half?": "bool",
}  # fmt: skip
SCORING = {
    "quantile": "number 0 1", "score?": "one squared product gradient fisher",
    "norm?": "one none global layer", "tensors?": "list 4096 text 256",
}  # fmt: skip
CHOICE = {
    "holdout": "inside 0 1",
    "seed?": "integer 0 9223372036854775807",
}
WORK = {
    "keep?": "list 4096 text 256", "upload?": "bool", "training?": "nil map TRAINING",
    "then?": "list 8 map TRAINING", "own_model?": "nil map OWN_MODEL", "select?": "nil map SELECT",
    "scoring?": "nil map SCORING", "choice?": "nil map CHOICE", "remember?": "bool",
}  # fmt: skip
MANIFEST = {
    "sha256": "bytes 32 32", "size": "integer 1 1073741824", "chunk_bytes": "integer 4096 262144",
    "digests": "bytes 16 65536",
}  # fmt: skip
STEP = {"base_hash": "bytes 32 32", "blob": "map MANIFEST"}
ORDER = {
    "run": "id", "round": "round", "task": "one train evaluate", "bundle": "map MANIFEST",
    "model": "map MANIFEST", "model_hash": "bytes 32 32", "steps?": "list 32 map STEP",
    "patch?": "bytes 0 32768", "patch_blob?": "nil map MANIFEST", "patch_hash?": "bytes 0 32",
    "patch_context?": "nil map MANIFEST", "correction?": "nil map MANIFEST", "work?": "map WORK",
    "codec?": "map CODEC", "context?": "bytes 0 32", "seed?": "integer 0 9223372036854775807",
}  # fmt: skip
CANCEL = {"run": "id", "round": "count", "reason": "text 1000"}
GOODBYE = {"nonce": "bytes 16 16"}
OFFER = {
    "run": "id", "round": "round", "manifest": "map MANIFEST", "number": "count", "data?": "bytes 0 32768",
}  # fmt: skip
HAVE = {"number": "count", "bitmap": "bytes 0 512", "credit": "integer 1 64"}
COMMITTED = {"run": "id", "round": "round", "sha256": "bytes 32 32", "late?": "bool"}
REJECT = {
    "run": "id", "round": "round", "sha256": "bytes 32 32", "reason": "text 64", "detail?": "text 1000",
}  # fmt: skip
BUSY = {"retry_ms": "count", "reason?": "text 64"}
GET = {"run": "id", "round": "round", "missing": "bytes 0 512"}
DECLINE = {"run": "id", "round": "round", "reason": "text 64", "detail?": "text 1000"}
REFUSED = {"reason": "text 64", "detail?": "text 1000"}
KINDS = {
    1: HELLO, 2: WELCOME, 3: ORDER, 4: CANCEL, 5: GOODBYE, 6: OFFER, 7: HAVE, 9: COMMITTED, 10: REJECT,
    11: BUSY, 12: GET, 13: DECLINE, 14: REFUSED,
}  # fmt: skip
NAMED = {
    "TRAINING": TRAINING, "OWN_MODEL": OWN_MODEL, "SELECT": SELECT, "SCORING": SCORING, "CHOICE": CHOICE,
    "WORK": WORK, "CODEC": CODEC, "MANIFEST": MANIFEST, "STEP": STEP,
}  # fmt: skip


class Broken(Exception):
    """A value is not what its table says."""


def must(rule: bool, name: str) -> None:
    """Raise ``Broken`` unless the rule is kept."""
    if not rule:
        raise Broken(name)


def body(kind: int, data: bytes) -> dict[str, Any]:
    """5.1: the map of a body; msgspec refuses what is behind it, and text that is read and not UTF-8."""
    return table(data, KINDS[kind])


def table(raw: bytes | msgspec.Raw, keys: dict[str, str]) -> dict[str, Any]:
    """A map whose known keys have the types of a table; the others are ignored."""
    found = msgspec.msgpack.decode(raw, type=dict[str, msgspec.Raw])
    known: dict[str, Any] = {}
    for key, kind in keys.items():
        name = key.rstrip("?")
        if name in found:
            known[name] = value(found[name], kind.split())
        else:
            must(key.endswith("?"), f"{name} is missing")
    if keys is MANIFEST:
        size, chunk = known["size"], known["chunk_bytes"]
        must(chunk & (chunk - 1) == 0, "a power of two")
        must(len(known["digests"]) == 16 * -(-size // chunk), "digests")
    return known


def value(raw: msgspec.Raw, kind: list[str]) -> Any:
    """One value of a table."""
    name, *rest = kind
    if name == "nil":
        return None if raw == NIL else value(raw, rest)
    if name == "map":
        return table(raw, NAMED[rest[0]])
    if name in ("list", "some"):
        items = msgspec.msgpack.decode(raw, type=list[msgspec.Raw])
        must(len(items) <= int(rest[0]), "list")
        must(name == "list" or len(items) > 0, "some")
        return [value(item, rest[1:]) for item in items]
    found = msgspec.msgpack.decode(raw)
    plain(found, name, rest)
    return found


def plain(found: Any, name: str, rest: list[str]) -> None:
    """A value that holds no others."""
    if name == "bytes":
        must(isinstance(found, bytes) and int(rest[0]) <= len(found) <= int(rest[1]), "bytes")
    elif name == "text":
        must(isinstance(found, str) and len(found) <= int(rest[0]), "text")
    elif name == "id":
        must(isinstance(found, str), "id")
        must(re.fullmatch(r"[a-z0-9][a-z0-9-]{0,47}", found) is not None, "id")
    elif name == "one":
        must(found in rest, "enumeration")
    elif name == "bool":
        must(isinstance(found, bool), "bool")
    elif name in ("integer", "count", "round"):
        low, high = {"count": (0, 2**40), "round": (1, 2**31)}.get(name) or map(int, rest)
        must(isinstance(found, int) and not isinstance(found, bool), "integer")
        must(low <= found <= high, "integer")
    else:
        number(found, name, float(rest[0]), float(rest[1]))


def number(found: Any, name: str, low: float, high: float) -> None:
    """A number within limits, one of which may be excluded."""
    must(isinstance(found, int | float) and not isinstance(found, bool), "number")
    must(math.isfinite(found), "finite")
    must(low < found if name in ("above", "inside") else low <= found, "number")
    must(found < high if name in ("below", "inside") else found <= high, "number")
