"""The parts of a network that methods tell apart: head, body, normalisation.

A layout knows names, shapes and roles only. A tensor's module is what its name has before the last dot;
``fc.weight`` and ``fc.bias`` are the module ``fc``.
"""

from collections.abc import Sequence

from sedge_protocol.errors import ConfigError
from sedge_protocol.layout import Layout, Role

Names = tuple[str, ...]


def head(layout: Layout, names: Sequence[str] = ()) -> Names:
    """The parameters with these names or in these modules; without any, those of the last module.

    Raises ``ConfigError`` for a name that is neither, and where no parameter is left for the body.
    """
    known = parameters(layout)
    for name in names:
        if not any(inside(parameter, name) for parameter in known):
            modules = sorted({module(parameter) for parameter in known} | set(known))
            raise ConfigError("head", name, f"one of the model's modules or tensors: {modules}")
    found = (
        tuple(p for p in known if any(inside(p, name) for name in names)) if names else layout.head
    )
    if len(found) == len(known):
        raise ConfigError("head", found, "fewer tensors, so that others are the body")
    return found


def body(layout: Layout, names: Sequence[str] = ()) -> Names:
    """The parameters outside ``head``."""
    top = head(layout, names)
    return tuple(name for name in parameters(layout) if name not in top)


def parameters(layout: Layout) -> Names:
    """The tensors that are no statistics."""
    return tuple(t.name for t in layout.tensors if t.role is Role.PARAMETER)


def norms(layout: Layout) -> Names:
    """Scale and shift of every normalisation: the modules all of whose parameters are vectors.

    That is BatchNorm's, GroupNorm's and LayerNorm's; a linear or convolutional layer has a matrix.
    """
    matrices = {module(t.name) for t in layout.tensors if len(t.shape) > 1}
    return tuple(name for name in parameters(layout) if module(name) not in matrices)


def module(name: str) -> str:
    """The module of a tensor."""
    return name.rpartition(".")[0]


def inside(tensor: str, name: str) -> bool:
    """Whether a tensor has this name or lies in the module, or below the module, of this name."""
    return tensor == name or tensor.startswith(f"{name}.")
