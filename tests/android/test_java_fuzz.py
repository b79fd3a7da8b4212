"""The Java core's decoders on what Python's are tried with (tests/protocol/test_fuzz.py), for as long each.

Its declared refusals are ``RemoteError``, whose text ``Decoders`` gives; anything else, an array that does
not fit into the heap of a phone too, ends the JVM.
"""

import pytest
from tests.edge.java_core import Jvm
from tests.protocol.test_fuzz import TARGETS, fuzz

from sedge_protocol.errors import FrameError

# A device reads no update's arrays.
READ = [target for target in TARGETS if target != "arrays"]


@pytest.mark.slow
@pytest.mark.parametrize("target", READ)
def test_no_damaged_bytes_raise_anything_but_one_clear_error(target: str, jvm: Jvm) -> None:
    def read(data: bytes) -> None:
        _, refusal = jvm.call(0, ["decode", target, data.hex()])
        if refusal:
            raise FrameError(bytes.fromhex(refusal).decode())

    corpus = list(TARGETS[target][1]())
    taken = 0
    for sound in corpus:
        try:
            read(sound)
            taken += 1
        except FrameError:  # it has no zstd, and frames have keys of their own
            assert target in ("vector", "frame")
    assert taken or target == "frame"
    fuzz(target, corpus, read)
