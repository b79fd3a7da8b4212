"""A function of a module or class, replaced for a while by one that counts its calls."""

from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def substituted(owner: object, name: str, by: Callable[..., object]) -> Generator[None]:
    """``by`` stands for the owner's function of this name."""
    before = getattr(owner, name)
    setattr(owner, name, by)
    try:
        yield
    finally:
        setattr(owner, name, before)
