"""The two ends of an upload, rule by rule."""

from itertools import pairwise

import numpy as np
import pytest

from sedge_protocol.wire.transfer import (
    CREDIT,
    DEFAULT_CHUNK_BYTES,
    MAX_INLINE_BYTES,
    MIN_CHUNK_BYTES,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    SILENCE_S,
    Intake,
    Manifest,
    Upload,
    describe,
    from_bitmap,
    to_bitmap,
)

BLOB = np.random.default_rng(1).bytes(9 * MIN_CHUNK_BYTES + 10)
MANIFEST = describe(BLOB, MIN_CHUNK_BYTES)


def rng() -> np.random.Generator:
    return np.random.default_rng(1)


def chunk(index: int) -> bytes:
    offset, length = MANIFEST.span(index)
    return BLOB[offset : offset + length]


def bitmap(*indices: int) -> bytes:
    return to_bitmap(indices, 10)


def started(manifest: Manifest = MANIFEST) -> Upload:
    """An upload whose first offer has gone out at 0."""
    upload = Upload(manifest, rng())
    assert upload.poll(0.0) == []
    upload.connected(0.0)
    assert upload.poll(0.0) == [None]
    assert upload.number == 1
    return upload


def test_no_more_than_the_credit_is_in_flight() -> None:
    upload = started()
    upload.receive(1, bitmap(), 3, 0.1)
    assert upload.poll(0.1) == [0, 1, 2]
    upload.receive(0, bitmap(0), 3, 0.2)
    assert upload.poll(0.2) == [3]
    upload.receive(0, bitmap(0, 1, 2, 3), 3, 0.3)
    assert upload.poll(0.3) == [4, 5, 6]


def test_a_chunk_that_a_later_one_overtook_is_lost() -> None:
    upload = started()
    upload.receive(1, bitmap(), CREDIT, 0.1)
    assert upload.poll(0.1) == [0, 1, 2, 3]
    upload.receive(0, bitmap(0, 2), CREDIT, 0.2)
    assert upload.poll(0.2) == [1, 4, 5]


def test_a_chunk_sent_before_an_offer_and_missing_from_its_answer_is_lost() -> None:
    upload = started()
    upload.receive(1, bitmap(), CREDIT, 0.1)
    upload.poll(0.1)
    assert upload.poll(10.0) == [None]
    assert upload.poll(10.0) == []
    upload.receive(2, bitmap(0), CREDIT, 10.1)
    assert upload.poll(10.1) == [1, 2, 3, 4]


def test_a_chunk_sent_after_an_offer_is_not_lost_by_its_answer() -> None:
    """A slow link: the reports of earlier chunks still come while the offer is on its way."""
    upload = started()
    upload.receive(1, bitmap(), 2, 0.1)
    assert upload.poll(0.1) == [0, 1]
    assert upload.poll(10.0) == [None]
    upload.receive(0, bitmap(0), 2, 10.1)
    assert upload.poll(10.1) == [2]
    upload.receive(2, bitmap(0, 1), 2, 10.2)
    assert upload.poll(10.2) == [3]


def test_the_newest_answer_is_the_truth_and_comes_once() -> None:
    """A coordinator that lost a chunk says so; a double of that report may come much later."""
    upload = started()
    upload.receive(1, bitmap(0, 1, 2), CREDIT, 0.1)
    assert upload.poll(0.1) == [3, 4, 5, 6]
    assert upload.poll(10.0) == [None]
    upload.receive(2, bitmap(0), CREDIT, 10.1)
    assert upload.poll(10.1) == [1, 2, 3, 4]
    upload.receive(0, bitmap(0, 1, 2), CREDIT, 10.2)
    assert upload.poll(10.2) == [5, 6]
    upload.receive(2, bitmap(0), CREDIT, 10.3)
    assert upload.poll(10.3) == []


def test_an_answer_from_before_this_process_is_ignored() -> None:
    upload = started()
    for number in (2, 7):
        upload.receive(number, bitmap(), CREDIT, 0.1)
        assert upload.poll(0.1) == []
    upload.receive(1, bitmap(), CREDIT, 0.2)
    assert upload.poll(0.2) == [0, 1, 2, 3]


def test_silence_repeats_the_offer_ever_more_seldom() -> None:
    upload = started()
    times = [0.0]
    for _ in range(12):
        due = upload.timer()
        assert due is not None
        assert upload.poll(due - 0.001) == []
        assert upload.poll(due) == [None]
        times.append(due)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    for attempt, gap in enumerate(gaps):
        ceiling = min(RETRY_MAX_S, RETRY_FIRST_S * 2.0**attempt)
        assert SILENCE_S + 0.1 * ceiling <= gap <= SILENCE_S + ceiling
    assert upload.number == 13


