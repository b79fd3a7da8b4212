"""The documentation: what is made from the code is up to date, and no link leads nowhere."""

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tools.docs.__main__ import build
from tools.docs.comments import keys_of
from tools.docs.conf import menu
from tools.docs.generated import COMPLETE, FILES, REFERENCE, ROOT

from sedge_cloud.__main__ import main as cloud
from sedge_cloud.strategies import STRATEGIES
from sedge_edge.__main__ import main as edge
from sedge_emulate.__main__ import main as emulate
from sedge_protocol.host.reference import tables
from sedge_protocol.host.struct_fields import StructField, fields

# Pages to look something up in, not to read.
LONG = {"reference", "models"}


def test_the_reference_of_every_program(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / REFERENCE).read_text()
    for program, words in (
        (cloud, ["reference", "run.toml"]),
        (cloud, ["reference", "cloud.toml"]),
        (edge, ["reference"]),
        (emulate, ["reference"]),
    ):
        assert program(words) == 0
        assert capsys.readouterr().out in page
    assert cloud(["reference", "fedobp"]) == 0
    assert capsys.readouterr().out.partition("\n")[2] in page


def keys(struct: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, StructField]]:
    """Every key of a file and its tables, by table."""
    for field in fields(struct):
        inner = list(tables(field.kind))
        if not inner:
            yield path, field
        for table in inner:
            yield from keys(table, f"{path}.{field.name}".lstrip("."))


@pytest.mark.parametrize(("title", "struct"), [*FILES.items(), *STRATEGIES.items()])
def test_every_key_has_one_sentence(title: str, struct: type[msgspec.Struct]) -> None:
    for table, key in keys(struct):
        words = key.description
        assert 5 <= len(words.split()) <= 25 and words.endswith("."), f"{table}.{key.name}: {words}"


@pytest.mark.parametrize("file", COMPLETE)
def test_a_complete_file_shows_every_key(file: str) -> None:
    shown = set(keys_of((ROOT / file).read_text(), COMPLETE[file]))
    assert {(table, key.name) for table, key in keys(COMPLETE[file])} <= shown


def test_every_link_leads_somewhere(tmp_path: Path) -> None:
    assert build(tmp_path / "site", "dummy") == 0


@pytest.mark.slow
def test_the_site_builds(tmp_path: Path) -> None:
    assert build(tmp_path / "site") == 0
    assert "quantile" in (tmp_path / "site" / "docs" / "reference.html").read_text()
    assert "docs/index.html" in (tmp_path / "site" / "index.html").read_text()


def test_the_menu_has_each_part_of_the_index() -> None:
    parts = dict(menu((ROOT / "docs" / "index.md").read_text()))
    assert [*parts] == ["Tutorial", "How-to guides", "Explanation", "Reference", "Project"]
    assert parts["Tutorial"] == ["From nothing to your own data <tutorial>", "Overview <../README>"]


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda page: page.stem)
def test_a_page_is_short_enough_to_read(page: Path) -> None:
    if page.stem not in LONG:
        assert len(page.read_text().split()) <= 2500
