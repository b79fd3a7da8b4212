"""What a few bytes from a device may take of the coordinator's memory, from the offer to the receipt."""

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from tests.cloud.helper import Cloud, report_for

from sedge_protocol.codec import SparseVector, ValueCoding, encode
from sedge_protocol.layout import Layout, Role
from sedge_protocol.wire.messages import Committed, Message, Reject
from sedge_protocol.wire.update import encode_update

LAYOUT = Layout.of([("body.weight", (2**11, 2**11), Role.PARAMETER)])
N = LAYOUT.size


@pytest.mark.parametrize(("level", "answer"), [(0.1, Committed), (2e38, Reject)])
def test_a_small_update_takes_twice_a_dense_vector_at_most(
    tmp_path: Path, level: float, answer: type[Message]
) -> None:
    """Decoded, checked against the model, and its mask stored; also where the sum is not finite."""
    cloud = Cloud(tmp_path, layout=LAYOUT, init=np.full(N, level, np.float32))
    cloud.hello()
    values = np.resize(np.logspace(-4, 4, 200, dtype=np.float32), N - 1)
    values[-1] = max(level, 1.0)
    vector = SparseVector(N, np.arange(1, N, dtype=np.uint32), values)
    order = cloud.order("a")
    blob = encode_update(report_for(order, LAYOUT), encode(vector, ValueCoding.FP32))
    assert len(blob) < 4096
    tracemalloc.start()
    try:
        (found,) = cloud.offer("a", blob)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(found, answer)
    # Besides the vector, which is that large: its bitmap, and blocks.
    assert peak < 2 * (4 * N) + N // 4 + 2**20
