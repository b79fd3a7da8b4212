"""Temporarily replaces a function in a module or class, for example with one that counts its calls."""

from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def substituted(owner: object, name: str, by: Callable[..., object]) -> Generator[None]:
    """Replace the attribute ``name`` of ``owner`` with ``by`` within this context."""
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)
