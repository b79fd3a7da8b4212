"""A second reader of what comes as a file or a text: bundles (B1 to B8) and join texts (E7)."""

import base64
import hashlib
import json
import re
import zlib
from typing import Any

import msgspec

ID = r"[a-z0-9][a-z0-9-]{0,47}"


class Broken(Exception):
    """The named rule is broken."""


def must(rule: bool, name: str) -> None:
    """Raise ``Broken`` unless the rule is kept."""
    if not rule:
        raise Broken(name)


def bundle(blob: bytes) -> int:
    """B1 to B8: n of a bundle's layout."""
    stream = zlib.decompressobj()
    body = stream.decompress(blob, 67108864)
    must(stream.eof and not stream.unused_data, "B1")
    found = msgspec.msgpack.decode(body)
    manifest = json.loads(found["manifest"])
    for key in (
        "format", "name", "layout", "batch_size", "input", "target", "num_classes",
        "uses_batch_statistics", "programs", "verification",
    ):  # fmt: skip
        must(key in manifest, "B5")
    must(manifest["format"] == 1, "B5")
    size = manifest["batch_size"]
    must(isinstance(size, int) and 1 <= size <= 65536, "batch_size")
    for row in (manifest["input"], manifest["target"]):
        must(row is None or row["dtype"] in ("float32", "int64"), "B5")
        must(row is None or len(row["shape"]) <= 32, "B5")
        must(row is None or all(1 <= extent <= 2**28 for extent in row["shape"]), "B5")
    must(manifest["num_classes"] >= 0, "B5")
    must(0 <= manifest.get("dropped", 0) < 1, "B5")
    must(manifest.get("metric", {}).get("better", "higher") in ("higher", "lower"), "metric")
    for program in manifest["programs"]:
        must(program["name"] in ("gradient", "evaluate", "predict"), "B5")
        must("/" not in program["file"] and program["file"] not in ("", ".", ".."), "B2")
        must(program["file"] in found["files"], "B2")
        must(hashlib.sha256(found["files"][program["file"]]).hexdigest() == program["sha256"], "B3")
    tensors = manifest["layout"]["tensors"]
    n = elements(tensors)
    if manifest.get("frozen") is not None:
        frozen(manifest["frozen"], {tensor["name"] for tensor in tensors})
    return n


def elements(tensors: list[dict[str, Any]]) -> int:
    """B6 and B7: the elements of a layout."""
    offset, names = 0, set[str]()
    must(len(tensors) <= 4096, "B6")
    for tensor in tensors:
        must(tensor["offset"] == offset, "B6")
        must(1 <= len(tensor["name"]) <= 256 and tensor["name"] not in names, "B6")
        names.add(tensor["name"])
        must(tensor.get("role", "parameter") in ("parameter", "statistic"), "B7")
        must(len(tensor["shape"]) <= 32, "B6")
        size = 1
        for extent in tensor["shape"]:
            must(extent >= 1, "B6")
            size *= extent
        offset += size
    must(offset <= 2**28, "B6")
    return offset


def frozen(described: dict[str, Any], taken: set[str]) -> None:
    """X14: what a bundle says of its frozen data."""
    tensors, blob = described["layout"]["tensors"], described["blob"]
    must(blob["size"] == 4 * elements(tensors), "X14")
    must(not taken & {tensor["name"] for tensor in tensors}, "X14")
    digests = base64.b64decode(blob["digests"], validate=True)
    must(len(digests) == 16 * -(-blob["size"] // blob["chunk_bytes"]), "6.1")


def joined(text: str) -> dict[str, str]:
    """E7: what a join text says."""
    text = text.strip()
    must(text.startswith("sedge:"), "E7")
    coded = text.removeprefix("sedge:")
    must(re.fullmatch(r"[A-Za-z0-9_-]*", coded) is not None, "E7")
    said = json.loads(base64.urlsafe_b64decode(coded + "=" * (-len(coded) % 4)))
    found = {key: said[key] for key in ("device", "fleet", "url", "secret")}
    found |= {key: said[key] for key in ("ca",) if key in said}
    must(all(isinstance(value, str) for value in found.values()), "E7")
    for key in ("device", "fleet"):
        must(re.fullmatch(ID, found[key]) is not None, "1.1")
    must(re.fullmatch(r"mqtts?://[^/:]+(:\d+)?", found["url"]) is not None, "E2")
    must(re.fullmatch(r"[0-9a-f]{64}", found["secret"]) is not None, "E1")
    return found
