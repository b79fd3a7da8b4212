"""The two ends of an upload, rule by rule."""

from itertools import pairwise

import numpy as np

from sedge_protocol.wire.transfer import (
    CREDIT,
    MIN_CHUNK_BYTES,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    SILENCE_S,
    Intake,
    Manifest,
    Upload,
    describe,
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
    upload.receive(0, bitmap(3), CREDIT, 10.4)
    assert upload.poll(10.4) == [7]


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


def test_busy_waits_as_long_as_it_is_told() -> None:
    upload = started()
    upload.receive(1, bitmap(), CREDIT, 0.1)
    upload.busy(30.0, 0.2)
    assert upload.poll(30.1) == []
    assert upload.poll(30.2) == [None]


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
