"""Settings that must stand before numpy and torch are imported."""

import atexit
import gc
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

import pytest

# One thread each: the suite must not depend on, or fight over, the number of processors.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# What tests write is kept in memory where there is enough of it: nobody waits for a disk. Not where nothing
# in it may run, as in containers: some tests build programs.
MEMORY, ENOUGH_BYTES = Path("/dev/shm"), 4 * 10**9
if (
    MEMORY.is_dir()
    and shutil.disk_usage(MEMORY).free > ENOUGH_BYTES
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A cache for this run of the tests alone, which its processes share.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="sedge-cache-")
    atexit.register(shutil.rmtree, os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What modules and tests are made of lives to the end: nobody looks for garbage in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(700, 10, 50)  # what lives long is rarely garbage: 4 % of an export's time
        gc.enable()
