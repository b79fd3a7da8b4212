"""What spec.json has of transfers and connections: WIRE.md, 1.9 and sections 7 and 8."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, cast

import numpy as np
from tests.vectors.make_rounds import Events

from sedge_protocol.errors import FrameError
from sedge_protocol.wire.frame import Frame, Kind, ReplayWindow
from sedge_protocol.wire.reconnect import Ended, Reconnect
from sedge_protocol.wire.transfer import SILENCE_S, Fetch, Upload, describe, from_bitmap, to_bitmap


def replays() -> Events:
    cases = {
        "in order": [(1, 1), (1, 2), (1, 3)],
        "twice": [(1, 1), (1, 1), (1, 2), (1, 1)],
        "reordered within 64": [(1, 70), (1, 7), (1, 8), (1, 7)],
        "64 below is dropped": [(1, 100), (1, 36), (1, 37)],
        "an older start": [(5, 3), (4, 9), (5, 4)],
        "a newer start begins anew": [(1, 50), (2, 1), (2, 50), (1, 51)],
        "64 ahead empties the window": [(1, 1), (1, 2), (1, 66), (1, 65), (1, 2)],
        "63 ahead keeps the last": [(1, 1), (1, 64), (1, 1), (1, 2)],
        "a newer start far below": [(1, 500), (2, 1), (2, 0), (2, 1)],
        "no number has a sign": [(1, 5), (1, 2**32 - 1), (1, 2**32 - 2), (1, 6)],
        "no start has one": [(2**31 - 1, 1), (2**31, 1), (2**31 - 1, 2)],
        "a leap": [(1, 1), (1, 1000), (1, 1), (1, 937), (1, 936)],
        "zero is a number like others": [(1, 0), (1, 0)],
    }
    found: Events = []
    for name, frames in cases.items():
        window = ReplayWindow()
        verdicts = [window.accept(Frame(Kind.WELCOME, b"", start, seq)) for start, seq in frames]
        found.append({"name": name, "frames": frames, "accepted": verdicts})
    return found


# How long after the event before it a device is woken.
WOKEN_AFTER_S = {"woken": SILENCE_S, "woken soon": 0.5}


class Sender:
    """Plays an upload and writes down what it sends."""

    def __init__(self, size: int, chunk_bytes: int) -> None:
        self.upload = Upload(describe(bytes(size), chunk_bytes), np.random.default_rng(0))
        self.now, self.events = 0.0, Events()

    def play(self, event: str, **given: Any) -> None:
        upload, number = self.upload, self.upload.number
        if event == "connected":
            upload.connected(self.now)
        elif event == "disconnected":
            upload.disconnected()
        elif event == "have":
            held = to_bitmap(given["held"], upload.manifest.count)
            upload.receive(given["number"], held, given["credit"], self.now)
        elif event == "busy":
            upload.busy(5.0, self.now)
        elif event in WOKEN_AFTER_S:
            self.now += WOKEN_AFTER_S[event]
            upload.woken(self.now)
        else:  # the timer
            self.now = upload.timer() or self.now
        sent: list[object] = []
        for what in upload.poll(self.now):
            sent.append({"offer": upload.number, "data": upload.inline} if what is None else what)
        assert number <= upload.number
        self.events.append({"event": event, **given, "sends": sent})


def uploads() -> Events:
    found: Events = []
    for name, chunks, script in (
        ("a small blob travels in its first offer", 1, [("connected", {}), ("timer", {}), ("timer", {})]),
        ("four at once, lowest first", 7, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1, 2, 3], "credit": 4}),
        ]),
        ("what was sent before something that arrived is lost", 6, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [1, 3], "credit": 4}),
        ]),
        ("a chunk that was sent again is behind those that were sent before", 8, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [1], "credit": 4}),
            ("have", {"number": 0, "held": [1, 2], "credit": 4}),
        ]),
        ("silence: another offer, then what it does not have", 5, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 2}), ("timer", {}),
            ("have", {"number": 2, "held": [0], "credit": 2}),
        ]),
        ("an answer to an older offer adds", 5, [
            ("connected", {}), ("timer", {}), ("have", {"number": 1, "held": [2], "credit": 1}),
            ("have", {"number": 2, "held": [0], "credit": 1}),
        ]),
        ("an answer to an earlier start is ignored", 3, [
            ("connected", {}), ("have", {"number": 9, "held": [0, 1, 2], "credit": 4}),
            ("have", {"number": 1, "held": [], "credit": 4}),
        ]),
        ("busy, then a cut, then all over", 3, [
            ("connected", {}), ("busy", {}), ("timer", {}),
            ("have", {"number": 2, "held": [], "credit": 1}), ("disconnected", {}),
            ("have", {"number": 2, "held": [0], "credit": 4}), ("connected", {}),
            ("have", {"number": 3, "held": [0], "credit": 4}),
        ]),
        ("what was in flight before a cut is not", 4, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 2}), ("disconnected", {}),
            ("connected", {}), ("have", {"number": 0, "held": [], "credit": 2}),
        ]),
        ("an answer to an earlier start opens nothing", 3, [
            ("connected", {}), ("have", {"number": 9, "held": [0], "credit": 4}),
        ]),
        ("the receiver has lost what it had", 5, [
            ("connected", {}), ("have", {"number": 1, "held": [0, 1], "credit": 2}), ("timer", {}),
            ("have", {"number": 2, "held": [], "credit": 4}),
        ]),
        ("woken after silence: an offer at once", 5, [
            ("connected", {}), ("woken soon", {}), ("timer", {}), ("woken", {}), ("woken", {}),
            ("have", {"number": 4, "held": [], "credit": 2}), ("woken soon", {}),
        ]),
        ("woken while it is put off: nothing before its time", 3, [
            ("connected", {}), ("busy", {}), ("woken", {}), ("timer", {}), ("woken", {}),
        ]),
        ("a duplicate of the newest answer adds, and nothing is lost", 7, [
            ("connected", {}), ("have", {"number": 1, "held": [0], "credit": 2}),
            ("have", {"number": 0, "held": [1], "credit": 2}),
            ("have", {"number": 1, "held": [0], "credit": 3}),
        ]),
        ("2 s from the last answer; woken in between: nothing", 5, [
            ("connected", {}), ("woken soon", {}), ("have", {"number": 1, "held": [], "credit": 2}),
            ("woken soon", {}), ("have", {"number": 0, "held": [0], "credit": 2}),
            *[("woken soon", {})] * 4,
        ]),
        ("busy while there is no connection", 3, [
            ("connected", {}), ("disconnected", {}), ("busy", {}), ("timer", {}), ("connected", {}),
        ]),
        ("a report that lacks what an earlier one had", 7, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1, 2, 3], "credit": 2}),
            ("have", {"number": 0, "held": [4], "credit": 4}),
        ]),
    ):  # fmt: skip
        found.append(_played(name, 4096 * (chunks - 1) + 10, 4096, script))
    for name, size, chunk_bytes in (
        ("a chunk that is full travels in its first offer", 4096, 4096),
        ("so does the largest blob that may", 32768, 65536),
        ("a chunk that is too large does not", 32769, 65536),
    ):
        found.append(_played(name, size, chunk_bytes, [("connected", {})]))
    return found


def _played(name: str, size: int, chunk_bytes: int, script: list[Any]) -> dict[str, Any]:
    sender = Sender(size, chunk_bytes)
    for event, given in script:
        sender.play(event, **given)
    return {"name": name, "size": size, "chunk_bytes": chunk_bytes, "events": sender.events}


class Highest:
    """Random numbers that are always the highest."""

    def uniform(self, low: float, high: float) -> float:
        return high


def backoffs() -> Events:
    """7.2, 8.3: the longest seconds from each to the next; ``new``: something new is held."""
    found: Events = []
    for script in (
        ["connected", *["timer"] * 9],
        ["connected", "timer", "timer", "new", "timer", "timer"],
        ["connected", "timer", "timer", "connected", "timer"],
        ["connected", "timer", "timer", "woken", "timer"],
    ):
        found += [
            {"of": of, "events": script, "longest": _longest(of, script)} for of in ("OFFER", "GET")
        ]
    return found


def _longest(of: str, script: list[str]) -> list[float]:
    manifest, highest = describe(bytes(40_000), 4096), cast(np.random.Generator, Highest())
    upload, fetch = Upload(manifest, highest), Fetch(manifest, set(), highest)
    one = upload if of == "OFFER" else fetch
    now, longest = 0.0, list[float]()
    for event in script:
        if event == "new":
            upload.receive(0, to_bitmap([0], manifest.count), 1, now)
            fetch.chunk(0, bytes(4096), now)
            continue
        if event == "connected":
            one.disconnected()
            one.connected(now)
        if event == "woken":
            now += WOKEN_AFTER_S[event]
            one.woken(now)
        now = one.timer() or now
        one.poll(now)
        longest.append((one.timer() or now) - now)
    return longest


def downloads() -> Events:
    found: Events = []
    cases: list[tuple[str, list[int], list[str | int]]] = [
        ("one chunk first, then the others", [], ["connected", 0, 1, 2, 3]),
        ("what is held is not asked for", [0, 2], ["connected", 1, 3]),
        ("silence: the first alone, again", [], ["connected", "timer", "timer", 0]),
        ("a chunk lost: only what is missing", [], ["connected", 0, 1, 3, "timer", 2]),
        ("chunks that others asked for are as good", [], ["connected", 3, 2, 0, "timer", 1]),
        ("woken after silence: the same again at once", [],
         ["connected", "woken soon", "woken", 0, 2, "timer", "woken soon", "woken", 1]),
        ("woken while chunks come: nothing", [], ["connected", 0, 1, "woken soon", 2, 3]),
        ("a cut: probing again", [], ["connected", 0, "disconnected", 1, "connected", 2, 3]),
        ("a chunk while there is no connection", [], ["connected", "disconnected", 0, "connected", 1]),
        ("a chunk that is held is as good", [0], ["connected", 0, "timer", 1]),
        ("a chunk is an answer: woken later: nothing", [],
         ["connected", 0, "woken soon", 1, *["woken soon"] * 3, "woken soon"]),
        ("wrong chunks are none", [], ["connected", "changed", "short", "beyond", 0]),
    ]  # fmt: skip
    for name, held, script in cases:
        blob = bytes(range(256)) * 56
        manifest = describe(blob, 4096)
        wrong = {
            "changed": (0, b"?" + blob[1:4096]), "short": (0, blob[:4095]), "beyond": (4, blob[:4096]),
        }  # fmt: skip
        fetch, now, events = Fetch(manifest, set(held), np.random.default_rng(0)), 0.0, Events()
        for event in script:
            if isinstance(event, int):
                offset, length = manifest.span(event)
                fetch.chunk(event, blob[offset : offset + length], now)
            elif event in wrong:
                with suppress(FrameError):
                    fetch.chunk(*wrong[event], now)
            elif event == "connected":
                fetch.connected(now)
            elif event == "disconnected":
                fetch.disconnected()
            elif event in WOKEN_AFTER_S:
                now += WOKEN_AFTER_S[event]
                fetch.woken(now)
            else:
                now = fetch.timer() or now
            asked = fetch.poll(now)
            wants = None if asked is None else sorted(from_bitmap(asked, manifest.count))
            events.append({"event": event, "gets": wants})
        found.append({"name": name, "chunks": manifest.count, "held": held, "events": events})
    return found


def patience() -> Events:
    found: Events = []
    for arrivals in (
        [0.5, 1.0, 1.5, 2.0], [1.0, 2.5, 12.5, 13.0, 13.5, 14.0], [30.0, 30.1, 30.2, 30.3, 30.4, 30.5],
        [3.0, 9.0, 10.0, 40.0, 41.0], [0.5, 10.5, {"cut": 11.0}, 12.0, 12.5],
        [0.5, 1.0, {"woken": 5.02}, 6.02], [0.5, 2.0, {"woken": 10.5}, 11.0],
    ):  # fmt: skip
        found.append({"arrivals": arrivals, "timers": list(_timers(arrivals))})
    return found


def _timers(arrivals: list[Any]) -> Iterator[float]:
    """The patience after each chunk but the first of a connection."""
    blob = bytes(4096 * 20)
    fetch = Fetch(describe(blob, 4096), set(), np.random.default_rng(0))
    index, first = 0, True
    fetch.connected(0.0)
    fetch.poll(0.0)
    for arrival in arrivals:
        now = arrival if isinstance(arrival, float) else sum(arrival.values())
        while (due := fetch.timer()) is not None and due <= now:
            fetch.poll(due)
        if isinstance(arrival, float):
            fetch.chunk(index, blob[:4096], now)
            index += 1
            if not first:
                yield round((fetch.timer() or now) - now, 9)
            first = False
        elif "woken" in arrival:
            fetch.woken(now)
        else:
            fetch.disconnected()
            fetch.connected(now)
            first = True
        fetch.poll(now)


def halvings() -> Events:
    """7.5: connections with what happens on each, and chunk_bytes at the next."""
    small = 40_000
    cases: dict[str, tuple[int, list[str]]] = {
        "two in vain": (small, ["sent", "sent"]),
        "one in vain": (small, ["sent"]),
        "something arrives between them": (small, ["sent", "arrived", "sent"]),
        "one on which nothing is sent neither counts nor ends the row": (
            small,
            ["sent", "offered", "sent"],
        ),
        "nothing is ever sent": (small, ["offered", "offered", "offered"]),
        "two, then two of the smaller": (small, ["sent", "sent", "sent", "sent"]),
        "an offer is answered without them, twice": (small, ["lost", "lost"]),
        "a connection, and an answered offer": (small, ["sent", "lost"]),
        "an answered offer after something has arrived": (small, ["sent", "arrived lost", "lost"]),
        "two answered offers of one connection": (small, ["lost lost", "offered"]),
        "an answered offer after one that arrives begins anew": (small, ["sent", "arrived lost"]),
        "an answer to no offer, without them": (small, ["heard", "offered"]),
        "to 4096 chunks of 4096": (4096 * 4096, ["sent"] * 4),
        "not below 4096": (small, ["sent"] * 9),
        "not to more than 4096 chunks": (20_000_000, ["sent"] * 6),
    }
    found: Events = []
    for name, (size, connections) in cases.items():
        upload, sizes = _offered(size, 16384), list[int]()
        for what in connections:
            upload = _connection(upload, size, what)
            sizes.append(upload.manifest.chunk_bytes)
        found.append({"name": name, "size": size, "connections": connections, "chunk_bytes": sizes})
    return found


def _offered(size: int, chunk_bytes: int) -> Upload:
    upload = Upload(describe(bytes(size), chunk_bytes), np.random.default_rng(0))
    upload.connected(0.0)
    return upload


def _halved(upload: Upload, size: int) -> Upload:
    """The upload, or one of half the chunks' size where it is time for that."""
    smaller = upload.manifest.chunk_bytes // 2
    return _offered(size, smaller) if upload.wants_smaller_chunks else upload


