"""Temporarily replaces an attribute of torch."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

_INHERITED = object()


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Generator[None]:
    """Replace the attribute ``name`` of ``owner`` with ``value`` within this context. Not thread-safe."""
    own = vars(owner).get(name, _INHERITED)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
