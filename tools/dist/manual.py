"""Makes a man page for each command from its argument parser."""

from importlib import import_module

from tools.dist.parsers import PROJECT, parser_of


def manual(command: str) -> str:
    """Return a command's man page in troff. Raises ``KeyError`` for a command that does not exist."""
    parser = parser_of(command)
    # Imported by name, so that type checking does not require the extra "dist".
    page = import_module("argparse_manpage.manpage").Manpage(
        parser, format="single-commands-section"
    )
    page.description = parser.description
    page.manual = "Sedge"
    page.source = f"Sedge {PROJECT['version']}"
    return str(page)
