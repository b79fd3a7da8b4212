"""The reference of a configuration file, from the struct that reads it."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sedge_protocol.host.reference import reference


class Oven(msgspec.Struct):
    """[oven]: how it is heated; ``fan`` needs power."""

    fan: bool = False
    """Whether air moves | or not."""
    heat: Annotated[float, Meta(gt=0, le=300)] = 180.0


class Kitchen(msgspec.Struct):
    """A kitchen."""

    name: str
    ovens: tuple[Oven, ...] = ()
    door: Literal["left", "right"] | None = None


def test_a_struct_as_reference() -> None:
    assert reference("kitchen.toml", Kitchen) == (
        "## kitchen.toml\n\nA kitchen.\n\n"
        "| key | type | default | description |\n| --- | --- | --- | --- |\n"
        "| `name` | string | required |  |\n"
        '| `door` | `"left"`, `"right"` |  |  |\n\n'
        "### `[[ovens]]`\n\nHow it is heated; `fan` needs power.\n\n"
        "| key | type | default | description |\n| --- | --- | --- | --- |\n"
        "| `fan` | true or false | `false` | Whether air moves \\| or not. |\n"
        "| `heat` | number, above 0, at most 300 | `180.0` |  |\n"
    )
