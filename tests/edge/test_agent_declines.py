"""Orders that cannot be done: declined with the reason, nothing lost, and the next one works."""

import struct
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from tests.edge.harness import (
    DriftTrainer,
    Harness,
    MakeDevice,
    N,
    drift,
    examples,
    make_bundle,
    theta_of,
)

from sedge_edge.runtime import OpenBundles
from sedge_edge.training.trainer import Trained, TrainingDiverged, TrainRequest
from sedge_protocol.codec import Compression, SparseVector, ValueCoding, encode
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.reasons import without_paths
from sedge_protocol.wire.transfer import describe
from sedge_protocol.wire.work import Codec, OwnModel

pytestmark = pytest.mark.both_cores


@pytest.fixture
def device(device: Harness) -> Harness:
    """A device that has done round 1, with a residual."""
    device.give(device.order(1, codec=Codec(fraction=0.1)))
    return device


def patch(*indices: int, size: int = N) -> bytes:
    """A coded patch of ones, not compressed."""
    ones = np.ones(len(indices), np.float32)
    vector = SparseVector(size, np.array(indices, np.uint32), ones)
    return encode(vector, ValueCoding.FP32, Compression.NONE)


def with_nan(coded_patch: bytes, count: int) -> bytes:
    """The same with the last of its ``count`` values NaN: four planes of a byte each, at the end."""
    changed = bytearray(coded_patch)
    for plane, byte in enumerate(struct.pack("<f", float("nan"))):
        changed[(plane - 3) * count - 1] = byte
    return bytes(changed)


def past_the_end(device: Harness) -> bytes:
    """An index that is not below n, in a patch that says it is of size n."""
    longer = bytearray(patch(3, N + 2, size=N + 60))
    assert struct.unpack_from("<I", longer, 4) == (N + 60,)
    struct.pack_into("<I", longer, 4, N)
    return bytes(longer)


SMALL = Layout.of([("body.weight", (3,), Role.PARAMETER)])
Change = Callable[[Harness], Order]
BAD: dict[str, tuple[Change, str]] = {
    "a bundle for another layout": (
        lambda d: d.order(2, bundle=d.serve(make_bundle(layout=SMALL))),
        "expected at most 4108 for the bundle's 3 parameters",
    ),
    "a bundle that is none": (lambda d: d.order(2, bundle=d.serve(b"not a bundle" * 1000)), "zlib"),
    "another model than its hash": (
        lambda d: d.order(2, model_hash=b"x" * 32),
        "run run, round 2: model_hash does not match",
    ),
    "a model that is none": (lambda d: d.order(2, model=d.serve(b"no model")), "coded vector"),
    "another patch than its hash": (
        lambda d: d.order(2, patch=patch(3), patch_hash=b"x" * 32),
        "run run, round 2: patch_hash does not match",
    ),
    "a patch without its hash": (lambda d: d.order(2, patch=patch(3)), "patch_hash does not match"),
    "a hash without its patch": (
        lambda d: d.order(2, patch_hash=b"x" * 32),
        "patch_hash does not match",
    ),
    "a patch of another size": (
        lambda d: d.patched(2, patch(3, size=N + 1)),
        f"n={N + 1}, expected {N}",
    ),
    "an index past the end": (lambda d: d.patched(2, past_the_end(d)), ""),
    "NaN in a patch": (
        lambda d: d.patched(2, with_nan(patch(3, 5), 2)),
        "value[1]: nan is not finite",
    ),
    "a truncated patch": (lambda d: d.patched(2, patch(3, 5)[:-1]), "coded vector"),
    "a tensor to keep that there is not": (
        lambda d: d.order(2, keep=("head\nweight",)),
        "no tensor named 'head\\nweight'",
    ),
}