def _connection(upload: Upload, size: int, what: str) -> Upload:
    """What is offered after a connection on which this happens."""
    nothing = to_bitmap([], upload.manifest.count)
    held = to_bitmap([0] if "arrived" in what else [], upload.manifest.count)
    upload.poll(0.0)
    if what != "offered":
        upload.receive(upload.number, nothing, 1, 0.0)
        upload.poll(0.0)
    if "arrived" in what or what == "heard":
        upload.receive(0, held, 2, 0.0)
        upload.poll(0.0)
    for now in (100.0, 200.0)[: what.count("lost")]:
        upload.poll(now - 100.0)
        upload.poll(now)
        upload.receive(upload.number, held, 1, now)
        if upload.wants_smaller_chunks:
            return _halved(upload, size)
    upload.disconnected()
    upload.connected(0.0)
    return _halved(upload, size)


def waits() -> Events:
    """1.9: the longest wait after each connection that has ended at a time, and how."""
    found: Events = []
    lost, every_ten = ("heard", 0), [("refused", at) for at in range(10, 100, 10)]
    for devices, script in (
        (8, [lost, *every_ten, ("refused", 360), ("refused", 5000), ("unanswered", 9000), ("heard", 9500),
             ("refused", 9501), ("refused", 9502), ("refused", 9503)]),
        (8000, [lost]),
        (0, [("unanswered", 5000), *[("refused", 5001 + at) for at in range(9)], ("heard", 5010)]),
        (300, [lost, *every_ten, ("heard", 100), ("refused", 101)]),
        (3000, [lost, ("unanswered", 1), ("unanswered", 200)]),
        (8, [lost, *[("turned_away", at) for at in range(1, 12)], ("refused", 12), ("heard", 400)]),
    ):  # fmt: skip
        link, ends = Reconnect(cast(np.random.Generator, Highest()), devices=devices), Events()
        for ended, at in script:
            longest = link.wait_s(Ended[ended.upper()], at)
            ends.append({"ended": ended, "at": at, "longest": longest})
        found.append({"devices": devices, "ends": ends})
    return found
