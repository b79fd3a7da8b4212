"""``make spec``: what is made from the structs is up to date, and says what the structs say."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta, inspect
from tools.spec import __main__ as command
from tools.spec import java, tables
from tools.spec.structs import STRUCTS

from sedge_protocol.host.struct_fields import fields
from sedge_protocol.wire.messages import Count, Id, Short
from sedge_protocol.wire.work import Codec, Hash, Seed


class Part(msgspec.Struct, frozen=True):
    """A struct within another."""

    size: Count
    """Its size."""


class Sample(msgspec.Struct, frozen=True):
    """A struct with every type."""

    run: Id
    """The run."""
    sha256: Hash
    parts: Annotated[tuple[Part, ...], Meta(max_length=3)]
    name: Short = ""
    seed: Seed = 0
    share: Annotated[float, Meta(gt=0, le=1)] = 0.5
    below: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    energy_j: Annotated[float, Meta(ge=0)] | None = None
    on: bool = True
    way: Literal["up", "down"] = "up"
    part: Part | None = None
    names: Annotated[tuple[Short, ...], Meta(min_length=1, max_length=16)] = ("a",)
    data: Annotated[bytes, Meta(max_length=512)] = b""


ROWS = """| key | type and limit | default | meaning |
|---|---|---|---|
| `run` | id | | The run. |
| `sha256` | hash | | |
| `parts` | at most 3 Parts | | |
| `name` | text, 64 | empty | |
| `seed` | integer, 0 to 2^63 - 1 | 0 | |
| `share` | number, above 0, at most 1 | 0.5 | |
| `below` | number, 0 to below 1 | 0 | |
| `energy_j` | number, from 0, or nil | nil | |
| `on` | bool | true | |
| `way` | `down` or `up` | `up` | |
| `part` | Part or nil | nil | |
| `names` | 1 to 16 texts of 64 | [a] | |
| `data` | bytes, 512 | empty | |
"""


# What Java reads each field by, its default, and the field itself.
JAVA = """Field<Sample, String> RUN = SCHEMA.required("run", Type.ID);
Field<Sample, byte[]> SHA256 = SCHEMA.required("sha256", Type.HASH);
Field<Sample, List<Part>> PARTS = SCHEMA.required("parts", Type.list(Part.SCHEMA, 0, 3));
Field<Sample, String> NAME = SCHEMA.optional("name", Type.text(0, 64), "");
Field<Sample, Long> SEED = SCHEMA.optional("seed", Type.integer(0, Long.MAX_VALUE), 0L);
Field<Sample, Double> SHARE = SCHEMA.optional("share", Type.number(0, true, 1.0), 0.5);
"below", Type.number(0, false, Math.nextDown(1.0)), 0.0);
"energy_j", Type.orNil(Type.number(0, false, Double.MAX_VALUE)), null);
Field<Sample, Boolean> ON = SCHEMA.optional("on", Type.BOOL, true);
"way", Type.oneOf("down", "up"), "up");
Field<Sample, Part> PART = SCHEMA.optional("part", Type.orNil(Part.SCHEMA), null);
"names", Type.list(Type.text(0, 64), 1, 16), Collections.singletonList("a"));
"data", Type.bytes(0, 512), new byte[0]);
/** The run. */
public final String run;
public final List<Part> parts;
public final long seed;
public final Double energyJ;
energyJ = ENERGY_J.in(given);
"""


def test_a_java_class_says_what_the_struct_says() -> None:
    text = java.class_of(Sample)
    assert not [line for line in JAVA.splitlines() if line not in text]


class Odd(msgspec.Struct, frozen=True):
    """A struct with a limit that Java does not check."""

    size: Annotated[int, Meta(gt=0)]


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[int, Meta(gt=0)],
        Annotated[int, Meta(lt=10)],
        Annotated[int, Meta(multiple_of=2)],
        Annotated[float, Meta(le=1)],
        Annotated[float, Meta(lt=1)],
        Annotated[float, Meta(multiple_of=0.5)],
        Annotated[str, Meta(pattern="^a")],
        dict[str, int],
        Annotated[dict[Id, int], Meta(max_length=3)],
        Annotated[dict[str, int], Meta(min_length=1, max_length=3)],
        Literal[1, 2],
    ],
    ids=str,
)
def test_a_limit_that_java_does_not_check_is_refused(kind: type) -> None:
    with pytest.raises(TypeError, match=r"Type\.java reads no"):
        java.java_type(inspect.type_info(kind))


@pytest.mark.parametrize(
    "value", [float("inf"), b"xy", {"a": 1}, (1, 2), Codec(fraction=0.5)], ids=str
)
def test_a_default_that_java_cannot_write_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="Java has no such value"):
        java.literal(value)


def test_a_refusal_names_struct_and_field() -> None:
    with pytest.raises(TypeError, match=r"^Odd\.size: "):
        java.class_of(Odd)


def test_a_text_and_a_limit_lose_nothing() -> None:
    assert java.literal('a"\\\n') == r'"a\"\\\n"'
    share = java.java_type(inspect.type_info(Annotated[float, Meta(ge=0.1234567)])).reader
    assert float(share.removeprefix("Type.number(").partition(",")[0]) == 0.1234567


@pytest.mark.parametrize("lost", ["<!-- make spec: Hello -->\n", "<!-- end -->\n"])
def test_a_lost_mark_of_a_table_is_an_error(lost: str) -> None:
    first, *others = ((command.ROOT / page).read_text() for page in command.PAGES)
    with pytest.raises(
        ValueError, match=r"<!-- make spec: (Hello|Welcome) --> .* is there 0 times"
    ):
        tables.pages([first.replace(lost, "", 1), *others])


def test_a_table_says_what_the_struct_says() -> None:
    assert tables.table(Sample) == ROWS


def test_everything_is_up_to_date() -> None:
    assert not command.stale(), "run: make spec"


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field_has_its_sentence(struct: type[msgspec.Struct]) -> None:
    assert not [field.name for field in fields(struct) if not field.description.endswith(".")]


def test_a_stale_file_fails_the_check_and_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- make spec: Goodbye -->\n| old |\n<!-- end -->\nafter\n")
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(command, "made", lambda: iter([("page.md", tables.page(page.read_text()))]))
    assert command.main(["--check"]) == 1
    assert capsys.readouterr().err == "page.md is stale; run: make spec\n"
    assert command.main([]) == 0
    assert "| `nonce` | 16 bytes | |" in page.read_text()
    assert command.main(["--check"]) == 0