def check_declined(device: Harness, order: Order, reason: str, text: str) -> None:
    """The order is declined, everything else is as it was, and the next order works."""
    before, own, residual = device.on_disk(), device.own(), device.residual()
    device.give(order)
    (decline,) = device.declines
    assert (decline.run, decline.round, decline.reason) == ("run", 2, reason)
    assert text in decline.detail
    assert len(decline.detail) <= 1000
    assert f"run run, round 2: {decline.detail}" in map(without_paths, device.notes)
    after = device.on_disk()
    assert (after.runs, after.outbox, after.orders) == (before.runs, (), {})
    np.testing.assert_array_equal(device.own(), own)
    expected = residual
    assert expected is not None
    device.train = device.test = examples()
    device.trainer = DriftTrainer()
    device.give(device.order(3))
    np.testing.assert_array_equal(device.own(), theta_of(3) + drift(3))
    np.testing.assert_array_equal(
        device.delta(3), (theta_of(3) + drift(3)) - theta_of(3) + expected
    )


@pytest.mark.parametrize("name", BAD)
def test_a_bad_order_is_declined(device: Harness, name: str) -> None:
    make, text = BAD[name]
    check_declined(device, make(device), "CodecError", text)


A_BLOB = describe(b"a blob")
ALWAYS = {"correction", "sign"}  # announced by Java
UNANNOUNCED: dict[str, dict[str, Any]] = {
    "own_model": {"own_model": OwnModel()},
    "select": {"context": b"m" * 32},
    "remember, select": {"remember": True, "patch_context": A_BLOB},
    "correction": {"correction": A_BLOB},
    "sign": {"codec": Codec(ValueCoding.SIGN)},
}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(words, marks=pytest.mark.python_only("abilities") if words in ALWAYS else ())
        for words in UNANNOUNCED
    ],
)
def test_an_extension_that_was_not_announced(device: Harness, words: str) -> None:
    """It is declined as what cannot be read: the order that the device has stays."""
    device.codecs = ()
    device.reboot()
    device.tell(device.order(2))
    device.give(device.order(3, **UNANNOUNCED[words]))
    (decline,) = device.declines
    assert (decline.round, decline.reason) == (3, "BodyError")
    why = f"needs {words}, which this device has not announced"
    assert decline.detail == f"ORDER: run run, round 3: {why}"
    assert [order.round for order in device.on_disk().orders.values()] == [2]


def test_the_bundle_of_a_declined_order_is_not_fetched_again(
    make_device: MakeDevice, tmp_path: Path
) -> None:
    device = make_device(tmp_path)
    device.connect()
    device.train = examples(width=4)
    for number in (1, 2, 3):
        order = device.order(number)
        before = device.chunks_sent
        device.give(order)
        assert device.declines[-1].round == number
        fetched = (order.model,) if number > 1 else (order.model, order.bundle)
        assert device.chunks_sent - before == sum(manifest.count for manifest in fetched)
    assert device.blob_files() == {order.bundle.sha256.hex()}


@pytest.mark.parametrize("which", ["train", "test"])
def test_data_that_the_model_cannot_take(device: Harness, which: str) -> None:
    setattr(device, which, examples(width=4))
    text = "x has rows of shape (4,), but the model expects (3,)"
    check_declined(device, device.order(2), "DataError", text)


def looping() -> bytes:
    graph = helper.make_graph([helper.make_node("Loop", ["", ""], [])], "g", [], [])
    opset = [helper.make_opsetid("", 20)]
    return bytes(helper.make_model(graph, opset_imports=opset).SerializeToString())


