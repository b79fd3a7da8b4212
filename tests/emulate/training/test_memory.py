"""Memory is kept: a large tensor made again and again takes no new pages."""

import ctypes
import resource
import subprocess
import sys

import pytest

from sedge_emulate.training import memory

FAULTS = """
import resource, numpy
from sedge_emulate.training.memory import keep_memory
if {keep}:
    assert keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        blocks = [numpy.empty(5_000_000, numpy.int8) for _ in range(16)]
        for block in blocks:
            block[::4096] = 1
        del blocks, block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.skipif(not memory.keep_memory(), reason="the C library is not glibc")
def test_pages_are_kept() -> None:
    def faults(keep: bool) -> int:
        words = [sys.executable, "-c", FAULTS.format(keep=keep)]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        return int(done.stdout)

    # 80 MB in all are more than glibc keeps of its own accord.
    assert faults(keep=True) < faults(keep=False) / 10
    assert resource.getpagesize() <= 65536


def test_a_library_without_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    def bare(name: object) -> object:
        return object()

    monkeypatch.setattr(ctypes, "CDLL", bare)
    assert memory.keep_memory.__wrapped__() is False
