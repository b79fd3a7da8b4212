"""The page of reproduced tables."""

from html.parser import HTMLParser

from tests.reproduce.outcomes import checkpoint, outcome
from tools.reproduce.page import page


class Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)


def test_a_table_and_its_plots() -> None:
    found = page(
        [
            outcome("logs-dir01", "fedavg", (checkpoint(100, 0.90),)),
            outcome("logs-dir01", "local", (checkpoint(100, 0.80),)),
            outcome("fedobp-dir01", "fedobp", (checkpoint(100, 0.90),)),
        ]
    )
    parser = Text()
    parser.feed(found)
    assert parser.tags.count("svg") == 2 * 3
    assert parser.tags.count("table") == 2
    assert "84.89" in found
    assert "fedavg, seed 42" in found
    assert "script" not in parser.tags


def test_nothing_reproduced_is_an_empty_page() -> None:
    assert "<h1>" in page([])