@pytest.mark.python_only("backends")
@pytest.mark.parametrize(
    ("backend", "program", "reason", "text"),
    [
        ("executorch", b"", "ConfigError", "one of those in the bundle: onnxruntime"),
        ("onnxruntime", b"noise", "CodecError", "program 'gradient' cannot be loaded: model"),
        ("onnxruntime", looping(), "CodecError", "operator 'Loop' is not allowed in a program"),
    ],
)
def test_a_bundle_that_no_backend_runs(
    device: Harness,
    backend: str,
    program: bytes,
    reason: str,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    programs, place = OpenBundles(backend, threads=1), device.place()
    real = replace(place, open_bundle=partial(programs.open, place.blobs))
    with monkeypatch.context() as patched:
        patched.setattr(device, "place", lambda: real)
        device.give(device.order(2, bundle=device.serve(make_bundle(program=program))))
    (decline,) = device.declines
    assert decline.reason == reason
    assert text in decline.detail
    device.complete(3)


class Diverging(DriftTrainer):
    """Ends somewhere else than a trainer should."""

    def __init__(self, move: float) -> None:
        self.move = move

    def train(self, request: TrainRequest, *args: Any, **kwargs: Any) -> Trained:
        if np.isnan(self.move):
            raise TrainingDiverged("epoch 1 of 1, step 3: the loss is nan")
        return Trained(np.full_like(request.theta, self.move), 0.5, 1)


@pytest.mark.parametrize(
    ("move", "codec", "text"),
    [
        (float("nan"), Codec(), "the loss is nan"),
        (1e6, Codec(values=ValueCoding.FP16, fraction=0.1), "is not a finite number in fp16"),
        (3.4e38, Codec(values=ValueCoding.BF16), "is not a finite number in bf16"),
    ],
)
def test_a_training_that_ends_nowhere(
    device: Harness, move: float, codec: Codec, text: str
) -> None:
    """Also where every number is finite, and only the codec cannot carry it: no crash, no loop."""
    device.trainer = Diverging(move)
    check_declined(device, device.order(2, codec=codec), "TrainingDiverged", text)


def test_the_number_in_a_reason_is_rounded_half_to_even(device: Harness) -> None:
    device.trainer = Diverging(66565.0)
    codec = Codec(values=ValueCoding.FP16, error_feedback=False)
    order = device.order(2, np.zeros(N, np.float32), codec=codec)
    text = "value[0]: 6.656e+04 is not a finite number in fp16"
    check_declined(device, order, "TrainingDiverged", text)


class Greedy(DriftTrainer):
    """Needs more memory than there is."""

    def __init__(self, said: str) -> None:
        self.said = said

    def train(self, *args: Any, **kwargs: Any) -> Trained:
        raise MemoryError(self.said)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ("Unable to allocate 1.00 GiB", "Unable to allocate 1.00 GiB"),
        ("", "none left"),
        # What is sent names no folders of the device.
        (
            "no room for '/home/ann/my.d/state/blobs/ab' and /mnt/x/, 1/2 of https://a.example/b/c/d",
            "no room for 'ab' and x/, 1/2 of https://a.example/b/c/d",
        ),
    ],
)
def test_a_lack_of_memory_is_an_error_of_the_job(device: Harness, said: str, text: str) -> None:
    device.trainer = Greedy(said)
    text = f"run run, round 2: out of memory while running the job: {text}"
    check_declined(device, device.order(2), "OutOfMemory", text)


@pytest.mark.python_only("one step")
@pytest.mark.parametrize("fraction", [1.0, 0.1])
def test_a_delta_beyond_float32(device: Harness, fraction: float) -> None:
    start = np.full(N, -3e38, np.float32)
    device.trainer = Diverging(3e38)
    order = device.order(2, start, codec=Codec(fraction=fraction))
    check_declined(device, order, "TrainingDiverged", "delta: ")


def test_declined_rounds_do_not_fill_the_disk(device: Harness) -> None:
    """A device with bad data gets a new global every round for as long as the run lasts."""
    device.train = examples(width=4)
    files: set[int] = set()
    for number in range(2, 7):
        device.give(device.order(number))
        files.add(len(device.blob_files()))
    assert len(device.declines) == 5
    assert files == {4}  # of round 1: the bundle, the global, the own model and the residual


def test_a_decline_that_was_lost_is_said_again(device: Harness) -> None:
    order = device.order(2, model_hash=b"x" * 32)
    device.give(order)
    device.give(order)  # the coordinator heard nothing, and asks again
    assert [(d.round, d.reason) for d in device.declines] == [(2, "CodecError")] * 2


def test_a_job_without_an_update_needs_no_codec(device: Harness) -> None:
    device.trainer = Diverging(1e6)
    device.give(device.order(2, upload=False, codec=Codec(values=ValueCoding.FP16)))
    assert not device.declines
    assert (device.own() == 1e6).all()
