"""The programs of a bundle, and the names of each program's inputs and outputs, in order.

n is the number of parameters, s of statistics, m of frozen values, and B of rows in a batch. A tensor
without a shape below is a single number:

    gradient    theta, x, y, w, and noise if the model draws any
                                -> gradient, loss, and statistics if the layout has any
    guided      as gradient, plus the bundle's ``Guide`` inputs: start, previous, constants, counts
                                -> as gradient
    evaluate    theta, x, y, w  -> loss_sum, metric_sum, weight_sum
    predict     theta, x        -> logits

theta, gradient, start and previous are (n,), statistics (s,); x and y are (B, ...), w is (B,), logits (B,
C, ...). Every program of a bundle with frozen data takes ``frozen`` (m,) as well, after theta. Only a
bundle with a ``Guide`` has ``guided``.
"""

from typing import NamedTuple

from sedge_protocol.wire.objective import Guide

# The name of the input for the tensors that no device trains, and of the extension that a device announces
# for it.
FROZEN = "frozen"
# The name of the program that computes a guided loss.
GUIDED = "guided"


class Signature(NamedTuple):
    """The name of a program, and the names of its inputs and outputs, in order."""

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def signatures(
    has_statistics: bool = False, has_noise: bool = False, has_frozen: bool = False,
    guide: Guide | None = None,
) -> dict[str, Signature]:  # fmt: skip
    """Return each program's signature by its name, for a model with or without statistics and noise.

    With ``has_frozen`` each program also takes the tensors that are not in theta. ``guide`` describes the
    bundle's guided loss, if it has one.
    """
    values = ("theta", *((FROZEN,) if has_frozen else ()))
    batch = (*values, "x", "y", "w")
    noise = ("noise",) if has_noise else ()
    statistics = ("statistics",) if has_statistics else ()
    gives = ("gradient", "loss", *statistics)
    made = [
        Signature("gradient", (*batch, *noise), gives),
        Signature("evaluate", batch, ("loss_sum", "metric_sum", "weight_sum")),
        Signature("predict", (*values, "x"), ("logits",)),
    ]
    if guide is not None:
        made.append(Signature(GUIDED, (*batch, *noise, *guide.inputs), gives))
    return {signature.program: signature for signature in made}


PROGRAM_NAMES = (*signatures(), GUIDED)
