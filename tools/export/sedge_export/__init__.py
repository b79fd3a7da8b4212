"""sedge-export: compiles a torch model into a bundle of programs that train it without torch."""

from sedge_edge.backends.rows import cross_entropy, squared_error
from sedge_export.export import export

__all__ = ["cross_entropy", "export", "squared_error"]
