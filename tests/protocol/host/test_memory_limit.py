"""How much memory an agent may have, on made-up trees of control groups and on this machine."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sedge_protocol.host import memory_limit
from sedge_protocol.host.memory_limit import memory_mb, release_memory

MB = 10**6
REAL_PAGE = os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty /sys/fs/cgroup on a machine with 8 GB, below a file that is nobody's limit."""
    monkeypatch.setattr("os.sysconf", {"SC_PAGE_SIZE": 4000, "SC_PHYS_PAGES": 2 * MB}.__getitem__)
    (tmp_path / "memory.max").write_text("1")
    root = tmp_path / "cgroup"
    root.mkdir()
    monkeypatch.setattr(memory_limit, "_CGROUPS", root)
    monkeypatch.setattr(memory_limit, "_OWN", tmp_path / "own")
    return root


def limit(folder: Path, text: str, name: str = "memory.max") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


def own(groups: Path, text: str) -> None:
    (groups.parent / "own").write_text(text)


def test_without_limits_it_is_the_machines(groups: Path) -> None:
    assert memory_mb() == 8000
    own(groups, "0::/system.slice/sedge-edge.service\n")
    limit(groups / "system.slice" / "sedge-edge.service", "max\n")
    assert memory_mb() == 8000


def test_the_tightest_group_around_the_process_counts(groups: Path) -> None:
    own(groups, "0::/system.slice/sedge-edge.service\n")
    limit(groups / "system.slice" / "sedge-edge.service", f"{300 * MB}\n")
    assert memory_mb() == 300
    limit(groups / "system.slice", f"{200 * MB}\n")
    assert memory_mb() == 200
    limit(groups / "user.slice", f"{100 * MB}\n")
    assert memory_mb() == 200


def test_the_limit_of_the_process_itself_counts() -> None:
    code = "from sedge_protocol.host.memory_limit import memory_mb; print(memory_mb())"
    words = ["sh", "-c", 'ulimit -v 2000000; exec "$0" -c "$1"', sys.executable, code]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert int(done.stdout) == 2_000_000 * 1024 // MB


def test_a_container_sees_its_own_group_as_the_root(groups: Path) -> None:
    limit(groups, f"{512 * MB}\n")
    for path in ("/", "/docker/0123", "/../.."):
        own(groups, f"0::{path}\n")
        assert memory_mb() == 512


def test_groups_of_version_1(groups: Path) -> None:
    own(groups, "12:cpu,cpuacct:/a\n4:memory:/b\n0::/\n")
    limit(groups / "memory" / "b", f"{256 * MB}\n", "memory.limit_in_bytes")
    limit(groups / "memory", "9223372036854771712\n", "memory.limit_in_bytes")
    assert memory_mb() == 256


@pytest.mark.parametrize(
    "text", ["", "0\n", "nonsense", "0::", "4:memory", "0::/a/b\n\n::\n", "\0"]
)
def test_what_cannot_be_understood_is_no_limit(groups: Path, text: str) -> None:
    own(groups, text)
    limit(groups / "a", "plenty")
    (groups.parent / "own").write_bytes(text.encode() + b"\n")
    assert memory_mb() == 8000


def test_a_file_that_is_no_text(groups: Path) -> None:
    (groups.parent / "own").write_bytes(b"\xff\xfe")
    assert memory_mb() == 8000


@pytest.mark.parametrize("error", [ValueError, OSError])
def test_a_system_that_does_not_tell(
    groups: Path, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def refuse(name: str) -> int:
        raise error

    monkeypatch.setattr("os.sysconf", refuse)
    assert memory_mb() == 0
    own(groups, "0::/\n")
    limit(groups, str(64 * MB))
    assert memory_mb() == 64


def test_this_machine() -> None:
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < memory_mb() <= pages // MB


def resident_mb() -> float:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * REAL_PAGE / MB


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc keeps freed memory")
def test_freed_memory_goes_back_to_the_system() -> None:
    # Each is below glibc's threshold for memory of its own; the last keeps the heap from shrinking.
    blocks = [np.ones(16_000, np.float32) for _ in range(2000)]
    del blocks[:-1]
    before = resident_mb()
    release_memory()
    assert before - resident_mb() > 60
    assert blocks[0].sum() == 16_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc pools freed arrays")
def test_large_arrays_go_back_at_once() -> None:
    # Freeing the first array makes glibc pool arrays of its size; the last keeps the heap from shrinking.
    code = f"""
import numpy as np
from sedge_protocol.host.memory_limit import unpool_large_arrays
unpool_large_arrays()
resident = lambda: int(open("/proc/self/statm").read().split()[1]) * {REAL_PAGE}
np.ones(2_000_000, np.float32)
arrays = [np.ones(2_000_000, np.float32) for _ in range(10)]
last = np.ones(16_000, np.float32)
before = resident()
del arrays
print(before - resident())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 70 * MB
