"""The serving end of a download: requests are gathered, and nobody is kept waiting by another's."""

import numpy as np

from sedge_protocol.wire.serving import Serving
from sedge_protocol.wire.transfer import MIN_CHUNK_BYTES, describe, to_bitmap

MANIFEST = describe(np.random.default_rng(1).bytes(9 * MIN_CHUNK_BYTES + 10), MIN_CHUNK_BYTES)
ALL = set(range(10))


def bitmap(*indices: int) -> bytes:
    return to_bitmap(indices, 10)


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
    # The next pass waits for its own.
    assert [serving.request(asker, bitmap(4), 3, 2.0) for asker in ("c", "a", "c")] == [1, 0, 0]
    assert serving.timer() == 2.5
    serving.request("b", bitmap(4), 3, 2.1)
    assert serving.timer() == 2.1 and serving.poll(2.1, 100) == [4]


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
