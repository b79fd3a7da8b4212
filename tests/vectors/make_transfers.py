"""What spec.json has of transfers and connections: WIRE.md, 1.9 and sections 7 and 8."""

from typing import Any, cast

import numpy as np
from tests.vectors.make_rounds import Events

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

    def __init__(self, chunks: int) -> None:
        self.blob = bytes(4096 * (chunks - 1) + 10)
        self.upload = Upload(describe(self.blob, 4096), np.random.default_rng(0))
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
        ("a report that lacks what an earlier one had", 7, [
            ("connected", {}), ("have", {"number": 1, "held": [], "credit": 4}),
            ("have", {"number": 0, "held": [0, 1, 2, 3], "credit": 2}),
            ("have", {"number": 0, "held": [4], "credit": 4}),
        ]),
    ):  # fmt: skip
        sender = Sender(chunks)
        for event, given in script:
            sender.play(event, **given)
        found.append({"name": name, "chunks": chunks, "events": sender.events})
    return found


class Highest:
    """Random numbers that are always the highest."""

    def uniform(self, low: float, high: float) -> float:
        return high


def backoffs() -> Events:
    """7.2: the longest seconds from each offer to the next; ``new``: something new is held."""
    found: Events = []
    for script in (
        ["connected", *["timer"] * 9],
        ["connected", "timer", "timer", "new", "timer", "timer"],
        ["connected", "timer", "timer", "connected", "timer"],
        ["connected", "timer", "timer", "woken", "timer"],
    ):
        upload = Upload(describe(bytes(40_000), 4096), cast(np.random.Generator, Highest()))
        now, longest = 0.0, list[float]()
        for event in script:
            if event == "new":
                upload.receive(0, to_bitmap([0], upload.manifest.count), 1, now)
                continue
            if event == "connected":
                upload.disconnected()
                upload.connected(now)
            if event == "woken":
                now += WOKEN_AFTER_S[event]
                upload.woken(now)
            now = upload.timer() or now
            upload.poll(now)
            longest.append((upload.timer() or now) - now)
        found.append({"events": script, "longest": longest})
    return found


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
    ]  # fmt: skip
    for name, held, script in cases:
        manifest = describe(bytes(range(256)) * 56, 4096)
        blob = bytes(range(256)) * 56
        fetch, now, events = Fetch(manifest, set(held), np.random.default_rng(0)), 0.0, Events()
        for event in script:
            if isinstance(event, int):
                offset, length = manifest.span(event)
                fetch.chunk(event, blob[offset : offset + length], now)
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
        [3.0, 9.0, 10.0, 40.0, 41.0],
    ):  # fmt: skip
        blob = bytes(4096 * 20)
        fetch = Fetch(describe(blob, 4096), set(), np.random.default_rng(0))
        fetch.connected(0.0)
        fetch.poll(0.0)
        timers: list[float] = []
        for index, now in enumerate(arrivals):
            fetch.chunk(index, blob[:4096], now)
            due = fetch.timer()
            assert due is not None
            timers.append(round(due - now, 9) if index else 0.0)
            fetch.poll(now)
        found.append({"arrivals": arrivals, "timers": timers[1:]})
    return found


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
        "not below 4096": (small, ["sent"] * 9),
        "not to more than 4096 chunks": (20_000_000, ["sent"] * 6),
    }
    found: Events = []
    for name, (size, connections) in cases.items():
        blob, sizes = bytes(size), list[int]()
        upload = Upload(describe(blob, 16384), np.random.default_rng(0))
        upload.connected(0.0)
        for what in connections:
            upload.poll(0.0)
            if what != "offered":
                upload.receive(upload.number, to_bitmap([], upload.manifest.count), 1, 0.0)
                upload.poll(0.0)
            held = to_bitmap([0] if "arrived" in what else [], upload.manifest.count)
            if "arrived" in what:
                upload.receive(0, held, 1, 0.0)
            for now in (100.0, 200.0)[: what.count("lost")]:
                upload.poll(now - 100.0)
                upload.poll(now)
                upload.receive(upload.number, held, 1, now)
            upload.disconnected()
            upload.connected(0.0)
            if upload.wants_smaller_chunks:
                smaller = upload.manifest.chunk_bytes // 2
                upload = Upload(describe(blob, smaller), np.random.default_rng(0))
                upload.connected(0.0)
            sizes.append(upload.manifest.chunk_bytes)
        found.append({"name": name, "size": size, "connections": connections, "chunk_bytes": sizes})
    return found


def waits() -> Events:
    """1.9: the longest wait after each connection that has ended at a time, and how."""
    found: Events = []
    lost, every_ten = ("heard", 0), [("refused", at) for at in range(10, 100, 10)]
    for devices, script in (
        (8, [lost, *every_ten, ("refused", 360), ("refused", 5000), ("unanswered", 9000)]),
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
