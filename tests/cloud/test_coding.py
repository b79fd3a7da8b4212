"""What a run sends where its file does not say it; test_cloud_config.py reads whole files."""

import pytest

from sedge_cloud.coding import BroadcastConfig, CodecConfig
from sedge_protocol.codec import ValueCoding
from sedge_protocol.wire.work import Codec


@pytest.mark.parametrize(
    ("size", "fraction", "sent"), [(582_026, 0.04, 29_101), (20_000, 0.5, 10_000), (611, 1.0, 611)]
)
def test_of_a_small_model_more_is_sent_by_default(size: int, fraction: float, sent: int) -> None:
    suited = Codec(ValueCoding.BF16, 0.04)
    assert CodecConfig().completed(suited, size).fraction == fraction
    assert BroadcastConfig().count(size) == sent
    assert CodecConfig(fraction=0.04).completed(suited, size) == suited
    assert BroadcastConfig(fraction=0.05).count(size) == round(0.05 * size)
