"""The error for an operator that a runtime lacks, with a fix if one is known."""

from torch._ops import OpOverload

from sedge_export.stages import Where
from sedge_export.subject.source import bare_name
from sedge_protocol.errors import ExportError

_ITEM = (
    ".item() and float() take a number out of a tensor, which a program cannot do: keep it a tensor, as"
    " in x.sum() for x.sum().item()"
)
_MATRICES = (
    "programs add and multiply matrices, but cannot decompose, invert or solve any that depend on the input"
    " or on parameters: compute it from a constant, or write it with products"
)
# Prefixes of torch.linalg's operators, some of which are not named after their functions.
_OF_MATRICES = ("linalg_", "cholesky", "triangular_solve", "lu_unpack", "householder_product")


def missing(operator: OpOverload, where: Where, reason: str) -> ExportError:
    """Make the error ``cannot lower aten.… (module 'a', net.py:31): reason; fix``."""
    name = bare_name(operator)
    advice = ""
    if name == "local_scalar_dense":
        advice = f"; {_ITEM}"
    elif name.startswith(_OF_MATRICES):
        advice = f"; {_MATRICES}"
    return ExportError(f"cannot lower {operator}{where(operator)}: {reason}{advice}")
