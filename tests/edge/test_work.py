"""One job: where it starts, what it sends, and what it still owes."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.edge.desk import (
    LAYOUT,
    Desk,
    DriftTrainer,
    N,
    drift,
    examples,
    theta_of,
)

from sedge_edge.data import Examples
from sedge_edge.trainer import Trained, TrainingStopped
from sedge_edge.work import (
    Job,
    Outcome,
    Workplace,
    assemble,
    choose,
    code_delta,
    perform,
    read_theta,
)
from sedge_protocol import bundle as bundles
from sedge_protocol.blobs import BlobFolder
from sedge_protocol.bundle import BundleManifest
from sedge_protocol.errors import CodecError, StorageError
from sedge_protocol.layout import Theta
from sedge_protocol.messages import Codec, Order, Training
from sedge_protocol.sparse import SparseVector, ValueCoding, decode, encode
from sedge_protocol.update import decode_update

MEAN = LAYOUT.by_name["norm.mean"].slice
# Every way of coding an update, lossy and not.
CODECS = [
    Codec(values=values, fraction=fraction)
    for values in ValueCoding
    for fraction in (1.0, 0.3, 0.001)
]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def manifest_of(desk: Desk) -> BundleManifest:
    return bundles.unpack(desk.served[desk.bundle.transfer]).manifest


def stored(desk: Desk) -> BlobFolder:
    """The device's folder, with everything that the coordinator serves in it."""
    blobs = desk.blobs()
    for blob in desk.served.values():
        blobs.write(blob)
    return blobs


def patch_of(indices: list[int], values: list[float]) -> bytes:
    vector = SparseVector(N, np.array(indices, np.uint32), np.array(values, np.float32))
    return encode(vector, ValueCoding.FP32)


# Where it starts.


def test_the_start_is_global_then_patch_then_kept_tensors(desk: Desk) -> None:
    own = theta_of(50)
    kept = MEAN.start
    order = desk.patched(1, patch_of([7, kept], [0.5, 9.0]))
    start = assemble(order, stored(desk), LAYOUT, own)
    expected = theta_of(1)
    expected[7], expected[kept] = 0.5, 9.0
    np.testing.assert_array_equal(start, expected)

    keeping = desk.order(1, patch=order.patch, patch_hash=order.patch_hash, keep=("norm.mean",))
    start = assemble(keeping, stored(desk), LAYOUT, own)
    expected[MEAN] = own[MEAN]
    np.testing.assert_array_equal(start, expected)
    without = assemble(keeping, stored(desk), LAYOUT, None)
    assert without[kept] == 9.0  # a device that has nothing of its own yet takes the fleet's


def test_a_patch_as_a_blob_is_the_same_patch(desk: Desk) -> None:
    patch = patch_of(list(range(0, N, 2)), [0.25] * len(range(0, N, 2)))
    digest = hashlib.sha256(patch).digest()
    inline = desk.order(1, patch=patch, patch_hash=digest)
    blob = desk.order(1, patch_blob=desk.serve(patch), patch_hash=digest)
    blobs = stored(desk)
    found = [assemble(order, blobs, LAYOUT, None) for order in (inline, blob)]
    np.testing.assert_array_equal(found[0], found[1])
    assert (found[0][::2] == 0.25).all()


def test_a_lossy_global_starts_from_what_was_decoded(desk: Desk) -> None:
    packed = encode(SparseVector(N, None, theta_of(1)), ValueCoding.BF16)
    decoded = decode(packed, N).dense()
    right = hashlib.sha256(decoded.tobytes()).digest()
    order = desk.order(1, model=desk.serve(packed), model_hash=right)
    np.testing.assert_array_equal(assemble(order, stored(desk), LAYOUT, None), decoded)
    exact = hashlib.sha256(theta_of(1).tobytes()).digest()
    wrong = desk.order(1, model=order.model, model_hash=exact)
    with pytest.raises(CodecError, match="model_hash does not match"):
        assemble(wrong, stored(desk), LAYOUT, None)


