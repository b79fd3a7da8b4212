"""Signals between coordinators: read by the others of the fleet, and by nobody else."""

import pytest

from sedge_cloud.hints import Lacking, LeftOut
from sedge_cloud.processes.signals import Changed, Signal, Signals
from sedge_protocol.wire.topics import cloud

OURS = Signals("fleet", bytes(32))
SIGNALS = [Changed(), Lacking(bytes(32), 65536, b"\x05"), LeftOut("run", "a", ("zstd",))]


@pytest.mark.parametrize("signal", SIGNALS)
def test_the_others_of_the_fleet_read_it(signal: Signal) -> None:
    sent = OURS.seal(7, signal)
    assert OURS.open(8, sent.topic, sent.payload) == (7, signal)
    assert OURS.open(7, sent.topic, sent.payload) == (7, None)  # its own, which comes back


@pytest.mark.parametrize("signal", SIGNALS)
def test_what_is_no_coordinators_is_nothing(signal: Signal) -> None:
    sent = OURS.seal(7, signal)
    assert Signals("fleet", b"x" * 32).open(8, sent.topic, sent.payload)[1] is None
    assert OURS.open(8, cloud("fleet", "another"), sent.payload)[1] is None
    for place in range(len(sent.payload)):
        changed = bytearray(sent.payload)
        changed[place] ^= 1
        assert OURS.open(8, sent.topic, bytes(changed))[1] is None
        assert OURS.open(8, sent.topic, sent.payload[:place])[1] is None
    later = Signals("fleet", bytes(32))
    assert later.open(8, sent.topic, sent.payload)[1] == signal
