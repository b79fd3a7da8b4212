"""The global model: from what is held, from steps, or whole; and what becomes of wrong steps."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.edge.harness import LAYOUT, Harness, N, hash_of, theta_of

from sedge_edge.jobs.global_model import BrokenSteps, global_model, needed_blobs
from sedge_edge.jobs.storage import FolderVectors
from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.host.blobs import BlobFolder
from sedge_protocol.layout import Theta
from sedge_protocol.wire.messages import Order
from sedge_protocol.wire.work import Step


@pytest.fixture
def device(tmp_path: Path) -> Harness:
    return Harness(tmp_path)


@pytest.fixture
def orders(device: Harness) -> list[Order]:
    """Rounds 1 to 4, each one step ahead of the last."""
    return device.chain(1, 4)


def model(device: Harness, order: Order) -> Theta:
    """The order's global model (n,), from the device's folder."""
    blobs = device.blobs()
    return global_model(order, blobs, FolderVectors(blobs), LAYOUT)


def bring(device: Harness, order: Order) -> BlobFolder:
    """Put on the device what the order needs there, as a fetch does."""
    blobs = device.blobs()
    for manifest in needed_blobs(order, blobs.has):
        blobs.write(device.served[manifest.transfer])
    return blobs


def hold(device: Harness, theta: Theta) -> None:
    """Let the device hold a version (n,)."""
    FolderVectors(device.blobs()).keep_version(theta, hash_of(theta), ())


def test_a_mask_that_the_device_holds_is_not_needed(device: Harness) -> None:
    patch, mask = device.serve(b"patch"), device.serve(b"mask")
    order = device.order(patch_blob=patch, patch_context=mask)
    needed = needed_blobs(order, lambda name: name == mask.sha256)
    assert needed == [order.bundle, order.model, patch]


def another_delta(device: Harness, step: Step) -> Step:
    return Step(step.base_hash, device.step(theta_of(1), 77)[0].blob)


def no_coded_vector(device: Harness, step: Step) -> Step:
    return Step(step.base_hash, device.serve(b"no coded vector"))


def too_long(device: Harness, step: Step) -> Step:
    longer = np.ones(N + 1, np.float32)
    return Step(step.base_hash, device.serve(encode(SparseVector(N + 1, None, longer))))


def far_away(device: Harness, step: Step) -> Step:
    """Twice this is beyond float32, and then not even a number."""
    far = np.full(N, 3e38, np.float32)
    return Step(step.base_hash, device.serve(encode(SparseVector(N, None, far), ValueCoding.FP32)))


Change = Callable[[Harness, Step], Step]


def from_base(data: bytes) -> Change:
    return lambda device, step: Step(device.blobs().write(data), step.blob)


WRONG: dict[str, tuple[Change, str]] = {
    "another delta": (another_delta, "model_hash does not match the last of 3 steps"),
    "no coded vector": (no_coded_vector, "coded vector"),
    "a longer one": (too_long, f"n={N + 1}, expected {N}"),
    "beyond float32": (far_away, "model_hash does not match the last of 3 steps"),
    "a base that is no vector": (from_base(b"seven b"), rf"7 bytes, expected float32 \({N},\)"),
    "a shorter base": (from_base(bytes(4 * N - 4)), f"{4 * N - 4} bytes, expected float32"),
    "a longer base": (from_base(bytes(8 * N)), f"{8 * N} bytes, expected float32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_steps_are_told_from_a_wrong_order(
    device: Harness, orders: list[Order], name: str
) -> None:
    """Without them the order can be done: its snapshot is sound."""
    change, text = WRONG[name]
    hold(device, theta_of(1))
    right = orders[-1].steps
    order = msgspec.structs.replace(orders[-1], steps=(change(device, right[0]), *right[1:]))
    if "base" in name:
        # The only version of these that is here.
        order = msgspec.structs.replace(order, steps=order.steps[:1])
    blobs = bring(device, order)
    with pytest.raises(BrokenSteps, match=f"run run, round 4: .*{text}"):
        model(device, order)
    assert not blobs.has(order.model_hash)
    assert blobs.has(orders[0].model_hash)
    whole = msgspec.structs.replace(order, steps=())
    bring(device, whole)
    assert hash_of(model(device, whole)) == order.model_hash
