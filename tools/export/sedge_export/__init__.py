"""sedge-export: compiles a torch model into a bundle of programs that train it without torch."""

from sedge_export.export import export
from sedge_export.network import cross_entropy, squared_error

__all__ = ["cross_entropy", "export", "squared_error"]
