"""POSIX features that Windows lacks: file locks, and others on which coordinator, agent and brokers rely.

The emulator in virtual time and the exporter run on Windows all the same. No other file imports fcntl.
"""

from importlib import import_module

from sedge_protocol.errors import SedgeError


def require_posix(what: str = "") -> None:
    """Raise ``SedgeError`` on Windows; ``what`` cannot run there."""
    try:
        import_module("fcntl")
    except ModuleNotFoundError:
        text = f"{what} needs Linux or macOS; on Windows use WSL"
        raise SedgeError(text.strip()) from None


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock a file until it is closed, exclusively or, if ``shared``, only against exclusive locks.

    Raises ``BlockingIOError`` if another process holds a lock and ``wait`` is false. On Windows nothing is
    locked: two emulations must not share a folder there.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
