"""All exceptions that Sedge raises on purpose.

    SedgeError
    ├── ConfigError      the operator's file or command line: which key, what was found, what was expected
    │   └── NotInstalled     a package from one of our extras is not installed
    ├── DataError        the user's data set: wrong shape, label, type or an empty set
    ├── ExportError      a model cannot be compiled to programs, or its programs disagree with torch
    ├── StorageError     the disk is full or unreadable, or a file is corrupt or has the wrong schema
    ├── LinkError        a broker or a blob server: unreachable, refused us, or disconnected
    ├── StrategyError    a strategy returned something unusable: its run ends, other runs continue
    ├── Unencodable      a vector that its coding cannot hold, such as one with an infinity
    ├── LocalError       a bug: our own code broke one of its rules; nobody else's bytes can cause it
    └── RemoteError      the peer's bytes break a rule: dropped and counted, never a crash
        ├── FrameError        header, length or MAC of a frame
        │   ├── VersionError  a frame of a protocol version that we do not speak
        │   └── BodyError     a frame with a good MAC whose message breaks the schema
        ├── CodecError        a coded vector
        ├── PolicyError       an order that lacks a policy signed by a pinned key, or exceeds its policy
        └── UpdateRejected    an update that does not belong to its order, with a reason code

A message says what is wrong, where, and what was expected: ``update.index[17]: 90211 is not below
n=90200``. Foreign exceptions (paho, sqlite3, OSError) are translated once, in the file that owns the
library, with ``raise ... from exc``.
"""

from typing import ClassVar


class SedgeError(Exception):
    """The base class of every error that Sedge raises on purpose.

    A command that fails with the error exits with ``exit_status``: 2 for the command line and
    configuration, 3 for data and models, 4 for the disk, 5 for the link, 6 for everything else
    (docs/commands.md).
    """

    exit_status: ClassVar[int] = 6


class Words(str):
    """A description of what is wrong. A ``ConfigError`` prints it instead of quoting the value."""


class ConfigError(SedgeError):
    """A configuration value is unknown, missing (None), of the wrong type or out of range."""

    exit_status = 2

    def __init__(self, key: str, found: object, expected: str, where: str = "") -> None:
        self.key, self.found, self.expected, self.where = key, found, expected, where
        prefix = f"{where}: " if where else ""
        said = found if isinstance(found, Words) else f"found {found!r}"
        said = "missing" if found is None else said
        super().__init__(f"{prefix}{key}: {said}, expected {expected}")

    def __reduce__(self) -> tuple[type[SedgeError], tuple[object, ...]]:
        """Pickle the constructor's arguments, because the emulator's workers are other processes."""
        return type(self), (self.key, self.found, self.expected, self.where)


class NotInstalled(ConfigError):
    """A configuration key or a command needs a package that is installed only with an extra."""

    def __init__(self, key: str, package: str, extra: str) -> None:
        super().__init__(key, package, extra)
        self.args = (
            f"{key} needs {package}, which is not installed: pip install 'sedge-fl[{extra}]'",
        )

    def __reduce__(self) -> tuple[type[SedgeError], tuple[object, ...]]:
        """Pickle the constructor's arguments."""
        return type(self), (self.key, self.found, self.expected)


class DataError(SedgeError):
    """The user's data set cannot be trained on.

    ``row`` is the index of the faulty example, if there is one.
    """

    exit_status = 3

    def __init__(self, text: str, row: int | None = None) -> None:
        self.row = row
        super().__init__(text)


class ExportError(SedgeError):
    """A model cannot be compiled to device programs, or a program disagrees with torch."""

    exit_status = 3


class StorageError(SedgeError):
    """A disk operation failed, or a file's contents are not what was written to it."""

    exit_status = 4


class LinkError(SedgeError):
    """A broker or a blob server cannot be reached or refuses our connection."""

    exit_status = 5


class StrategyError(SedgeError):
    """A strategy returned an unusable result, or cannot compute one from its state."""


class Unencodable(SedgeError):
    """A vector has a value that its coding cannot represent."""


class LocalError(SedgeError):
    """Our own code broke one of its rules: a bug."""


class RemoteError(SedgeError):
    """Bytes from the peer break a rule of the protocol."""


class FrameError(RemoteError):
    """A frame's header, length or MAC is wrong."""


class VersionError(FrameError):
    """A frame has a different protocol version."""


class BodyError(FrameError):
    """The message in an authentic frame breaks the schema. ``body`` is the message in MessagePack."""

    def __init__(self, kind: str, body: bytes, why: str) -> None:
        self.kind, self.body = kind, body
        super().__init__(f"{kind}: {why}")


class CodecError(RemoteError):
    """A coded vector is malformed."""


class PolicyError(RemoteError):
    """An order has no valid signed policy, or asks for more than its policy allows."""


class UpdateRejected(RemoteError):
    """An update was rejected; ``reason`` is one of the reason codes of WIRE.md."""

    def __init__(self, reason: str, detail: str = "") -> None:
        self.reason, self.detail = reason, detail
        super().__init__(f"{reason}: {detail}" if detail else reason)


def os_reason(error: OSError) -> str:
    """Return the operating system's reason, without the errno and file name that Python adds."""
    return error.strerror or str(error)
