"""The programs of a bundle: the names of what each takes and gives, in order.

n = parameters, s = statistics, m = frozen values, B = rows of a batch; a tensor without a shape below is a
single number:

    gradient    theta, x, y, w, and noise where the model draws any
                                -> gradient, loss, and statistics where the layout has any
    evaluate    theta, x, y, w  -> loss_sum, metric_sum, weight_sum
    predict     theta, x        -> logits

theta and gradient are (n,), statistics (s,); x and y are (B, ...), w is (B,), logits (B, C, ...). Every
program of a bundle with frozen data takes ``frozen`` (m,) as well, after theta.
"""

from typing import NamedTuple

# The input that takes what no device trains, and the word that a device announces.
FROZEN = "frozen"


class Signature(NamedTuple):
    """A program's name, and those of its inputs and outputs, in order."""

    program: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def signatures(
    has_statistics: bool = False, has_noise: bool = False, has_frozen: bool = False
) -> dict[str, Signature]:
    """The programs of a model by name; has its layout statistics, its training random numbers?

    With ``has_frozen`` each takes the tensors that are not in theta.
    """
    values = ("theta", *((FROZEN,) if has_frozen else ()))
    batch = (*values, "x", "y", "w")
    noise = ("noise",) if has_noise else ()
    statistics = ("statistics",) if has_statistics else ()
    made = (
        Signature("gradient", (*batch, *noise), ("gradient", "loss", *statistics)),
        Signature("evaluate", batch, ("loss_sum", "metric_sum", "weight_sum")),
        Signature("predict", (*values, "x"), ("logits",)),
    )
    return {signature.program: signature for signature in made}


PROGRAM_NAMES = tuple(signatures())
