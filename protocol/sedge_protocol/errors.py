"""The errors of Sedge, one short tree.

    SedgeError
    ├── ConfigError      the operator's file or command line: which key, what was found, what was expected
    ├── DataError        the user's data set: wrong shape, label, type or an empty set
    ├── ExportError      a model that cannot become programs, or whose programs disagree with torch
    ├── StorageError     the disk: full, unreadable, corrupt, or of another schema
    ├── LinkError        the broker: unreachable, refused us, or cut the link
    ├── LocalError       we broke one of our own rules: a bug, never the peer's doing
    └── RemoteError      the peer's bytes break a rule: dropped, counted, answered, never a crash
        ├── FrameError   header, length or MAC of a frame
        │   └── VersionError   a frame of a protocol version that we do not speak
        ├── CodecError   a coded vector
        └── UpdateRejected      the peer said no, with a reason code

The message says what is wrong, where, and what was expected: ``update.index[17]: 90211 is not below
n=90200``. Foreign exceptions (paho, sqlite3, OSError) are translated once, at the file that owns the
library, with ``raise ... from exc``.
"""


class SedgeError(Exception):
    """Base of every error that Sedge raises on purpose."""


class ConfigError(SedgeError):
    """A configuration value is unknown, missing, of a wrong type or out of range."""

    def __init__(self, key: str, found: object, expected: str, where: str = "") -> None:
        self.key, self.found, self.expected, self.where = key, found, expected, where
        prefix = f"{where}: " if where else ""
        super().__init__(f"{prefix}{key}: found {found!r}, expected {expected}")

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, object, str, str]]:
        """So that it may cross from one process of ours to another."""
        return type(self), (self.key, self.found, self.expected, self.where)


class DataError(SedgeError):
    """The user's data set cannot be trained on."""


class ExportError(SedgeError):
    """A model cannot be lowered to device programs, or a program disagrees with torch."""


class StorageError(SedgeError):
    """The disk refused, or holds bytes that are not what was written."""


class LinkError(SedgeError):
    """The broker cannot be reached or does not accept us."""


class LocalError(SedgeError):
    """Our own code broke one of its rules."""


class RemoteError(SedgeError):
    """The peer's bytes break a rule of the protocol."""


class FrameError(RemoteError):
    """A frame's header, length or MAC is wrong."""


class VersionError(FrameError):
    """A frame of another protocol version."""


class CodecError(RemoteError):
    """A coded vector is malformed."""


class UpdateRejected(RemoteError):
    """The peer refuses; ``reason`` is one of the reason codes of WIRE.md."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)
