"""Sphinx's settings for the site, which has this repository's pages at their own paths, with MyST and Furo.

The menu comes from docs/index.md: each heading above a list of links becomes a part of the menu, and the
links become the part's pages.
"""

import re
from collections.abc import Iterator
from typing import Any

project = "Sedge"
copyright = "the Sedge authors, Apache 2.0"  # Sphinx requires this name
root_doc = "docs/index"
include_patterns = [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "protocol/WIRE.md",
    "protocol/spec/*.md",
    "tools/bench/*.md",
]
exclude_patterns = ["runs", "dist", "build", "**/.*", "tests", "**/__pycache__"]
extensions = ["myst_parser"]
myst_heading_anchors = 4
html_theme = "furo"
html_title = "Sedge"
html_copy_source = False
html_show_sphinx = False


def menu(index: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each part of the index with its pages, as paths relative to the folder docs."""
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, text = part.partition("\n")
        pages = re.findall(r"^- \[([^]]+)\]\(([^)#]+)\.md\)", text, re.MULTILINE)
        if pages:
            yield title, [f"{name} <{page}>" for name, page in pages]


def add_menu(_app: object, page: str, source: list[str]) -> None:
    """Append the menu to the index page as Sphinx reads it. The menu is not in the file itself."""
    if page == root_doc:
        for title, pages in menu(source[0]):
            lines = ["", "```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""]
            source[0] += "\n".join(lines)


def setup(app: Any) -> None:  # Sphinx's own annotations are incomplete
    """Register ``add_menu``. Sphinx calls this function."""
    app.connect("source-read", add_menu)
