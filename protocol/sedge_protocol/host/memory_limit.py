"""Determines how much memory this process may use, which a container or a systemd unit may limit.

``unpool_large_arrays`` and ``release_memory`` return to the system any memory that a job no longer needs.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# The number of this setting in glibc's malloc.h, and our value for it: an array of at least this many bytes
# gets its own pages.
_M_MMAP_THRESHOLD, _LARGE = -3, 2**20


def memory_mb() -> int:
    """Return the memory limit in MB: the lowest of machine, cgroups and process, or 0 if unknown."""
    limits = [*_machine(), *_limits(_OWN, _CGROUPS), *_address_space()]
    return min(limits, default=0) // 10**6


def unpool_large_arrays() -> None:
    """Make the C library, if it supports this, return every large array to the system once freed.

    By default glibc pools arrays up to 32 MiB once one of that size has been freed. A thread's pool then
    keeps the space of freed model vectors, into which no later array fits: a job with an MLP (4.9 million
    parameters, batch 8) peaked at 208 MB instead of 192 in ONNX Runtime and at 186 instead of 166 in
    ExecuTorch, and ended with up to 100 MB more. This setting does not slow down the training steps.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def release_memory() -> None:
    """Return freed memory to the system, if the C library supports this; glibc keeps it by default.

    After a job with the 4-layer CNN in ONNX Runtime, this took a few ms and reduced the process from 98 to
    78 MiB: the interpreter with the agent (44), the runtime's library (19), data and sessions. Closing the
    sessions as well would free 1 MiB more, and opening them again takes 20 ms.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _machine() -> Iterator[int]:
    try:
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # the system does not say; Windows has no sysconf
        return


def _address_space() -> Iterator[int]:
    """Yield the memory limit that ``ulimit -v`` or a unit's ``LimitAS`` sets for the process, if any."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY:
        yield limit


def _limits(own: Path, root: Path) -> Iterator[int]:
    """Yield the limits of this process's cgroups and their parents, for cgroups version 2 and 1."""
    try:
        lines = own.read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from _upwards(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _upwards(root / "memory", path, "memory.limit_in_bytes")


def _upwards(root: Path, path: str, name: str) -> Iterator[int]:
    """Yield the limits of a group and its parents up to ``root``, skipping "max" and unreadable files.

    In a container, the path may be the one on the host, so it may not exist here or may begin above the
    root. The root's limit is then the container's.
    """
    group = root if ".." in path else root / path.strip("/")
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):
            yield int((folder / name).read_text())
        if folder == root:
            return
