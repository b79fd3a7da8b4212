"""Checks that examples fit into this device's memory, before memory is allocated for them."""

from sedge_protocol.errors import DataError
from sedge_protocol.host.memory_limit import memory_mb


def require_room(needed: int, what: str, instead: str) -> None:
    """Raise ``DataError`` if this device has less memory than the ``needed`` bytes.

    The message begins with ``what``, and suggests what to do ``instead``.
    """
    memory = memory_mb()
    if 0 < memory < needed / 1e6:
        raise DataError(
            f"{what} need {_words(needed)} of memory, but this device has "
            f"{_words(memory * 10**6)}: {instead}"
        )


def no_room(where: str) -> DataError:
    """Return the error for examples that turned out not to fit into memory."""
    return DataError(f"{where}: the examples need more memory than is free")


def _words(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
