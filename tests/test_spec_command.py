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
from sedge_protocol.wire.messages import Id
from sedge_protocol.wire.work import Codec

# What Java reads each field by, its default, and the field itself.


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
    with pytest.raises(TypeError, match=r"Type\.java can"):
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
    with pytest.raises(ValueError, match=r"<!-- make spec: (Hello|Welcome) --> .* occurs 0 times"):
        tables.pages([first.replace(lost, "", 1), *others])


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
