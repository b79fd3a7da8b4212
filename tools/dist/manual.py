"""Makes a man page for each command from the parser of its options."""

from importlib import import_module

from tools.dist.parsers import PROJECT, parser_of


def manual(command: str) -> str:
    """The man page in troff. Raises ``KeyError`` for a command that the project does not have."""
    parser = parser_of(command)
    # By name, so that type checking does not require the extra "dist".
    page = import_module("argparse_manpage.manpage").Manpage(
        parser, format="single-commands-section"
    )
    page.description = parser.description
    page.manual = "Sedge"
    page.source = f"Sedge {PROJECT['version']}"
    return str(page)