def test_a_blob_that_is_not_there_is_a_storage_error(desk: Desk) -> None:
    with pytest.raises(StorageError):
        assemble(desk.order(1), desk.blobs(), LAYOUT, None)
    with pytest.raises(StorageError):
        read_theta(desk.blobs(), bytes(32), LAYOUT)


def test_a_vector_of_another_layout_is_refused(desk: Desk) -> None:
    sha256 = desk.blobs().write(np.zeros(N + 1, np.float32).tobytes())
    with pytest.raises(CodecError, match=rf"\({N + 1},\), expected float32 \({N},\)"):
        read_theta(desk.blobs(), sha256, LAYOUT)


# What it sends, and what it still owes.


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.values}-{c.fraction}")
def test_what_is_sent_and_what_is_owed_are_the_delta_exactly(desk: Desk, codec: Codec) -> None:
    blobs, manifest = desk.blobs(), manifest_of(desk)
    start, trained = theta_of(1), theta_of(1) + drift(1)
    payload, owed = code_delta(desk.order(codec=codec), manifest, blobs, None, start, trained)
    sent = decode(payload, N)
    residual = np.zeros(N, np.float32) if owed is None else read_theta(blobs, owed, LAYOUT)
    # In float64 the sum of two float32 of this size is exact: not one bit may be missing.
    whole = sent.dense().astype(np.float64) + residual
    np.testing.assert_array_equal(whole, (trained - start).astype(np.float64))
    assert sent.count <= max(1, round(codec.fraction * N))
    lossless = codec.values is ValueCoding.FP32 and codec.fraction == 1.0
    assert (owed is None) is lossless


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.values}-{c.fraction}")
def test_what_is_owed_is_carried_from_round_to_round(desk: Desk, codec: Codec) -> None:
    """After any number of rounds all that was sent and the last residual make up all deltas."""
    blobs, manifest = desk.blobs(), manifest_of(desk)
    total, sent, owed = np.zeros(N), np.zeros(N), None
    for number in range(1, 9):
        start = theta_of(number)
        trained = start + drift(number)
        total += trained - start
        order = desk.order(number, codec=codec)
        payload, owed = code_delta(order, manifest, blobs, owed, start, trained)
        sent += decode(payload, N).dense()
    residual = np.zeros(N) if owed is None else read_theta(blobs, owed, LAYOUT)
    np.testing.assert_allclose(sent + residual, total, rtol=0, atol=1e-7)  # float32 sums
    if codec.fraction == 0.3:
        assert np.abs(sent - total).max() < 0.1


def test_without_error_feedback_nothing_is_owed(desk: Desk) -> None:
    blobs, manifest = desk.blobs(), manifest_of(desk)
    start, trained = theta_of(1), theta_of(1) + drift(1)
    old = blobs.write(drift(9).tobytes())
    codec = Codec(fraction=0.1, error_feedback=False)
    order = desk.order(codec=codec)
    payload, owed = code_delta(order, manifest, blobs, old, start, trained)
    assert owed is None
    plain, _ = code_delta(order, manifest, blobs, None, start, trained)
    assert payload == plain


@pytest.mark.parametrize("codec", CODECS, ids=lambda c: f"{c.values}-{c.fraction}")
def test_kept_tensors_are_neither_sent_nor_owed(desk: Desk, codec: Codec) -> None:
    blobs, manifest = desk.blobs(), manifest_of(desk)
    old = blobs.write(np.full(N, 0.5, np.float32).tobytes())  # from before they were kept
    order = desk.order(codec=codec, keep=("norm.mean", "head.bias"))
    start, trained = theta_of(1), theta_of(1) + 100 * drift(1)
    payload, owed = code_delta(order, manifest, blobs, old, start, trained)
    kept = LAYOUT.mask(order.keep)
    assert not decode(payload, N).dense()[kept].any()
    if owed is not None:
        assert not read_theta(blobs, owed, LAYOUT)[kept].any()


def test_an_order_without_upload_sends_nothing_and_still_owes(desk: Desk) -> None:
    old = desk.blobs().write(drift(9).tobytes())
    order = desk.order(upload=False)
    found = code_delta(order, manifest_of(desk), desk.blobs(), old, theta_of(1), theta_of(2))
    assert found == (b"", old)


