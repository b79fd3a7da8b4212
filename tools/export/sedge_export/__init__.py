"""sedge-export: compiles a torch model into a bundle of programs that train it without torch.

Names are imported on first use, so that commands that need no torch work without it.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sedge_edge.backends.rows import cross_entropy, squared_error
    from sedge_export.exporter import export
else:

    def __getattr__(name: str) -> object:
        if name == "export":
            from sedge_export.exporter import export

            return export
        if name in ("cross_entropy", "squared_error"):
            from sedge_edge.backends import rows

            return getattr(rows, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["cross_entropy", "export", "squared_error"]