def test_news_makes_the_offers_frequent_again() -> None:
    upload = started()
    for _ in range(8):
        upload.poll(upload.timer() or 0.0)
    now = upload.timer() or 0.0
    upload.receive(9, bitmap(0), CREDIT, now)
    assert upload.timer() == now + SILENCE_S
    assert upload.poll(now + SILENCE_S) == [None]
    assert (upload.timer() or 0.0) <= now + 2 * SILENCE_S + RETRY_FIRST_S


def test_busy_waits_as_long_as_it_is_told() -> None:
    upload = started()
    upload.receive(1, bitmap(), CREDIT, 0.1)
    upload.busy(30.0, 0.2)
    assert upload.poll(30.1) == []
    assert upload.poll(30.2) == [None]


def test_after_a_cut_only_what_was_on_its_way_goes_again() -> None:
    upload = started()
    upload.receive(1, bitmap(), CREDIT, 0.1)
    assert upload.poll(0.1) == [0, 1, 2, 3]
    upload.disconnected()
    upload.connected(5.0)
    assert upload.poll(5.0) == [None]
    upload.receive(2, bitmap(0, 1), CREDIT, 5.1)
    assert upload.poll(5.1) == [2, 3, 4, 5]


def lose_a_connection(upload: Upload, now: float, held: bytes) -> None:
    """A connection on which chunks are sent and nothing but the offer's answer comes back."""
    upload.connected(now)
    upload.poll(now)
    upload.receive(upload.number, held, CREDIT, now)
    upload.poll(now)
    upload.disconnected()


def test_two_connections_without_news_ask_for_smaller_chunks() -> None:
    upload = Upload(describe(BLOB, 8192), rng())
    held = to_bitmap([0], 5)
    lose_a_connection(upload, 0.0, held)
    lose_a_connection(upload, 1.0, held)
    assert not upload.wants_smaller_chunks  # the first one brought chunk 0
    lose_a_connection(upload, 2.0, held)
    assert not upload.wants_smaller_chunks
    upload.connected(3.0)
    assert upload.wants_smaller_chunks


def test_the_smallest_chunks_cannot_be_smaller() -> None:
    upload = Upload(MANIFEST, rng())
    for now in range(10):
        lose_a_connection(upload, now, bitmap())
    assert not upload.wants_smaller_chunks


@pytest.mark.parametrize(
    ("size", "chunk_bytes", "inline"),
    [
        (1, MIN_CHUNK_BYTES, True),
        (MIN_CHUNK_BYTES, MIN_CHUNK_BYTES, True),
        (MIN_CHUNK_BYTES + 1, MIN_CHUNK_BYTES, False),
        (MAX_INLINE_BYTES, DEFAULT_CHUNK_BYTES, True),
        (MAX_INLINE_BYTES + 1, DEFAULT_CHUNK_BYTES, False),
    ],
)
def test_the_first_offer_of_a_small_blob_is_inline(
    size: int, chunk_bytes: int, inline: bool
) -> None:
    upload = started(describe(BLOB[:size], chunk_bytes))
    assert upload.inline == inline
    upload.poll(upload.timer() or 0.0)
    assert upload.number == 2
    assert not upload.inline


def test_an_intake_reports_every_half_window() -> None:
    intake = Intake(MANIFEST, set())
    assert not intake.poll(0.0)
    assert intake.chunk(0, chunk(0), 0.0)
    assert not intake.poll(0.0)
    assert intake.chunk(1, chunk(1), 0.1)
    assert intake.poll(0.1)
    assert not intake.poll(0.1)
    assert from_bitmap(intake.bitmap(), 10) == {0, 1}


def test_an_intake_reports_after_a_silence() -> None:
    intake = Intake(MANIFEST, set())
    intake.chunk(0, chunk(0), 5.0)
    assert intake.timer() == 6.0
    assert not intake.poll(5.9)
    assert intake.poll(6.0)
    assert intake.timer() is None
    assert not intake.poll(100.0)


def test_a_chunk_that_is_there_already_is_reported_all_the_same() -> None:
    """The sender would not have sent it if it knew."""
    intake = Intake(MANIFEST, {0})
    assert not intake.chunk(0, chunk(0), 0.0)
    assert intake.poll(1.0)
