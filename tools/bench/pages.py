"""Writes RESULTS.md, METHODS.md, REPRODUCED.md, and the figures and tables in README and docs."""

from collections.abc import Iterator
from pathlib import Path

from tools.bench import compression_figure, gains_figure, methods, readme, reproduced, results_page
from tools.bench.harness import RESULTS

HERE = Path(__file__).parent


def main() -> None:
    """Rewrite the pages that have changed."""
    for path, text in pages():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def pages() -> Iterator[tuple[Path, str]]:
    """Yield each page's path and text."""
    yield HERE / "RESULTS.md", results_page.page(RESULTS)
    yield HERE / "METHODS.md", methods.page()
    yield compression_figure.PAGE, compression_figure.drawn(RESULTS / "compression.json")
    yield from gains_figure.drawn(RESULTS / "gains.json")
    found = reproduced.outcomes(RESULTS / "reproduce")
    yield HERE / "REPRODUCED.md", reproduced.page(found)
    tables = [*readme.tables(), (reproduced.GUIDE, "reproduced", [*reproduced.published(found)])]
    for path, name, lines in tables:
        yield path, readme.replaced(path.read_text(), name, lines)
