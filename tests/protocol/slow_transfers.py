"""A second reader of WIRE.md's state machines and choices: versions, transfers, needs, verdicts."""

import hashlib
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
from tests.protocol.slow_decoder import decode_slowly
from tests.protocol.slow_training import binary32, floats

Case = dict[str, Any]


class Broken(Exception):
    """The named rule is broken."""


def agreed(device: list[int], coordinator: list[int]) -> tuple[int, int | None]:
    """3.4: the version that a device speaks at first, and after the WELCOME."""
    return min(device), max({*device} & {*coordinator}, default=None)


def taken(frames: list[list[Any]]) -> Iterator[bool]:
    """3.6 and 3.8: whether each frame of the coordinator is taken."""
    newest, seen, awaits = 0, set[int](), True
    for kind, incarnation, seq, about in frames:
        proof = kind == "WELCOME" and about == "awaited"
        if incarnation > newest or (incarnation < newest and proof and awaits):
            newest, seen = incarnation, set[int]()
        fresh = incarnation == newest and seq > max(seen, default=0) - 64 and seq not in seen
        seen |= {seq} if fresh else set[int]()
        awaits = awaits and not (fresh and proof)
        yield fresh and about != "bad"


def memory_mb(case: Case) -> int:
    """10.2: the memory that a step takes; 0 where it is not known."""
    if {"torch", "function"} & {*case["backends"]}:
        return 0
    sizes = [size for name, backend, size in case["programs"]
             if name == "gradient" and backend in case["backends"]]  # fmt: skip
    least = min(sizes, default=0)
    return -(-(64 * 10**6 + case["frozen_bytes"] + least) // 10**6) if least else 0


def stepped(base: str, step: str) -> bytes:
    """5.14: the version that a step leads to."""
    model = floats(base)
    positions, values = decode_slowly(bytes.fromhex(step), len(model))
    for p, value in zip(positions, values, strict=True):
        model[p] = binary32(model[p] + struct.unpack("<f", value)[0])
    return struct.pack(f"<{len(model)}f", *model)


def uploaded(case: Case) -> Iterator[list[Any]]:
    """7.2: what is sent at each event."""
    count, events = case["chunks"], case["events"]
    small = 4096 * (count - 1) + 10 <= min(32768, 4096)
    number, credit, state = 0, 0, "offline"
    known, flight = set[int](), list[tuple[int, int]]()  # chunk, number of the offer before it
    unanswered = 0.0  # seconds that the newest offer has been, since no BUSY came
    for event in events:
        sends: list[Any] = []
        what = event["event"]
        unanswered += {"woken": 2.0, "woken soon": 0.5}.get(what, 0.0)
        woken = what.startswith("woken") and state == "offered" and unanswered >= 2
        if what == "connected" or (what == "timer" and state != "offline") or woken:
            number, credit, state = number + 1, 0, "offered"
            unanswered = 0.0
            sends.append({"offer": number, "data": number == 1 and small})
        elif what == "disconnected":
            flight, state = [], "offline"
        elif what == "busy" and state != "offline":
            credit, unanswered = 0, float("-inf")
        elif what == "have" and state != "offline" and event["number"] <= number:
            bitmap = set(event["held"])
            if event["number"] == number and state == "offered":
                known, state = bitmap, "sending"
            else:
                known = known | bitmap
            lost = [i for i, (chunk, offer) in enumerate(flight)
                    if chunk in bitmap or offer < event["number"]]  # fmt: skip
            flight = flight[max(lost, default=-1) + 1 :]
            credit = event["credit"]
            missing = set(range(count)) - known - {chunk for chunk, _ in flight}
            sends += sorted(missing)[: max(0, credit - len(flight))]
            flight += [(chunk, number) for chunk in sends]
        yield sends


def longest(events: list[str]) -> Iterator[float]:
    """7.2: the longest that each offer waits for the next."""
    a = 0
    for event in events:
        a = 0 if event in ("connected", "new", "woken") else a
        if event != "new":
            yield 2 + min(60, 0.5 * 2**a)
            a += 1


def waited(case: Case) -> Iterator[float]:
    """1.9: the longest wait after each connection."""
    n = case["devices"] or 100
    f, zero = 0, None
    for end in case["ends"]:
        how, now = end["ended"], end["at"]
        f = 0 if how == "heard" else f + 1
        zero = now if how == "heard" or zero is None else zero
        t = now - zero
        if how == "turned_away":
            yield min(300, 2**f)
        else:
            most = 60 if how == "unanswered" else 30
            yield min(most, max(5, n / 10, t / 36), 2**f * max(1, n / 100))


def halved(case: Case) -> Iterator[int]:
    """7.5: chunk_bytes after each connection."""
    size, vain = 16384, 0
    for what in case["connections"]:
        if "arrived" in what:  # whatever is lost after it
            vain = 0
        elif what != "offered":
            vain += max(1, what.count("lost"))
        fits = 4096 * size // 2 >= case["size"]
        if vain == 2 and size > 4096 and fits:
            size, vain = size // 2, 0
        yield size


def downloaded(case: Case) -> Iterator[list[int] | None]:
    """8.3: the chunks that are asked for at each event."""
    held, asked, state, silent = set(case["held"]), set[int](), "offline", 0.0
    for step in case["events"]:
        event, due = step["event"], False
        if event == "connected":
            state, asked, due = "probing", set[int](), True
        elif event == "disconnected":
            state = "offline"
        elif event == "timer":
            due = state != "offline"
        elif event in ("woken", "woken soon"):
            silent += 2.0 if event == "woken" else 0.5
            due = state != "offline" and silent >= 2
        else:
            silent = float("-inf")
            held.add(event)
            if state != "offline":
                state, due = "fetching", asked <= held
        missing = sorted(set(range(case["chunks"])) - held)
        if not due or not missing:
            yield None
            continue
        missing = missing[:1] if state == "probing" else missing
        asked, silent = set(missing), 0.0
        yield missing


def patience(arrivals: list[float]) -> Iterator[float]:
    """8.3: the patience after each chunk, the first GET having gone out at 0."""
    found, since = 2.0, 0.0
    for now in arrivals:
        found = min(60.0, max(2.0, 4 * (now - since), found / 2))
        since = now
        yield found


def needed(case: Case) -> list[str]:
    """8.1 and 8.2: what is fetched for an order."""
    held = set(case["holds"])
    version, lost = case["version"], [delta for _, delta in case["chain"] if delta not in held]
    if version is not None and not lost and case["chain"][0][0] in held:
        held.add(version)  # the chain leads to it
        held |= {base for base, _ in case["chain"]}
    first = [base for base, _ in case["steps"]]
    if "v3" in held:
        model: list[str] = []
    elif held & {*first}:
        last = max(i for i, base in enumerate(first) if base in held)
        model = [delta for _, delta in case["steps"][last:]]
    else:
        model = ["model"]
    return [name for name in ("bundle", *model, *case["extra"]) if name not in held]


def verdict(case: Case) -> str:
    """9.3: why an update is rejected, or nothing."""
    try:
        report, payload = read_update(bytes.fromhex(case["blob"]))
    except Exception:
        return "malformed"
    patch, model = bytes.fromhex(case["patch"]), floats(case["model"])
    for key, expected in (
        ("run", case["run"]), ("round", case["round"]), ("task", case["task"]),
        ("layout_hash", bytes.fromhex(case["layout_hash"])),
        ("model_hash", hashlib.sha256(bytes.fromhex(case["model"])).digest()),
        ("patch_hash", hashlib.sha256(patch).digest() if patch else b""),
    ):  # fmt: skip
        if report.get(key, b"") != expected:
            return "mismatch"
    shares = [report["before"]["metric"], report["after"]["metric"]]
    if case["share"] and not all(0 <= share <= 1 for share in shares):
        return "invalid"
    if report.get("patched") is not None:
        return "mismatch"
    if report["num_examples"] < 1:
        return "invalid"
    if bool(payload) != (case["upload"] and case["task"] == "train"):
        return "mismatch"
    return "malformed" if payload and not is_finite(model, patch, payload) else ""


def read_update(blob: bytes) -> tuple[Case, bytes]:
    """9: report and payload."""
    length = int.from_bytes(blob[:4], "little")
    if length > 4096 or 4 + length > len(blob):
        raise Broken("9")
    report = msgspec.msgpack.decode(blob[4 : 4 + length])
    numbers = [report["train_loss"], report["seconds"]]
    numbers += [report[key][name] for key in ("before", "after") for name in ("loss", "metric")]
    if not all(abs(number) <= (2 - 2**-23) * 2.0**127 for number in numbers):
        raise Broken("section 11")
    return report, blob[4 + length :]


def is_finite(model: list[float], patch: bytes, payload: bytes) -> bool:
    """9.3's last two lines."""
    for coded, adds in ((patch, False), (payload, True)):
        try:
            positions, values = decode_slowly(coded, len(model)) if coded else ([], [])
        except Exception:
            return False
        for p, value in zip(positions, values, strict=True):
            number = struct.unpack("<f", value)[0]
            model[p] = binary32(model[p] + number) if adds else number
    return all(abs(value) < float("inf") for value in model)
