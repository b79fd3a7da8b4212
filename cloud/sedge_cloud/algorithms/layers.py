"""Finds the parts of a network that methods treat differently: head, body and normalisation layers.

A layout has only names, shapes and roles, so these must identify the parts. A tensor's module is its name
up to the last dot: ``fc.weight`` and ``fc.bias`` are in the module ``fc``.
"""

from collections.abc import Sequence

from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role

Names = tuple[str, ...]


def head(layout: Layout, names: Sequence[str] = ()) -> Names:
    """Return the parameters with these names or in these modules, or by default in the last module.

    Raises ``ConfigError`` for a name that is neither a parameter nor a module, and if the body would be
    empty.
    """
    every = parameters(layout)
    for name in names:
        if not any(inside(parameter, name) for parameter in every):
            modules = sorted({module(parameter) for parameter in every} | set(every))
            raise ConfigError("head", name, f"one of the model's modules or tensors: {modules}")
    top = (
        tuple(p for p in every if any(inside(p, name) for name in names)) if names else layout.head
    )
    if len(top) == len(every):
        raise ConfigError("head", top, "fewer tensors, so that some are left for the body")
    return top


def body(layout: Layout, names: Sequence[str] = ()) -> Names:
    """Return the names of the parameters outside ``head``."""
    top = head(layout, names)
    return tuple(name for name in parameters(layout) if name not in top)


def parameters(layout: Layout) -> Names:
    """Return the names of all tensors except statistics."""
    return tuple(t.name for t in layout.tensors if t.role is Role.PARAMETER)


def norms(layout: Layout) -> Names:
    """Return the scale and shift of each normalisation layer: a module whose parameters are all vectors.

    These are BatchNorm, GroupNorm and LayerNorm; linear and convolutional layers also have a matrix.
    """
    matrices = {module(t.name) for t in layout.tensors if len(t.shape) > 1}
    return tuple(name for name in parameters(layout) if module(name) not in matrices)


def module(name: str) -> str:
    """Return the name of a tensor's module."""
    return name.rpartition(".")[0]


def inside(tensor: str, name: str) -> bool:
    """Return True if ``name`` is this tensor, its module or an enclosing module."""
    return tensor == name or tensor.startswith(f"{name}.")
