"""The drawings: colours left to the page, nothing from outside it, and the same bytes each time."""

import re
from xml.etree import ElementTree

from sedge_emulate.svg import INK, LOSS, MUTED, NUM_SERIES, axes, series


def draw(name: str, text: str = "label") -> str:
    with axes(name) as (area, drawing):
        for i in range(NUM_SERIES):
            area.plot([0, 1], [i, i + 1], color=series(i), marker="o")
        for colour in (INK, MUTED, LOSS):
            area.plot([0, 1], [2, 1], color=colour)
        area.set_xlabel(text)
    return drawing.svg


def test_every_colour_is_the_pages() -> None:
    svg = draw("colours")
    assert not re.search(r"#[0-9a-f]{6}\b(?!\")", re.sub(r'(href="|url\()#\w+', "", svg))
    for variable in ("ink", "muted", "loss", "grid", *(f"series-{i}" for i in range(1, 7))):
        assert f"var(--{variable})" in svg
    assert series(NUM_SERIES) == series(0)


def test_it_stands_alone_in_a_page() -> None:
    svg = draw("alone")
    assert svg.startswith('<svg viewBox="0 0 500 290" role="img" aria-label="alone">')
    assert svg.endswith("</svg>")
    for foreign in ("http", "xmlns", "<style", "<metadata", "<?xml", "<!DOCTYPE", "font-family"):
        assert foreign not in svg
    ElementTree.fromstring(svg)


def test_the_same_drawing_gives_the_same_bytes() -> None:
    assert draw("same") == draw("same")


def test_names_of_two_drawings_do_not_meet() -> None:
    first, second = (set(re.findall(r' id="([^"]*)"', draw(name))) for name in ("one", "two"))
    assert first
    assert not first & second


def test_what_a_drawing_refers_to_is_there() -> None:
    svg = draw("links")
    referred = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', svg))
    defined = set(re.findall(r' id="([^"]*)"', svg))
    assert referred
    assert {first or second for first, second in referred} <= defined


def test_text_is_text_and_escaped() -> None:
    svg = draw("text", "a<b & $x_1$")
    assert "a&lt;b &amp; $x_1$" in svg
