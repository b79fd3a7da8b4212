"""The two ends of a download, rule by rule."""

import numpy as np

from sedge_protocol.wire.serving import Serving
from sedge_protocol.wire.transfer import (
    MIN_CHUNK_BYTES,
    RETRY_MAX_S,
    SILENCE_S,
    Fetch,
    describe,
    from_bitmap,
    to_bitmap,
)

BLOB = np.random.default_rng(1).bytes(9 * MIN_CHUNK_BYTES + 10)
MANIFEST = describe(BLOB, MIN_CHUNK_BYTES)
ALL = set(range(10))


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def chunk(index: int) -> bytes:
    offset, length = MANIFEST.span(index)
    return BLOB[offset : offset + length]


def bitmap(*indices: int) -> bytes:
    return to_bitmap(indices, 10)


def asked(fetch: Fetch, now: float) -> set[int] | None:
    missing = fetch.poll(now)
    return None if missing is None else from_bitmap(missing, 10)


def test_a_fetch_asks_again_after_a_silence_only() -> None:
    fetch = Fetch(MANIFEST, set(), rng())
    fetch.connected(0.0)
    fetch.poll(0.0)
    fetch.chunk(0, chunk(0), 0.1)
    assert asked(fetch, 0.1) == ALL - {0}
    for index in range(1, 8):
        now = 0.1 + index
        assert fetch.chunk(index, chunk(index), now)
        assert asked(fetch, now) is None
    assert asked(fetch, 7.1 + 3.9) is None  # four times the second that each chunk took
    assert asked(fetch, 7.1 + 4.1) == {8, 9}


def test_patience_is_short_on_a_fast_link_and_bounded_on_any() -> None:
    for took, expected in ((0.01, SILENCE_S), (1.0, 4.0), (100.0, RETRY_MAX_S)):
        fetch = Fetch(MANIFEST, set(), rng())
        fetch.connected(0.0)
        fetch.poll(0.0)
        fetch.chunk(5, chunk(5), took)
        assert fetch.timer() == took + expected


def test_a_pass_that_is_under_way_is_listened_to_first() -> None:
    """Another device asked before: its chunks come without our asking."""
    fetch = Fetch(MANIFEST, set(), rng())
    fetch.connected(0.0)
    assert asked(fetch, 0.0) == {0}
    for index in (4, 5, 6):
        assert fetch.chunk(index, chunk(index), 0.1)
        assert asked(fetch, 0.1) is None
    assert fetch.chunk(0, chunk(0), 0.2)
    assert asked(fetch, 0.2) == {1, 2, 3, 7, 8, 9}


def test_requests_are_gathered_and_the_union_goes_out_once() -> None:
    serving = Serving(MANIFEST, 0.5)
    serving.request("a", bitmap(0, 1, 2), 9, 1.0)
    serving.request("b", bitmap(2, 3), 9, 1.2)
    serving.request("a", bitmap(0, 1, 2), 9, 1.4)
    assert serving.timer() == 1.5
    assert serving.poll(1.4, 100) == []
    assert serving.poll(1.5, 100) == [0, 1, 2, 3]
    assert serving.poll(1.5, 100) == []
    assert serving.timer() is None


def test_a_request_in_mid_pass_adds_only_what_is_missing() -> None:
    serving = Serving(MANIFEST, 5.0)
    serving.request("a", to_bitmap(ALL, 10), 1, 0.0)
    assert serving.poll(0.0, 6) == [0, 1, 2, 3, 4, 5]
    serving.request("b", bitmap(1, 5, 6, 7, 8), 2, 0.1)
    assert serving.poll(0.1, 100) == [6, 7, 8, 9, 1, 5]
    assert serving.timer() is None


def test_a_chunk_asked_for_again_and_again_keeps_no_other_back() -> None:
    serving, sent = Serving(MANIFEST, 0.0), list[int]()
    for _ in range(MANIFEST.count):
        serving.request("a", to_bitmap(ALL, 10), 1, 0.0)
        sent += serving.poll(0.0, 1)
    assert sent == list(ALL)
