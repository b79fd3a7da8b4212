"""Lists the structs of the wire format that the specification documents and other languages implement."""

from collections.abc import Iterator

import msgspec
from msgspec import inspect

from sedge_protocol.wire.messages import KINDS, OrderName
from sedge_protocol.wire.places import Place
from sedge_protocol.wire.policy import Policy
from sedge_protocol.wire.training import Training
from sedge_protocol.wire.transfer import Manifest
from sedge_protocol.wire.update import Metrics, Report
from sedge_protocol.wire.work import (
    Blend,
    Codec,
    DeviceScoring,
    OwnModel,
    PatchChoice,
    Step,
    UpdateSelection,
    Work,
)

# Each struct comes after the structs that it contains.
STRUCTS: tuple[type[msgspec.Struct], ...] = (
    Manifest,
    Training,
    OwnModel,
    UpdateSelection,
    DeviceScoring,
    PatchChoice,
    Blend,
    Codec,
    Step,
    Place,
    Work,
    *KINDS,
    OrderName,
    Policy,
    Metrics,
    Report,
)


def optional(kind: inspect.Type) -> inspect.Type | None:
    """Return T for the type ``T | None``, and None for any other type."""
    match kind:
        case inspect.UnionType(types=(inner, inspect.NoneType())):
            return inner
        case _:
            return None


def defaults(struct: type[msgspec.Struct]) -> Iterator[object]:
    """Yield the default of every field, ``msgspec.NODEFAULT`` for a required one."""
    for field in msgspec.structs.fields(struct):
        made = field.default_factory
        yield field.default if made is msgspec.NODEFAULT else made()
