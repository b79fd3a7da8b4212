"""Handles the POSIX features that Windows lacks, such as file locks.

Coordinator, agent and brokers rely on them. The exporter and the emulator in virtual time also run on
Windows. No other module imports fcntl.
"""

from importlib import import_module

from sedge_protocol.errors import SedgeError


def require_posix(what: str = "") -> None:
    """Raise ``SedgeError`` on Windows, saying that ``what`` cannot run there."""
    try:
        import_module("fcntl")
    except ModuleNotFoundError:
        text = f"{what} needs Linux or macOS; on Windows use WSL"
        raise SedgeError(text.strip()) from None


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> None:
    """Lock a file until it is closed. A ``shared`` lock excludes only exclusive ones.

    Raises ``BlockingIOError`` if another process holds a conflicting lock and ``wait`` is false. On Windows
    nothing is locked, so two emulations must not share a folder there.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
