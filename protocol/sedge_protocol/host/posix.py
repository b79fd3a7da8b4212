"""What Windows lacks: file locks, and other bases of coordinator, agent and brokers.

The emulator in virtual time and the exporter run there all the same. Nothing else of the project imports
fcntl.
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
    """Lock a file until it is closed, against all others or, ``shared``, against those who are not.

    Raises ``BlockingIOError`` when another process holds it and we do not ``wait``. On Windows nothing is
    locked: two emulations must not share a folder there.
    """
    try:
        import fcntl
    except ModuleNotFoundError:
        return
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(descriptor, how if wait else how | fcntl.LOCK_NB)
