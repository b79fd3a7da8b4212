"""Disks that are full, or lose power, at any of the calls by which an agent changes them."""

import errno
import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pytest

T = TypeVar("T")
# Everything by which the product changes a disk.
WRITES = ("pwrite", "fsync", "replace", "mkdir", "utime", "unlink")


class PowerCut(Exception):
    """Nothing after this happened."""


class Counted:
    """How many calls there were."""

    calls = 0


class Disk(Protocol):
    """What befalls the disks of a test, while it lasts."""

    def full(self, first: int, count: int, code: int = errno.ENOSPC) -> Any:
        """Calls are refused: those from ``first`` on, ``count`` of them. Gives the ``Counted``."""
        ...

    def cut(self, at: int, loses: bool) -> Any:
        """The power fails at a call. Gives the ``Counted``.

        With ``loses`` names are gone that were given since the last flush of their folder.
        """
        ...


class OsDisk:
    """That of the agent in Python, at each call of ``os``."""

    @contextmanager
    def full(self, first: int, count: int, code: int = errno.ENOSPC) -> Generator[Counted]:
        full = FullDisk(first, count, code)
        with pytest.MonkeyPatch.context() as patched:
            for name in WRITES:
                patched.setattr(os, name, full.wrap(getattr(os, name)))
            yield full

    @contextmanager
    def cut(self, at: int, loses: bool) -> Generator[Counted]:
        cutting = Cutting(at, loses)
        with pytest.MonkeyPatch.context() as patched:
            for name in ("pwrite", "replace", "unlink", "fsync"):
                patched.setattr(os, name, cutting.wrap(name))
            yield cutting


class FullDisk(Counted):
    """Makes calls that write raise as on a full disk: those from ``first`` on, ``count`` of them."""

    def __init__(self, first: int, count: int, code: int = errno.ENOSPC) -> None:
        self.first, self.count = first, count
        self.error = code, os.strerror(code)

    def wrap(self, call: Callable[..., T]) -> Callable[..., T]:
        """The call, failing when it is its turn."""

        def checked(*args: object, **kwargs: object) -> T:
            turn, self.calls = self.calls, self.calls + 1
            if self.first <= turn < self.first + self.count:
                raise OSError(*self.error)
            return call(*args, **kwargs)

        return checked


class Cutting(Counted):
    """Lets the power fail at a call that changes the disk: just before, with ``loses`` just after."""

    def __init__(self, at: int, loses: bool = False) -> None:
        self.at, self.loses = at, loses
        self._before: dict[Path, bytes | None] = {}

    def wrap(self, name: str) -> Callable[..., object]:
        """A call of ``os``."""
        call: Callable[..., object] = getattr(os, name)

        def cut(*args: Any, **kwargs: object) -> object:
            if not self.loses:
                self._step()
            if name == "replace" and self.loses:
                target = Path(args[1])
                content = target.read_bytes() if target.exists() else None
                self._before.setdefault(target, content)
            result = call(*args, **kwargs)
            if name == "fsync":
                synced = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
                self._before = {p: c for p, c in self._before.items() if p.parent != synced}
            if self.loses:
                self._step()
            return result

        return cut

    def _step(self) -> None:
        turn, self.calls = self.calls, self.calls + 1
        if turn != self.at:
            return
        for path, content in self._before.items():
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        raise PowerCut