@pytest.mark.parametrize(
    ("fraction", "count"), [(1.0, 1000), (0.5, 500), (0.001, 1), (1e-9, 1), (0.0015, 2)]
)
def test_how_much_is_chosen(fraction: float, count: int) -> None:
    delta = np.linspace(-1, 1, 1000).astype(np.float32)
    chosen = choose(delta, Codec(fraction=fraction))
    assert chosen.count == count
    assert np.abs(chosen.values).min() >= np.sort(np.abs(delta))[-count]


def test_a_training_that_changed_nothing_is_an_update(desk: Desk) -> None:
    for codec in CODECS:
        payload, _ = code_delta(
            desk.order(codec=codec), manifest_of(desk), desk.blobs(), None, theta_of(1), theta_of(1)
        )
        assert not decode(payload, N).dense().any()


# The whole job.


def job(desk: Desk, order: Order) -> tuple[Outcome, BlobFolder]:
    blobs = stored(desk)
    place = Workplace(
        blobs,
        examples(12),
        examples(7),
        lambda sha256: (bundles.unpack(blobs.read(sha256)), desk.trainer),
        lambda: False,
        iter(range(100)).__next__,
    )
    return perform(Job(order, None, None), place), blobs


def test_a_job_leaves_update_model_and_report(desk: Desk) -> None:
    order = desk.order(3, codec=Codec(fraction=0.5))
    outcome, blobs = job(desk, order)
    assert (outcome.run, outcome.round) == ("run", 3)
    assert outcome.model is not None
    assert outcome.residual is not None
    np.testing.assert_array_equal(read_theta(blobs, outcome.model, LAYOUT), theta_of(3) + drift(3))
    report, payload = decode_update(blobs.read(outcome.update))
    assert report == outcome.report
    assert (report.num_examples, report.before.num_examples) == (12, 7)
    assert (report.layout_hash, report.model_hash, report.patch_hash) == (
        LAYOUT.hash,
        order.model_hash,
        b"",
    )
    assert report.seconds == 1
    assert decode(payload, N).count == N // 2


def test_an_evaluation_leaves_an_update_only(desk: Desk) -> None:
    order = desk.order(3, task="evaluate")
    blobs = stored(desk)
    own, residual = (blobs.write(theta_of(i).tobytes()) for i in (8, 9))
    place = desk.place()
    outcome = perform(Job(order, own, residual), place)
    assert (outcome.model, outcome.residual) == (own, residual)
    report, payload = decode_update(blobs.read(outcome.update))
    assert report.task == "evaluate"
    assert len(payload) == 0


def test_what_the_order_says_reaches_the_trainer(desk: Desk) -> None:
    seen: list[object] = []

    class Watching(DriftTrainer):
        def train(
            self,
            theta: Theta,
            examples: Examples,
            training: Training,
            seed: int,
            stopped: Callable[[], bool],
        ) -> Trained:
            seen.extend([theta.copy(), len(examples.targets), training, seed, stopped()])
            return super().train(theta, examples, training, seed, stopped)

    desk.trainer = Watching()
    training = Training(local_epochs=3, learning_rate=0.5, prox=0.1)
    job(desk, desk.order(4, training=training, seed=99))
    np.testing.assert_array_equal(np.asarray(seen[0]), theta_of(4))
    assert seen[1:] == [12, training, 99, False]


def test_a_job_that_is_stopped_leaves_nothing(desk: Desk) -> None:
    class Stopped(DriftTrainer):
        def train(
            self,
            theta: Theta,
            examples: Examples,
            training: Training,
            seed: int,
            stopped: Callable[[], bool],
        ) -> Trained:
            raise TrainingStopped("epoch 1 of 1, step 1: stopped")

    desk.trainer = Stopped()
    order = desk.order(1)
    stored(desk)
    before = desk.blob_files()
    with pytest.raises(TrainingStopped):
        job(desk, order)
    assert desk.blob_files() == before


def test_the_same_job_twice_is_the_same_bytes(desk: Desk) -> None:
    order = desk.order(1, codec=Codec(values=ValueCoding.INT8, fraction=0.2))
    first, _ = job(desk, order)
    second, _ = job(desk, order)
    assert first == second
